"""From stored images to what a network takes: resized, cropped, normalised as its card says."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from spikecal.data.card import Card
from spikecal.data.sources import Data
from spikecal.errors import DataError


class Prepared(Dataset[Tensor]):
    """The images of `data` as the network of `card` takes them: item `i` is [C, H, W] float."""

    def __init__(self, data: Data, card: Card) -> None:
        self.data, self.card = data, card

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        return prepare(self.data.images[index][None], self.card, self.data.name)[0]

    def batches(self, size: int) -> Iterator[Tensor]:
        """The images in order, [n, C, H, W] with n = `size` but for the last."""
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            if isinstance(self.data.images, Tensor):
                yield prepare(self.data.images[start:stop], self.card, self.data.name)
                continue
            images = [self[i] for i in range(start, stop)]
            if len({image.shape for image in images}) > 1:
                raise DataError(f"{self.data.name}: images differ in size and {self.card.name} has no input size")
            yield torch.stack(images)


class Loader:
    """Batches (images, labels) of a labelled set, over and over in the same order."""

    def __init__(self, data: Data, card: Card, batch: int) -> None:
        if data.labels is None:
            raise DataError(f"{data.name} has no labels: accuracy needs them")
        self.prepared, self.labels, self.batch = Prepared(data, card), data.labels, batch

    def __len__(self) -> int:
        return -(-len(self.prepared) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.prepared.batches(self.batch), self.labels.split(self.batch), strict=True)


def prepare(images: Tensor, card: Card, name: str) -> Tensor:
    """Images [N, C, H, W], uint8 or float in 0..1, as (x - mean) / std of the card's size: float32."""
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    if pixels.shape[1] == 1 and card.channels == 3:
        pixels = pixels.expand(-1, 3, -1, -1)
    if card.channels is not None and pixels.shape[1] != card.channels:
        raise DataError(f"{name}: images have {pixels.shape[1]} channels, {card.name} takes {card.channels}")
    if card.size is not None:
        pixels = _fit(pixels, card.size, card.crop)
    if card.mean is None or card.std is None:
        return pixels.contiguous()
    if float(pixels.min()) < -0.01 or float(pixels.max()) > 1.01:
        raise DataError(
            f"{name}: float images must be in 0..1, these reach from {float(pixels.min()):.3g} to "
            f"{float(pixels.max()):.3g}: leave the normalisation to {card.name}'s card"
        )
    mean = torch.tensor(card.mean, dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)
    std = torch.tensor(card.std, dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)
    return (pixels - mean) / std


def _fit(pixels: Tensor, size: tuple[int, int], crop: float) -> Tensor:
    """Scale so that the central `size` is `crop` of the image along its tighter side, then cut it out."""
    height, width = pixels.shape[-2:]
    if height * width == 0:
        raise DataError(f"an image of {height}×{width} pixels cannot be resized")
    if (height, width) == size:
        return pixels
    scale = max(size[0] / height, size[1] / width) / crop
    scaled = (max(size[0], round(height * scale)), max(size[1], round(width * scale)))
    if scaled != (height, width):
        pixels = F.interpolate(pixels, scaled, mode="bilinear", antialias=True, align_corners=False)
    top, left = (scaled[0] - size[0]) // 2, (scaled[1] - size[1]) // 2
    return pixels[..., top : top + size[0], left : left + size[1]]
