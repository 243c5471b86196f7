"""Shift and mirror images at random, one batch at a time, for fine-tuning and training."""

import torch
from torch import Tensor
from torch.nn import functional as F

Shifts = tuple[Tensor, Tensor, Tensor]


def draw_shifts(count: int, pad: int, generator: torch.Generator) -> Shifts:
    """Top and left corner in the padded image, and whether to flip, each [count, 1]."""
    top = torch.randint(0, 2 * pad + 1, (count, 1), generator=generator)
    left = torch.randint(0, 2 * pad + 1, (count, 1), generator=generator)
    return top, left, torch.rand((count, 1), generator=generator) < 0.5


def cropped(padded: Tensor, size: tuple[int, int], shifts: Shifts) -> Tensor:
    """Cut `size` at its corner from each padded image [N, C, H + 2 pad, W + 2 pad], and flip some of them."""
    device = padded.device
    top, left, flip = (part.to(device) for part in shifts)
    height, width = size
    across = torch.arange(width, device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + torch.where(flip, across.flip(0), across)
    index = torch.arange(len(padded), device=device)
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def moved(images: Tensor, shift: float, flip: bool, seed: int) -> Tensor:
    """Images [N, C, H, W], each shifted by up to `shift` of its shorter side and perhaps flipped; others unchanged.

    Borders are filled by reflection. The same seed shifts all inputs of a network alike.
    """
    if images.ndim != 4 or not (shift or flip):
        return images
    height, width = images.shape[2:]
    pad = min(round(shift * min(height, width)), min(height, width) - 1)
    top, left, flipped = draw_shifts(len(images), pad, torch.Generator().manual_seed(seed))
    padded = F.pad(images, (pad,) * 4, mode="reflect")
    return cropped(padded, (height, width), (top, left, flipped & flip))
