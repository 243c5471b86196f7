"""Augmentations: torchvision's for single images, and crop and flip for whole batches of stored pixels."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.calibration.augment import Shifts, cropped
from spikecal.data.card import Card
from spikecal.data.prepare import prepare
from spikecal.errors import ConfigError, DataError
from spikecal.training.recipes import Recipe
from spikecal.vision import vision

PAD_MODES = {"crop": "constant", "reflect-crop": "reflect"}
BATCHED = frozenset({*PAD_MODES, "flip"})  # what works on whole batches


def crop_and_flip(images: Tensor, recipe: Recipe, shifts: Shifts) -> Tensor:
    """Images [N, C, H, W] on any device, each cropped after padding and flipped by `recipe` and `shifts`."""
    mode = next((PAD_MODES[name] for name in recipe.augment if name in PAD_MODES), None)
    if mode is None and "flip" not in recipe.augment:
        return images
    height, width = images.shape[2:]
    top, left, flip = shifts
    if mode is None:
        padded, top, left = images, torch.zeros_like(top), torch.zeros_like(left)
    elif mode == "reflect":
        if recipe.pad >= min(height, width):
            raise ConfigError(f"images of {height}×{width} cannot be padded with {recipe.pad} reflected pixels")
        padded = F.pad(images.float(), (recipe.pad,) * 4, mode="reflect").to(images.dtype)
    else:
        padded = F.pad(images, (recipe.pad,) * 4)
    return cropped(padded, (height, width), (top, left, flip & ("flip" in recipe.augment)))


def shrunk(images: Tensor, scale: float) -> Tensor:
    """Images [N, C, H, W] resized by `scale`, rounded to pixels."""
    if scale == 1:
        return images
    size = [max(1, round(side * scale)) for side in images.shape[2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True)


class ImageTransform:
    """Turns a stored image [C, H, W] into a training image: fitted, augmented, normalised, with Cutout last.

    Random numbers come from torch's default generator, as in torchvision.
    """

    def __init__(self, recipe: Recipe, card: Card, size: tuple[int, int]) -> None:
        self.card, self.size = card, size
        self.fits = "resized-crop" not in recipe.augment
        v2 = _transforms(recipe)
        self.steps = [_step(v2, name, recipe, size) for name in recipe.augment if name != "cutout"]
        self.cutout = cutout(recipe.hole, size) if "cutout" in recipe.augment else None

    def __call__(self, image: Tensor, name: str) -> Tensor:
        if image.shape[-2:] != self.size:
            if self.card.size is None:
                raise DataError(f"{name}: images differ in size, but {self.card.name} has no input size")
            if self.fits:
                image = self._fitted(image, name)
        for step in self.steps:
            image = step(image)
        image = prepare(image[None], replace(self.card, size=self.size), name)[0]
        return image if self.cutout is None else self.cutout(image)

    def _fitted(self, image: Tensor, name: str) -> Tensor:
        """Fit as for evaluation, but keep stored pixels."""
        fitted = prepare(image[None], Card(name=self.card.name, size=self.size, crop=self.card.crop), name)[0]
        return (fitted * 255).round().to(torch.uint8) if image.dtype == torch.uint8 else fitted


def cutout(hole: int, size: tuple[int, int]) -> Any:
    """DeVries and Taylor's Cutout: a square of mean pixels around a random centre, clipped at the border.

    torchvision's RandomErasing keeps its square inside the image, but the paper found it important that Cutout's is
    not, so the image gets a margin of half a square, which is removed afterwards.
    """
    v2 = vision("torchvision.transforms.v2")
    height, width = size
    margin = -(-hole // 2)
    share = hole * hole / ((height + 2 * margin) * (width + 2 * margin))
    erase = v2.RandomErasing(p=1, scale=(share, share), ratio=(1, 1), value=0)
    return v2.Compose([v2.Pad(margin), erase, v2.CenterCrop(size)])


def _transforms(recipe: Recipe) -> Any:
    try:
        return vision("torchvision.transforms.v2")
    except ConfigError as error:
        raise ConfigError(
            f"the augmentations {', '.join(recipe.augment)} need torchvision, which is not installed: "
            f"pip install torchvision, or use the recipe quick"
        ) from error


def _step(v2: Any, name: str, recipe: Recipe, size: tuple[int, int]) -> Any:
    if name == "resized-crop":
        return v2.RandomResizedCrop(size, antialias=True)
    if name in PAD_MODES:
        return v2.RandomCrop(size, padding=recipe.pad, padding_mode=PAD_MODES[name])
    if name == "flip":
        return v2.RandomHorizontalFlip()
    if name == "colour-jitter":
        return v2.ColorJitter(*recipe.jitter)
    policy = {"autoaugment-cifar10": "cifar10", "autoaugment-imagenet": "imagenet"}[name]
    # AutoAugment takes bytes only
    return v2.Compose([v2.ToDtype(torch.uint8, scale=True), v2.AutoAugment(v2.AutoAugmentPolicy(policy))])
