"""A contact sheet: images side by side in one picture."""

import io
import math

import torch
from PIL import Image
from torch import Tensor

from spikecal.errors import DataError

SIDE = 4096  # pixels of the longest side of a sheet, unless a single image is larger
GAP = 1  # pixels between two images
SEEN = 96  # pixels: images are enlarged by the largest integer that fits into this


def draw_sheet(images: Tensor) -> tuple[bytes, int]:
    """A PNG file of the first images [N, 1 or 3, H, W], as many as fit into a square; and their number.

    Floats, whose black and white are unknown, are stretched: 1 % of the values are clipped at either end.
    """
    if images.shape[1] not in (1, 3):
        raise DataError(f"images of {images.shape[1]} channels cannot be drawn: a picture needs 1 or 3")
    zoom = max(1, SEEN // max(images.shape[2:]))
    height, width = (zoom * side for side in images.shape[2:])
    columns = max(1, min(math.ceil(math.sqrt(len(images) * height / width)), SIDE // (width + GAP)))
    rows = max(1, min(-(-len(images) // columns), SIDE // (height + GAP)))
    shown = images[: rows * columns]
    if shown.is_floating_point():
        shown = _stretched(shown)
    sheet = torch.full((3, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP), 255, dtype=torch.uint8)
    for index, image in enumerate(shown):
        top, left = index // columns * (height + GAP), index % columns * (width + GAP)
        sheet[:, top : top + height, left : left + width] = image.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
    file = io.BytesIO()
    Image.fromarray(sheet.permute(1, 2, 0).contiguous().numpy()).save(file, "png")
    return file.getvalue(), len(shown)


def _stretched(images: Tensor) -> Tensor:
    values = images.flatten().sort().values
    low, high = values[len(values) // 100], values[-1 - len(values) // 100]
    return ((images - low) / (high - low).clamp(min=1e-6) * 255).round().clamp(0, 255).to(torch.uint8)
