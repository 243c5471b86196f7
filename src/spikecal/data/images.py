"""Images and their labels, in memory or read when asked for."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from spikecal.data.card import Card
from spikecal.errors import DataError
from spikecal.workdir import fingerprint

log = logging.getLogger(__name__)

LOOKED_AT = 16  # images of a set of files that tell it from another
READERS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

Unreadable = dict[str, str]  # file -> reason


class UnreadableImage(DataError):
    """One image of a set cannot be read; the others can."""

    def __init__(self, file: str, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"{file} is not a readable image: {reason}")


@runtime_checkable
class Images(Protocol):
    """Anything that counts its images and gives one at a time: [C, H, W], uint8 or float in 0..1."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@runtime_checkable
class FileImages(Images, Protocol):
    """Images that are read from files: several threads may ask at once, for images in a card's size."""

    def fitted(self, index: int, card: Card, /) -> Tensor:
        """Image `index` as uint8 [C, H, W], in the card's size and channels where it has some."""
        ...


@dataclass(frozen=True, kw_only=True)
class Data:
    """Images as they are stored, before any normalisation; `labels` [N] where known.

    `distilled`: made from a network, to calibrate with; nothing can be tested on them. `about` is what should be known
    of figures that are measured on them: tables say it.
    """

    name: str
    images: Images
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    distilled: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        if len(self.images) == 0:
            raise DataError(f"{self.name} holds no images")
        if self.labels is not None and self.labels.shape != (len(self.images),):
            raise DataError(f"{self.name}: {len(self.images)} images but labels of shape {tuple(self.labels.shape)}")
        if self.labels is not None and (self.labels.dtype != torch.int64 or int(self.labels.min()) < 0):
            raise DataError(f"{self.name}: labels must be whole numbers from 0 up")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What is on this machine of a known set."""

    where: Path | None  # None: in the package
    images: Mapping[str, int] | None  # by split, where known
    verified: bool | None  # None: there is no checksum to compare with


def subset(data: Data, count: int | None, seed: int) -> Data:
    """`count` images drawn by `seed`, in their stored order; all of them where there are no more than that."""
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise DataError(f"the number of images must be at least 1, not {count}")
    return choose(data, shuffled(len(data), seed)[:count])


def readable(data: Data, count: int, seed: int) -> tuple[Data, Unreadable]:
    """Like `subset`, of images that can be read, and those that were drawn and cannot.

    Every image drawn is read once to know; sets that are in memory are returned as they are.
    """
    if not isinstance(data.images, FileImages):
        return data, {}
    order = shuffled(len(data), seed).tolist()
    good: list[int] = []
    bad: Unreadable = {}
    while order and len(good) < count:
        drawn, order = order[: count - len(good)], order[count - len(good) :]
        faults = unreadable(data, drawn)
        good += [index for index in drawn if index not in faults]
        bad |= {error.file: error.reason for error in faults.values()}
    if not good:
        raise none_readable(data.name, bad)
    return (data if len(good) == len(data) else choose(data, torch.tensor(good))), bad


def unreadable(data: Data, indices: Sequence[int]) -> dict[int, UnreadableImage]:
    """Read these images of a lazy set, and give the errors of those that cannot be read."""
    images = data.images
    if isinstance(images, Tensor):
        return {}

    def probe(index: int) -> Tensor:
        images[index]
        return torch.empty(0)  # a thousand whole photographs need not be held

    found = in_threads(probe, indices, READERS if isinstance(images, FileImages) else 1)
    return {index: x for index, x in zip(indices, found, strict=True) if isinstance(x, UnreadableImage)}


def unreadable_files(data: Data, indices: Sequence[int] | None = None) -> Unreadable:
    """Which files, of these images or of all, cannot be read, and why; each is read to know."""
    faults = unreadable(data, range(len(data)) if indices is None else indices)
    return {error.file: error.reason for error in faults.values()}


def none_readable(name: str, faults: Unreadable) -> DataError:
    file, reason = next(iter(faults.items()))
    which = "its only image cannot" if len(faults) == 1 else f"none of the {len(faults):,} images can"
    return DataError(f"{name}: {which} be read; {file}: {reason}")


def in_threads(
    read: Callable[[int], Tensor], indices: Iterable[int], threads: int
) -> Iterator[Tensor | UnreadableImage]:
    """What `read` gives or raises for each index, in the order of the indices; decoders leave Python's lock alone."""

    def attempt(index: int) -> Tensor | UnreadableImage:
        try:
            return read(index)
        except UnreadableImage as error:
            return error

    if threads == 1:
        yield from map(attempt, indices)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(attempt, indices)


def shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def in_its_place(
    images: Images, index: int, name: str, strict: bool = False, *, quiet: bool = False
) -> tuple[Tensor, int]:
    """Image `index` with its index, or those of the next one that can be read; with `strict` there must be no need.

    `quiet` is for those who come by the same images again.
    """
    faults: Unreadable = {}
    for further in range(len(images)):
        chosen = (index + further) % len(images)
        try:
            return images[chosen], chosen
        except UnreadableImage as error:
            if strict:  # of a kind that passes from a worker to its parent
                raise DataError(f"{error}; `spikecal datasets check` lists all such files") from error
            faults[error.file] = error.reason
            if not quiet:
                log.warning("%s: another image takes its place", error)
    raise none_readable(name, faults)


def looked_at(images: Images) -> list[Tensor]:
    """What tells a set from another: all of it in memory, and of files some that can be read."""
    if isinstance(images, Tensor):
        return [images]
    places = range(0, len(images), max(1, len(images) // LOOKED_AT))
    return [x for x in in_threads(images.__getitem__, places, 1) if isinstance(x, Tensor)]


def choose(data: Data, chosen: Tensor) -> Data:
    """Some of the images by their indices, in their stored order."""
    order = chosen.sort().values
    images: Images
    if isinstance(data.images, Tensor):
        images = data.images[order]
    elif isinstance(data.images, FileImages):
        images = ChosenFiles(data.images, order.tolist())
    else:
        images = Chosen(data.images, order.tolist())
    return replace(data, images=images, labels=None if data.labels is None else data.labels[order])


@dataclass(frozen=True)
class Chosen:
    """Some of the images of a lazy set."""

    images: Images
    order: Sequence[int]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[self.order[index]]


@dataclass(frozen=True)
class ChosenFiles(Chosen):
    """Some of the images of a set of files."""

    images: FileImages

    def fitted(self, index: int, card: Card) -> Tensor:
        return self.images.fitted(self.order[index], card)


def data_fingerprint(data: Data) -> str:
    """Of all labels and pixels, or of a few images where each is a file to read."""
    return fingerprint([*looked_at(data.images), *([] if data.labels is None else [data.labels])], len(data))
