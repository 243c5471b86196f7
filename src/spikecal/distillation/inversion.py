"""Optimise one batch of images: the loss, the changes made to images meanwhile, and the starting point."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.distillation.teacher import Teacher, label_loss, scale
from spikecal.errors import ConfigError
from spikecal.settings import whole

Start = Literal["pink", "white"]
BETAS = (0.5, 0.9)  # of Adam: with so few iterations, gradients are soon out of date
SHARED = 0.8  # of the variance of a channel of pink noise
BOX = (0.3, 0.7)  # relative side of the box into which another image is put


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """How images are optimised; `statistics`, `labels`, `variation` and `energy` weight the parts of the loss.

    `mix` is the share of iterations in which images are mixed, `jitter` how far they are rolled, relative to a side;
    neither happens in the last `settle` of the iterations, so that the images themselves are matched.
    """

    iterations: int = 40
    lr: float = 0.1
    statistics: float = 1.0
    labels: float = 0.01
    variation: float = 0.1
    energy: float = 0.001
    jitter: float = 1 / 16
    flip: bool = True
    mix: float = 0.0
    settle: float = 0.5
    start: Start = "pink"

    def __post_init__(self) -> None:
        iterations = whole(self.iterations)
        if iterations is None or iterations < 1:
            raise ConfigError(f"iterations must be a positive integer, not {self.iterations!r}")
        if not isinstance(self.flip, bool):
            raise ConfigError(f"flip must be true or false, not {self.flip!r}")
        if self.start not in get_args(Start):
            raise ConfigError(f"start must be {' or '.join(get_args(Start))}, not {self.start!r}")
        for name in (field.name for field in fields(self) if field.type is float):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and name == "lr"):
                raise ConfigError(
                    f"{name} must be a {'positive' if name == 'lr' else 'non-negative'} number, not {value!r}"
                )
            if name in ("mix", "jitter", "settle") and value > 1:
                raise ConfigError(f"{name} must be a share from 0 to 1, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The parts of the loss on finished images, unweighted; `right` is the share recognised as their target class."""

    statistics: float | None
    labels: float | None
    right: float | None
    start: float | None  # the divergence of statistics before the first iteration


def noise(shape: Sequence[int], start: Start, generator: torch.Generator) -> Tensor:
    """Gaussian noise of mean 0 and variance 1. Pink: amplitudes fall as 1 / frequency, as in photographs, and
    channels share most of it."""
    white = torch.randn(tuple(shape), generator=generator)
    if start == "white":
        return white
    if shape[1] > 1:
        white = math.sqrt(SHARED) * white[:, :1] + math.sqrt(1 - SHARED) * white
    height, width = shape[-2:]
    rows, columns = torch.fft.fftfreq(height) * height, torch.fft.rfftfreq(width) * width
    frequency = (rows[:, None].square() + columns[None].square()).sqrt()
    spectrum = torch.fft.rfft2(white) / frequency.clamp(min=1)
    pink: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return (pink - pink.mean((0, 2, 3), keepdim=True)) / pink.std((0, 2, 3), keepdim=True).clamp(min=1e-6)


def bounds(teacher: Teacher, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Black and white in the units of optimisation; None if the card does not define pixels."""
    if teacher.card.mean is None:
        return None
    mean, std = scale(teacher.card, like)
    return -mean / std, (1 - mean) / std


@torch.enable_grad()
def optimise(
    teachers: Sequence[Teacher],
    labels: Tensor | None,
    shape: Sequence[int],
    settings: Inversion,
    generator: torch.Generator,
    advance: Callable[[float], None],
) -> tuple[Tensor, Losses]:
    """Images [N, C, H, W] in 0..1 (in the network's own units if its card has no mean), and their losses."""
    first = teachers[0]
    images = noise(shape, settings.start, generator).to(first.device, first.dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    mean, std = scale(first.card, images)
    limits = bounds(first, images)
    if limits is not None:
        images = images.clamp(*limits)
    labels = None if labels is None else labels.to(first.device)
    start = _losses(teachers, images * std + mean, labels, None).statistics
    if settings.iterations and any(t.norms or t.classes for t in teachers):
        images.requires_grad_(True)
        still = replace(settings, mix=0.0, jitter=0.0, flip=False)
        optimiser = torch.optim.Adam([images], lr=settings.lr, betas=BETAS)
        for iteration in range(settings.iterations):
            for group in optimiser.param_groups:
                group["lr"] = settings.lr * (1 + math.cos(math.pi * iteration / settings.iterations)) / 2
            settling = iteration >= (1 - settings.settle) * settings.iterations
            loss = _loss(teachers, images, mean, std, labels, still if settling else settings, generator)
            (images.grad,) = torch.autograd.grad(loss, images)
            optimiser.step()
            if limits is not None:
                with torch.no_grad():
                    images.clamp_(*limits)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise ConfigError(f"the loss is not finite after {iteration + 1} iterations: lower lr or the weights")
            advance(value)
    pixels = images.detach() * std + mean
    return pixels, _losses(teachers, pixels, labels, start)


def _loss(
    teachers: Sequence[Teacher], images: Tensor, mean: Tensor, std: Tensor, labels: Tensor | None,
    settings: Inversion, generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """The weighted loss on images that are randomly rolled, flipped and mixed."""
    seen, others, share = images, None, 0.0
    if settings.mix > 0 and float(torch.rand((), generator=generator)) < settings.mix and len(images) > 1:
        seen, others, share = mixed(images, generator)
    seen = moved(seen, settings, generator)
    total = settings.variation * total_variation(images) + settings.energy * images.square().mean()
    with_norms = sum(bool(teacher.norms) for teacher in teachers)
    with_classes = sum(teacher.classes == teachers[0].classes for teacher in teachers)
    for teacher in teachers:
        statistics, logits = teacher.divergence(seen * std + mean)
        if teacher.norms:
            total = total + settings.statistics * statistics / with_norms
        if labels is None or logits is None or teacher.classes != teachers[0].classes:
            continue
        entropy = label_loss(logits, labels).mean()
        if others is not None:
            entropy = (1 - share) * entropy + share * label_loss(logits, labels[others]).mean()
        total = total + settings.labels * entropy / with_classes
    return total


def moved(images: Tensor, settings: Inversion, generator: torch.Generator) -> Tensor:
    """Images rolled by up to `jitter` of a side, and flipped every other time."""
    reach = [int(settings.jitter * side) for side in images.shape[-2:]]
    shifts = [int(torch.randint(-r, r + 1, (), generator=generator)) for r in reach]
    images = images.roll(shifts, (-2, -1)) if any(shifts) else images
    if settings.flip and bool(torch.randint(2, (), generator=generator)):
        images = images.flip(-1)
    return images


def mixed(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Every image with a smaller copy of another in a box; also returns which, and its share of the area."""
    height, width = images.shape[-2:]
    low, high = BOX
    part = low + (high - low) * float(torch.rand((), generator=generator))
    rows, columns = max(1, round(part * height)), max(1, round(part * width))
    top = int(torch.randint(height - rows + 1, (), generator=generator))
    left = int(torch.randint(width - columns + 1, (), generator=generator))
    others = torch.arange(len(images)).roll(int(torch.randint(1, len(images), (), generator=generator)))
    small = F.interpolate(images[others], (rows, columns), mode="bilinear", antialias=True, align_corners=False)
    padding = (left, width - columns - left, top, height - rows - top)
    box = F.pad(torch.ones_like(small[:1, :1]), padding)
    return images * (1 - box) + F.pad(small, padding), others, rows * columns / (height * width)


def total_variation(images: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels."""
    down, right = images.diff(dim=-2), images.diff(dim=-1)
    return sum((part.square().mean() for part in (down, right) if part.numel()), images.new_zeros(()))


@torch.no_grad()
def _losses(teachers: Sequence[Teacher], pixels: Tensor, labels: Tensor | None, start: float | None) -> Losses:
    """Losses of the images themselves: the mean over the networks that have them."""
    found = [(teacher, *teacher.divergence(pixels)) for teacher in teachers]
    statistics = [float(value) for teacher, value, _ in found if teacher.norms]
    entropy, right = [], []
    for _, _, scores in found:
        if labels is not None and scores is not None and scores.shape[1] == teachers[0].classes:
            entropy.append(float(label_loss(scores, labels).mean()))
            right.append(float(scores.argmax(1).eq(labels).double().mean()))
    return Losses(statistics=_mean(statistics), labels=_mean(entropy), right=_mean(right), start=start)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
