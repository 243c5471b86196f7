"""Resize and crop as in ImageNet's evaluation, for tensors and opened image files alike."""

from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from spikecal.data.card import Card
from spikecal.errors import DataError

LONGEST = 16  # an image this many times longer than the card's shape is cropped before resizing, to bound memory
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

Size = tuple[int, int]  # height, width
Box = tuple[int, int, int, int]  # top, left, bottom, right


def fit_image(image: Image.Image, card: Card) -> Image.Image:
    """An opened image in the card's size."""
    first, scaled, last = plan((image.height, image.width), card)
    image = _cut(image, first)
    if scaled != (image.height, image.width):
        image = image.resize((scaled[1], scaled[0]), FILTERS[card.interpolation])
    return _cut(image, last)


def fit_tensor(pixels: Tensor, card: Card) -> Tensor:
    """Floats [N, C, H, W] in the card's size; values stay within those of the input."""
    first, scaled, last = plan((pixels.shape[-2], pixels.shape[-1]), card)
    pixels = pixels[..., first[0] : first[2], first[1] : first[3]]
    if scaled != (pixels.shape[-2], pixels.shape[-1]):
        low, high = pixels.aminmax()
        pixels = F.interpolate(pixels, scaled, mode=card.interpolation, antialias=True, align_corners=False)
        pixels = pixels.clamp(low, high)  # bicubic overshoots at edges
    return pixels[..., last[0] : last[2], last[1] : last[3]]


def plan(size: Size, card: Card) -> tuple[Box, Size, Box]:
    """The region to cut from an image of `size`, the size to resize it to, and the region to cut from the result.

    The image is scaled until it covers the card's size over its crop, sides rounded down as torchvision and timm do,
    and its middle is kept. The first region is the whole image except for extremely long ones.
    """
    height, width = size
    if card.size is None or size == card.size:
        return (0, 0, height, width), size, (0, 0, height, width)
    if height * width == 0:
        raise DataError(f"an image of {height}×{width} pixels cannot be resized")
    rows, columns = card.size
    cut = min(height, LONGEST * -(-width * rows // columns)), min(width, LONGEST * -(-height * columns // rows))
    first = _middle(size, cut)
    # The small term is for crops such as 224 / 232: their quotient must not be rounded down to 231.
    tall, wide = int(rows / card.crop + 1e-6), int(columns / card.crop + 1e-6)
    if wide * cut[0] <= tall * cut[1]:
        scaled = tall, max(wide, int(tall * cut[1] / cut[0]))
    else:
        scaled = max(tall, int(wide * cut[0] / cut[1])), wide
    return first, scaled, _middle(scaled, card.size)


def _middle(size: Size, inner: Size) -> Box:
    top, left = (round((whole - part) / 2) for whole, part in zip(size, inner, strict=True))
    return top, left, top + inner[0], left + inner[1]


def _cut(image: Image.Image, box: Box) -> Image.Image:
    if box == (0, 0, image.height, image.width):
        return image
    return image.crop((box[1], box[0], box[3], box[2]))
