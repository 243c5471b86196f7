"""Images and their labels, in memory or read on demand."""

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

LOOKED_AT = 16  # images in the fingerprint of a set of files
READERS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

Unreadable = dict[str, str]  # file -> reason


class UnreadableImage(DataError):
    """One image of a dataset cannot be read; the others can."""

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
    """Images read from files, in a card's size; several threads may ask at once."""

    def fitted(self, index: int, card: Card, /) -> Tensor:
        """Image `index` as uint8 [C, H, W], in the card's size and channels if it states them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Data:
    """Images as stored, before any normalisation; `labels` [N] if known.

    `distilled`: made from a network, for calibration but not for tests. `about` is what to know
    about figures measured on them, which tables state.
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
            raise DataError(f"{self.name}: labels must be non-negative integers")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The copy of a named dataset on this machine."""

    where: Path | None  # None: in the package
    images: Mapping[str, int] | None  # by split, if known
    verified: bool | None  # None: there is no checksum to compare with


def subset(data: Data, count: int | None, seed: int) -> Data:
    """`count` images drawn by `seed`, in their stored order; all of them if there are no more."""
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise DataError(f"the number of images must be at least 1, not {count}")
    return choose(data, shuffled(len(data), seed)[:count])


def drawn_last(data: Data, count: int, seed: int) -> Data:
    """`count` images that `subset`, and conversion, draw by the same `seed` only when they draw all of them."""
    return data if count >= len(data) else choose(data, shuffled(len(data), seed)[-count:])


def readable(data: Data, count: int, seed: int) -> tuple[Data, Unreadable]:
    """Like `subset`, but of readable images only; also returns the unreadable images that were drawn.

    Every drawn image is read once to check; datasets in memory are returned unchanged.
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
    """Read these images of a lazy dataset, and return the errors of the unreadable ones."""
    images = data.images
    if isinstance(images, Tensor):
        return {}

    def probe(index: int) -> Tensor:
        images[index]
        return torch.empty(0)  # no need to hold a thousand photographs

    found = in_threads(probe, indices, READERS if isinstance(images, FileImages) else 1)
    return {index: x for index, x in zip(indices, found, strict=True) if isinstance(x, UnreadableImage)}


def unreadable_files(data: Data, indices: Sequence[int] | None = None) -> Unreadable:
    """Which files, of these images or of all, cannot be read, and why; reads each to check."""
    faults = unreadable(data, range(len(data)) if indices is None else indices)
    return {error.file: error.reason for error in faults.values()}


def none_readable(name: str, faults: Unreadable) -> DataError:
    file, reason = next(iter(faults.items()))
    which = "its only image cannot" if len(faults) == 1 else f"none of the {len(faults):,} images can"
    return DataError(f"{name}: {which} be read; {file}: {reason}")


def in_threads(
    read: Callable[[int], Tensor], indices: Iterable[int], threads: int
) -> Iterator[Tensor | UnreadableImage]:
    """What `read` returns or raises for each index, in order; decoders release Python's lock."""

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
    """Image `index` with its index, or the next one that can be read; with `strict`, an unreadable image raises.

    `quiet` avoids repeating warnings about the same images.
    """
    faults: Unreadable = {}
    for further in range(len(images)):
        chosen = (index + further) % len(images)
        try:
            return images[chosen], chosen
        except UnreadableImage as error:
            if strict:  # an error that a worker can pass on to its parent
                raise DataError(f"{error}; `spikecal datasets check` lists all such files") from error
            faults[error.file] = error.reason
            if not quiet:
                log.warning("%s: using another image instead", error)
    raise none_readable(name, faults)


def looked_at(images: Images) -> list[Tensor]:
    """A fingerprint of a dataset: of all images in memory, or of some readable files."""
    if isinstance(images, Tensor):
        return [images]
    places = range(0, len(images), max(1, len(images) // LOOKED_AT))
    return [x for x in in_threads(images.__getitem__, places, 1) if isinstance(x, Tensor)]


def choose(data: Data, chosen: Tensor) -> Data:
    """Some images by their indices, in their stored order."""
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
    """Some images of a lazy dataset."""

    images: Images
    order: Sequence[int]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[self.order[index]]


@dataclass(frozen=True)
class ChosenFiles(Chosen):
    """Some images of a dataset of files."""

    images: FileImages

    def fitted(self, index: int, card: Card) -> Tensor:
        return self.images.fitted(self.order[index], card)


def data_fingerprint(data: Data) -> str:
    """A hash of all labels and pixels, or of a few images if each must be read from a file."""
    return fingerprint([*looked_at(data.images), *([] if data.labels is None else [data.labels])], len(data))
