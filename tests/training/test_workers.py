"""A worker that dies at any moment causes one clear line, and no further messages."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spikecal.data.card import Card
from spikecal.data.sources import Data
from spikecal.errors import TrainingError
from spikecal.training.loop import train
from spikecal.training.recipes import CIFAR
from spikecal.training.workers import worker_errors

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
CARD = Card(name="small", size=(12, 10))
SOON = 0.5  # seconds


class Deadly:
    """Images, one of which kills the process that reads it."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        if index == 7 and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros((3, 12, 10), dtype=torch.uint8)


def test_a_worker_killed_by_an_image_ends_the_training_in_one_line(tmp_path: Path) -> None:
    data = Data(name="deadly", images=Deadly(os.getpid()), labels=torch.zeros(16, dtype=torch.int64))
    model = nn.Sequential(nn.Flatten(), nn.Linear(360, 2))
    with pytest.raises(TrainingError, match=r"^DataLoader worker \(pid.*\d+\).*[a-z]: use fewer workers; [^\n]*kept$"):
        train(model, data, CARD, CIFAR.changed(batch=8), tmp_path / "c.pt", workers=1)


@pytest.fixture
def worker() -> Iterator[multiprocessing.process.BaseProcess]:
    """A worker with nothing left to do; torch watches over it as long as its loader is there."""
    before = multiprocessing.active_children()
    batches = iter(DataLoader([0, 1, 2], num_workers=1))
    next(batches)
    (found,) = (child for child in multiprocessing.active_children() if child not in before)
    yield found
    del batches


def test_a_death_while_the_network_learns(worker: multiprocessing.process.BaseProcess) -> None:
    threading.Timer(SOON, worker.kill).start()
    with pytest.raises(TrainingError, match="Killed: use fewer workers"), worker_errors():
        time.sleep(60)  # a step
    subprocess.run(["true"], check=True)  # its end raises nothing


@pytest.mark.parametrize("broken", [EOFError(), ConnectionResetError(104, "Connection reset by peer")], ids=repr)
def test_a_death_reported_after_its_connection_broke(
    worker: multiprocessing.process.BaseProcess, broken: Exception
) -> None:
    threading.Timer(SOON, worker.kill).start()
    with pytest.raises(TrainingError, match="Killed: use fewer workers"), worker_errors():
        raise broken
    subprocess.run(["true"], check=True)


def test_other_errors_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikecal.training.workers.SIGNALLED", 0.0)
    for error in (RuntimeError("no kernel"), EOFError("end"), TrainingError("one line"), KeyError("x")):
        with pytest.raises(type(error)) as raised, worker_errors():
            raise error
        assert raised.value is error
