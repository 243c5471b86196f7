"""Turn stored images into a network's inputs: resized, cropped and normalised by its card."""

import logging
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Dataset

from spikecal.data.card import Card
from spikecal.data.fit import fit_tensor
from spikecal.data.images import READERS, Data, FileImages, Unreadable, UnreadableImage, in_threads, none_readable
from spikecal.errors import DataError
from spikecal.memory import free_memory

BYTES_PER_PIXEL = 12  # as floats, resized, and normalised
EXACT = 0.01  # how far floats may be outside 0..1 without a warning
NEAR = 0.5  # and with one: filters overshoot, but normalised images go further
NORMAL = 10.0  # larger values are unlikely in normalised images, for a network without a card

log = logging.getLogger(__name__)


class Prepared(Dataset[Tensor]):
    """The images of `data`, normalised for the network of `card`: item `i` is [C, H, W] float."""

    def __init__(self, data: Data, card: Card) -> None:
        self.data, self.card = data, card
        if isinstance(data.images, Tensor) and data.images.is_floating_point():
            _check_range(data.images, card, data.name)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        return prepare(self._stored(index)[None], self.card, self.data.name)[0]

    def batches(self, size: int, unreadable: Unreadable | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The images in order, `size` at a time, and their indices: [n, C, H, W] and [n].

        Unreadable images are left out and entered in `unreadable`; without it, they are an error.
        """
        size = min(size, self._most())
        for start in range(0, len(self), size):
            indices = range(start, min(start + size, len(self)))
            if isinstance(self.data.images, Tensor):
                stored, kept = self.data.images[start : indices.stop], list(indices)
            else:
                read = self._read(indices, unreadable)
                kept = list(read)
                stored = self._stack(list(read.values()))
            if kept:
                yield prepare(stored, self.card, self.data.name), torch.tensor(kept)

    def _most(self) -> int:
        """How many images of the card's size fit into memory as resized floats; the card may come from a file."""
        if self.card.size is None:
            return len(self)
        needed = BYTES_PER_PIXEL * math.prod(self.card.size) * (self.card.channels or 3)
        most = free_memory() // needed
        if most == 0:
            raise DataError(f"{self.data.name}: an image of {self.card.name}'s size needs {needed:,} bytes of memory, "
                            f"more than is free")  # fmt: skip
        return most

    def _stored(self, index: int) -> Tensor:
        images = self.data.images
        return images.fitted(index, self.card) if isinstance(images, FileImages) else images[index]

    def _read(self, indices: range, unreadable: Unreadable | None) -> dict[int, Tensor]:
        """Images by index; files are read by several threads, a user's own objects by one."""
        threads = READERS if isinstance(self.data.images, FileImages) else 1
        read = {}
        for index, found in zip(indices, in_threads(self._stored, indices, threads), strict=True):
            if not isinstance(found, UnreadableImage):
                read[index] = found
            elif unreadable is None:
                raise found
            else:
                unreadable[found.file] = found.reason
        return read

    def _stack(self, images: list[Tensor]) -> Tensor:
        if len({image.shape for image in images}) > 1:
            if self.card.size is None:
                raise DataError(f"{self.data.name}: images differ in size, but {self.card.name} has no input size")
            images = [fit_tensor(_floats(image[None]), self.card)[0] for image in images]
        return torch.stack(images) if images else torch.empty(0)


class PreparedPairs(Dataset[tuple[Tensor, int]]):
    """The same with the label of each image, for pipelines that learn from them."""

    def __init__(self, data: Data, card: Card) -> None:
        if data.labels is None:
            raise DataError(f"{data.name} has no labels, and this pipeline learns from them")
        self.prepared, self.labels = Prepared(data, card), data.labels

    def __len__(self) -> int:
        return len(self.prepared)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.prepared[index], int(self.labels[index])


class Loader:
    """Batches (images, labels) of a labelled dataset, repeatable in the same order.

    Unreadable images are left out, and `unreadable` tells which and why; with `strict` they are an error.
    """

    def __init__(self, data: Data, card: Card, batch: int, strict: bool = False) -> None:
        if data.labels is None:
            raise DataError(f"{data.name} has no labels: accuracy needs them")
        self.prepared, self.labels, self.batch, self.strict = Prepared(data, card), data.labels, batch, strict
        self.unreadable: Unreadable = {}

    def __len__(self) -> int:
        return -(-len(self.prepared) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, indices in self.prepared.batches(self.batch, None if self.strict else self.unreadable):
            yield images, self.labels[indices]
        if len(self.unreadable) == len(self.prepared):
            raise none_readable(self.prepared.data.name, self.unreadable)


def prepare(images: Tensor, card: Card, name: str) -> Tensor:
    """Images [N, C, H, W], uint8 or float in 0..1, as (x - mean) / std of the card's size: float32.

    Vectors, signals and volumes are not resized.
    """
    pixels = _floats(images)
    if pixels.ndim == 4 and pixels.shape[1] == 1 and card.channels == 3:
        pixels = pixels.expand(-1, 3, -1, -1)
    if card.channels is not None and pixels.shape[1] != card.channels:
        raise DataError(f"{name}: images have {pixels.shape[1]} channels, but {card.name} takes {card.channels}")
    pixels = fit_tensor(pixels, card) if card.size is not None else pixels
    if card.mean is None or card.std is None:
        return pixels.contiguous()
    if images.dtype != torch.uint8:
        _check_normalised(pixels, card, name)
    mean, std = (torch.tensor(values, dtype=pixels.dtype, device=pixels.device) for values in (card.mean, card.std))
    along = (-1, *(1,) * (pixels.ndim - 2))
    return (pixels - mean.view(along)) / std.view(along)


def _floats(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _check_range(images: Tensor, card: Card, name: str) -> None:
    """Warn about floats that are probably wrong for the network; raise for those that certainly are."""
    low, high = (float(x) for x in images.aminmax())
    if card.mean is not None:
        _check_normalised(images, card, name)
        if low < -EXACT or high > 1 + EXACT:
            log.warning("%s: float images should be in 0..1, but these range from %.3g to %.3g", name, low, high)
    elif max(-low, high) > NORMAL:
        log.warning(
            "%s: images range from %.3g to %.3g and are used unchanged, as %s does not state its normalisation",
            name, low, high, card.name,
        )  # fmt: skip


def _check_normalised(pixels: Tensor, card: Card, name: str) -> None:
    low, high = (float(x) for x in pixels.aminmax())
    if low < -NEAR or high > 1 + NEAR:
        raise DataError(
            f"{name}: float images must be in 0..1, but these range from {low:.3g} to {high:.3g}: leave normalisation "
            f"to {card.name}'s card"
        )
