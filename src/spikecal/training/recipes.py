"""Recipes: how a network is trained. The paper's and short ones for a CPU are presets."""

import dataclasses
import math
import typing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from spikecal.errors import ConfigError
from spikecal.settings import LARGEST, check_types, from_toml, preset

Schedule = Literal["cosine", "one-cycle", "steps"]
Optimiser = Literal["sgd", "adamw"]
Precision = Literal["float32", "bfloat16"]
CROPS = ("crop", "reflect-crop", "resized-crop")
AUGMENTATIONS = (*CROPS, "flip", "autoaugment-cifar10", "autoaugment-imagenet", "colour-jitter", "cutout")
WITH_BOXES = ("flip", "vertical-flip", "colour-jitter", "zoom-out", "iou-crop")
IMAGENET_SIDE = 128  # images of at least this size use ImageNet's recipe

START, END = 25.0, 1e4  # one-cycle begins at lr/25 and ends at a 10,000th of that, as in torch's scheduler


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD over `epochs`; the last batch of an epoch is dropped if it is not full.

    `lr` is the highest learning rate, `warm_up` the share of all steps over which it rises. `ema` is the decay of the
    averaged weights and `clip` the largest norm of a gradient; 0 turns them off. `augment` are names, applied in this
    order, except Cutout, which follows normalisation. `pad` belongs to the crops, `hole` (its side in pixels) to
    Cutout, `jitter` (brightness, contrast, saturation, hue) to the colour jitter. With the `precision` bfloat16 the
    network runs under torch's autocast; weights, gradients and the loss stay float32. `scales` trains on smaller images
    first, which is cheaper: the epochs are divided evenly among them, and each is a share of the full side.
    """

    SCHEDULES: ClassVar[tuple[str, ...]] = ("cosine", "one-cycle")
    AUGMENTATIONS: ClassVar[tuple[str, ...]] = AUGMENTATIONS

    epochs: int
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Schedule = "cosine"
    warm_up: float = 0.0
    label_smoothing: float = 0.0
    ema: float = 0.0
    clip: float = 0.0
    precision: Precision = "float32"
    augment: tuple[str, ...] = ("crop", "flip")
    pad: int = 4
    hole: int = 16
    scales: tuple[float, ...] = ()
    jitter: tuple[float, ...] = (0.2, 0.2, 0.2, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "hole"):
            _demand(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("weight_decay", "clip", "pad", "seed"):
            _demand(0 <= getattr(self, name) < math.inf, name, "0 or more", getattr(self, name))
        for name in ("epochs", "batch", "hole", "pad", "seed"):
            _demand(getattr(self, name) < LARGEST, name, "below 2**63", getattr(self, name))
        for name in ("momentum", "warm_up", "label_smoothing", "ema"):
            _demand(0 <= getattr(self, name) < 1, name, "in [0, 1)", getattr(self, name))
        _demand(0 < self.lr < math.inf, "lr", "above 0", self.lr)
        _demand(not self.nesterov or self.momentum > 0, "momentum", "above 0 with nesterov", self.momentum)
        precisions = typing.get_args(Precision)
        _demand(self.precision in precisions, "precision", " or ".join(precisions), self.precision)
        _demand(self.schedule in self.SCHEDULES, "schedule", f"one of {', '.join(self.SCHEDULES)}", self.schedule)
        _demand(
            len(self.jitter) == 4 and all(0 <= j < math.inf for j in self.jitter) and self.jitter[3] <= 0.5,
            "jitter",
            "brightness, contrast, saturation and hue, 0 or more, the last at most 0.5",
            self.jitter,
        )
        _demand(all(0 < s <= 1 for s in self.scales), "scales", "shares of a side, in (0, 1]", self.scales)
        unknown = [name for name in self.augment if name not in self.AUGMENTATIONS]
        if unknown:
            raise ConfigError(f"there is no augmentation {unknown[0]!r}: choose from {', '.join(self.AUGMENTATIONS)}")
        if len(set(self.augment)) < len(self.augment) or len(set(CROPS) & set(self.augment)) > 1:
            raise ConfigError(f"augment may name at most one crop, and nothing twice, not {', '.join(self.augment)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in TOML, checkpoints and cards."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, settings: dict[str, Any], base: "Recipe | None" = None) -> "Recipe":
        """From plain data; `preset` names the recipe that the other settings change, by default `base`."""
        settings = dict(settings)
        start = base if "preset" not in settings else resolve(settings.pop("preset"))
        if start is None:
            raise ConfigError(f"a recipe needs a preset to start from: {', '.join(PRESETS)}")
        return start.changed(**settings)

    @classmethod
    def from_toml(cls, path: str | Path, base: "Recipe | None" = None) -> "Recipe":
        """From a file such as `docs/reference/recipe.toml`."""
        return from_toml(path, lambda settings: cls.from_dict(settings, base))

    def changed(self, **settings: Any) -> Self:
        """The same with other settings, their types checked: `QUICK.changed(epochs=5)`."""
        check_types(type(self), settings, "recipe")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        return dataclasses.replace(self, **values)

    def scale(self, epoch: int) -> float:
        """The relative side of images in epoch 0 … `epochs` - 1."""
        return self.scales[epoch * len(self.scales) // self.epochs] if self.scales else 1.0

    def learning_rate(self, step: int, total: int) -> float:
        """The learning rate of step 0 … `total` - 1.

        cosine: lr (s + 1) / w for the w steps of warm-up, then lr (1 + cos(pi (s - w) / (total - w))) / 2.
        one-cycle: half a cosine from lr/25 up to lr, half a cosine down to lr/250,000.
        """
        if self.schedule == "cosine":
            warm = self.warm_up * total
            if step < warm:
                return self.lr * min(1.0, (step + 1) / warm)
            return self.lr * (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
        peak, first = self.warm_up * total - 1, self.lr / START
        if peak > 0 and step <= peak:
            return _half_cosine(first, self.lr, step / peak)
        peak = max(peak, 0.0)
        return _half_cosine(self.lr, first / END, (step - peak) / (total - 1 - peak) if total - 1 > peak else 0.0)


@dataclass(frozen=True, kw_only=True)
class DetectionRecipe(Recipe):
    """A recipe for detectors. With the schedule `steps`, the rate falls to a tenth after each epoch in `milestones`.

    `zoom-out` puts the image into a larger grey one, `iou-crop` takes a part that still contains boxes.
    """

    SCHEDULES: ClassVar[tuple[str, ...]] = (*Recipe.SCHEDULES, "steps")
    AUGMENTATIONS: ClassVar[tuple[str, ...]] = WITH_BOXES

    augment: tuple[str, ...] = ("flip",)
    optimiser: Optimiser = "sgd"
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _demand(self.optimiser in ("sgd", "adamw"), "optimiser", "sgd or adamw", self.optimiser)
        _demand(self.label_smoothing == 0, "label_smoothing", "0 for a detector", self.label_smoothing)
        _demand(self.precision == "float32", "precision", "float32 for a detector", self.precision)
        _demand(not self.scales, "scales", "empty for a detector", self.scales)
        rising = all(a < b for a, b in pairwise((0, *self.milestones)))
        _demand(rising, "milestones", "epochs in rising order", self.milestones)

    def learning_rate(self, step: int, total: int) -> float:
        """steps: lr (s + 1) / w for the w steps of warm-up, then lr / 10^(milestones passed)."""
        if self.schedule != "steps":
            return super().learning_rate(step, total)
        warm, epoch = self.warm_up * total, step * self.epochs / total
        rate = self.lr * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)
        return rate * min(1.0, (step + 1) / warm) if step < warm else rate


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)  # as torch computes it, to the bit


def _demand(holds: bool, name: str, wanted: str, value: Any) -> None:
    if not holds:
        raise ConfigError(f"a recipe's {name} must be {wanted}, not {value!r}")


CIFAR = Recipe(epochs=300, augment=("crop", "flip", "autoaugment-cifar10", "cutout"))
CIFAR_NOBN = dataclasses.replace(CIFAR, lr=0.005, weight_decay=1e-4)
IMAGENET = Recipe(
    epochs=120,
    batch=256,
    weight_decay=1e-4,
    label_smoothing=0.1,
    ema=0.999,
    augment=("resized-crop", "flip", "colour-jitter"),
)
QUICK = Recipe(epochs=28, lr=0.2, nesterov=True, schedule="one-cycle", warm_up=0.2, augment=("reflect-crop", "flip"))
QUICK_NOBN = dataclasses.replace(QUICK, epochs=24, lr=0.03, weight_decay=1e-4)
COCO = DetectionRecipe(  # for one GPU with two images; the paper has eight
    epochs=12, batch=2, lr=0.000625, weight_decay=1e-4, schedule="steps", milestones=(8, 11), warm_up=1 / 12
)
QUICK_DETECT = DetectionRecipe(
    epochs=24,
    batch=4,
    lr=1.5e-3,
    optimiser="adamw",
    weight_decay=0.02,
    schedule="one-cycle",
    warm_up=0.1,
    clip=10.0,
    augment=("flip", "vertical-flip", "colour-jitter"),
    jitter=(0.2, 0.2, 0.2, 0.0),
)

PRESETS: dict[str, Recipe] = {
    "cifar": CIFAR,
    "cifar-nobn": CIFAR_NOBN,
    "imagenet": IMAGENET,
    "quick": QUICK,
    "quick-nobn": QUICK_NOBN,
    "coco": COCO,
    "quick-detect": QUICK_DETECT,
}


def resolve(recipe: Recipe | str) -> Recipe:
    """A recipe, or the preset with that name."""
    return preset(recipe, Recipe, PRESETS, "recipe")


def paper_recipe(side: int, bn: bool) -> str:
    """The paper's preset for a network of this input size, with or without BN."""
    if side >= IMAGENET_SIDE:
        return "imagenet"
    return "cifar" if bn else "cifar-nobn"
