"""Evaluation reads while it computes, holds two batches at most, and shows speed and accuracy."""

import gc
import re
import weakref
from collections.abc import Iterator
from functools import cache
from threading import get_ident

import pytest
import torch
from networks import images, residual
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import spikecal
from spikecal.ahead import ahead
from spikecal.errors import ConfigError, DataError

BATCHES, SIZE = 12, 4


@cache
def snn() -> spikecal.SpikingNetwork:
    return spikecal.convert(residual(), images(16), T=2, pipeline="baseline", records=False).snn


class Stream:
    """Batches that are made when asked for, and how many of them are alive at most."""

    def __init__(self) -> None:
        self.alive, self.most, self.readers = weakref.WeakSet[Tensor](), 0, set[int]()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(BATCHES):
            x = images(SIZE, seed=number)
            self.alive.add(x)
            gc.collect()
            self.most = max(self.most, len(self.alive))
            self.readers.add(get_ident())
            yield x, torch.arange(SIZE)
            del x


class Made(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return images(1, seed=index)[0], index % 5


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None:
        self.notes.append(note)


def test_a_stream_is_read_by_another_thread_and_never_held() -> None:
    stream, told = Stream(), Told()
    found = spikecal.evaluate(snn(), stream, told)
    assert found.images == BATCHES * SIZE
    assert stream.most <= 3  # the batch at work, the one that waits, the one being made
    assert stream.readers.isdisjoint({get_ident()})
    whole = [images(SIZE, seed=number) for number in range(BATCHES)]
    assert found.accuracy == spikecal.evaluate(snn(), (torch.cat(whole), torch.arange(SIZE).repeat(BATCHES))).accuracy
    assert all(re.fullmatch(r"[\d.e+]+ images/s  [\d.]+ % right", note) for note in told.notes)
    assert float(told.notes[-1].split()[2]) == pytest.approx(100 * found.accuracy[-1], abs=0.05)


def test_agreement_is_reported_without_labels() -> None:
    told = Told()
    spikecal.evaluate(snn(), [images(4)], told, ann=residual())
    assert told.notes[0].endswith("% as the ANN")


def test_processes_read_a_dataset_to_the_same_figures() -> None:
    assert spikecal.evaluate(snn(), Made(), workers=2) == spikecal.evaluate(snn(), Made())
    for data in ((images(4), torch.arange(4)), Stream(), DataLoader(Made(), num_workers=1)):
        with pytest.raises(ConfigError, match="workers are for datasets"):
            spikecal.evaluate(snn(), data, workers=2)
    with pytest.raises(ConfigError, match="workers must be a non-negative integer, not -1"):
        spikecal.evaluate(snn(), Made(), workers=-1)


def test_read_errors_are_reported() -> None:
    def broken() -> Iterator[tuple[Tensor, Tensor]]:
        yield images(4), torch.arange(4)
        raise DataError("the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        spikecal.evaluate(snn(), broken())
    with pytest.raises(DataError, match="there are no images"):
        spikecal.evaluate(snn(), iter(()))


def test_reading_ends_with_its_reader() -> None:
    read: list[int] = []
    items = ahead(read.append(i) or i for i in range(100))  # type: ignore[func-returns-value]
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(read) <= 2
