"""Trains a small network in child processes that are killed, again and again; prints what came of it as JSON.

A program of its own: children are forked from a process that has imported torch and never run anything on it.
"""

import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # imported here once, instead of late in every child
from killed import die, in_child, used_by_children
from torch import nn

from spikecal.data.card import Card
from spikecal.data.sources import Data
from spikecal.training import checkpoint
from spikecal.training.loop import train
from spikecal.training.recipes import CIFAR, QUICK
from spikecal.vision import vision
from spikecal.workdir import fingerprint

MOMENTS = 5
RECIPES = {
    "quick": QUICK.changed(epochs=4, batch=16, pad=2, seed=5),
    "averaged": CIFAR.changed(epochs=2, batch=16, ema=0.9, label_smoothing=0.1, hole=6, clip=1.0, seed=5),
}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(72, 4),
    )


def images() -> Data:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (100, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return Data(name="random", images=pixels, labels=torch.randint(0, 4, (100,), generator=generator))


def die_in_save(call: int) -> None:
    """A trap: the process dies while it writes the `call`-th checkpoint."""
    original, calls = Path.write_bytes, iter(range(1, sys.maxsize))

    def write_bytes(path: Path, content: Any) -> int:
        if next(calls) == call:
            original(path, content[: len(content) // 2])
            die()
        return original(path, content)

    Path.write_bytes = write_bytes  # type: ignore[method-assign]


def child(name: str, folder: Path, trap: int | None = None, seconds: float | None = None) -> bool:
    """Train in a child, which is killed after `seconds`; whether it came to its end."""
    folder.mkdir(exist_ok=True)

    def training() -> None:
        if trap is not None:
            die_in_save(trap)
        card = Card(name="small", size=(12, 12), mean=(0.5,) * 3, std=(0.25,) * 3)
        done = train(network(), images(), card, RECIPES[name], folder / "c.pt", every=0, workers=0)
        losses = [record.loss for record in done.history]
        (folder / "result").write_text(fingerprint([*done.model.state_dict().values()], losses))

    return in_child(training, seconds)


def kill_and_resume(name: str, folder: Path, trap: int | None = None, seconds: float | None = None) -> dict[str, Any]:
    """One kill, and the result of the next run."""
    while child(name, folder, trap, seconds):  # it was faster than measured: there was nothing to kill
        assert seconds is not None, "the trap did not work"
        seconds *= 0.8
        folder = folder.with_name(folder.name + "x")
    state = checkpoint.read(folder / "c.pt")
    half = (folder / "c.pt.part").exists()
    finished = child(name, folder)
    return {
        "at": [0, 0] if state is None else [state["epoch"], state["step"]],
        "half": half,
        "finished": finished,
        "left": sorted(path.name for path in folder.iterdir()),
        "result": (folder / "result").read_text(),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    vision("torchvision.transforms.v2")
    generator = random.Random(7)
    report = {}
    for name in RECIPES:
        whole = min(used_by_children(partial(child, name, folder / f"{name}-{run}")) for run in ("first", "second"))
        moments = [whole * (i + generator.random()) / MOMENTS for i in range(MOMENTS)]
        report[name] = {
            "uninterrupted": [(folder / f"{name}-{run}" / "result").read_text() for run in ("first", "second")],
            "moments": [
                kill_and_resume(name, folder / f"{name}-{i}", seconds=moment) for i, moment in enumerate(moments)
            ],
            "save": kill_and_resume(name, folder / f"{name}-save", trap=9),
        }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
