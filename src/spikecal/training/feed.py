"""Batches of training images. Their choice and augmentation depend on (seed, epoch, step) and nothing else."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from spikecal.calibration.augment import draw_shifts
from spikecal.data.card import Card
from spikecal.data.images import choose, in_its_place, shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import Data
from spikecal.errors import ConfigError, DataError
from spikecal.ranks import current
from spikecal.tensors import channels_last
from spikecal.training.augment import BATCHED, ImageTransform, crop_and_flip, shrunk
from spikecal.training.recipes import DetectionRecipe, Recipe


class Feed:
    """The training images of a run, shuffled for every epoch."""

    def __init__(
        self, data: Data, card: Card, recipe: Recipe, device: torch.device, workers: int = 1, strict: bool = False
    ) -> None:
        if isinstance(recipe, DetectionRecipe):
            raise ConfigError("this recipe is for detectors: choose one for classifiers")
        if data.labels is None:
            raise DataError(f"{data.name} has no labels: training needs them")
        if recipe.batch > len(data):
            raise ConfigError(f"{data.name} has {len(data):,} images to train on, fewer than a batch of {recipe.batch}")
        self.data, self.labels, self.card, self.recipe, self.device = data, data.labels, card, recipe, device
        self.name = card.name
        self.steps = len(data) // recipe.batch
        self.workers, self.strict = workers, strict
        size = card.size or tuple(self._first().shape[-2:])
        whole = isinstance(data.images, Tensor) and data.images.shape[-2:] == size
        if whole and BATCHED.issuperset(recipe.augment):
            self.transform = None
        else:
            self.transform = ImageTransform(recipe, card, (size[0], size[1]))

    def examples(self) -> list[Tensor]:
        """Two images of each size that the network will get, without augmentation."""
        full = prepare(self._first()[None], self.card, self.data.name).repeat(2, 1, 1, 1).to(self.device)
        return [shrunk(full, scale) for scale in {1.0, *self.recipe.scales}]

    def _first(self) -> Tensor:
        return in_its_place(self.data.images, 0, self.data.name, self.strict)[0]

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images [batch, C, H, W] and labels of the epoch's steps from `first` on."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data), generator=generator)[: self.steps * self.recipe.batch]
        if self.transform is None:
            found = self._whole(order, generator, first)
        else:
            found = self._one_by_one(self.transform, order, epoch, first)
        for images, labels in found:
            yield shrunk(images, self.recipe.scale(epoch)), labels

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy."""
        images, labels = batch
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            outputs = logits(model(channels_last(images)), self.name)
        return F.cross_entropy(outputs.float(), labels, label_smoothing=self.recipe.label_smoothing)

    def _whole(self, order: Tensor, generator: torch.Generator, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        images = self.data.images
        assert isinstance(images, Tensor)
        own = own_share(self.recipe.batch)
        for step, chosen in enumerate(order.split(self.recipe.batch)):
            top, left, flip = draw_shifts(len(chosen), self.recipe.pad, generator)
            if step >= first:  # skipped steps still draw their random numbers
                chosen, shifts = chosen[own], (top[own], left[own], flip[own])
                batch = crop_and_flip(images[chosen].to(self.device), self.recipe, shifts)
                yield prepare(batch, self.card, self.data.name), self.labels[chosen].to(self.device)

    def _one_by_one(
        self, transform: ImageTransform, order: Tensor, epoch: int, first: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Epoch(self.data, self.labels, transform, self.recipe.seed, epoch, self.strict),
            batch_sampler=own_batches(order, self.recipe.batch, first),
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        for images, labels in loader:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def own_share(batch: int) -> slice:
    """Which images of a batch this rank trains on."""
    ranks = current()
    if batch < ranks.count:
        raise ConfigError(f"a batch of {batch} is too small for {ranks.count} ranks: each needs at least one image")
    share = ranks.share(batch)
    return slice(share.start, share.stop)


def own_batches(order: Tensor, batch: int, first: int) -> list[list[int]]:
    """This rank's images of each batch, from the batch `first` on."""
    own = own_share(batch)
    return [chosen[own].tolist() for chosen in order.split(batch)[first:]]


def logits(outputs: Any, name: str) -> Tensor:
    """The output of a classifier, checked to be one."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        found = f"a tensor of {outputs.ndim} dimensions" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(
            f"{name} gives {found} in training: only networks with a single output of classes can be trained"
        )
    return outputs


class _Epoch(Dataset[tuple[Tensor, Tensor]]):
    """Augmented images of one epoch, each with its own seed: workers and interruptions change nothing.

    An unreadable image is replaced by the next readable one; with `strict` it is an error.
    """

    def __init__(
        self, data: Data, labels: Tensor, transform: ImageTransform, seed: int, epoch: int, strict: bool
    ) -> None:
        self.data, self.labels, self.transform, self.seed, self.epoch = data, labels, transform, seed, epoch
        self.strict = strict

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        again = self.epoch > 0  # the first epoch reported unreadable images
        image, found = in_its_place(self.data.images, index, self.data.name, self.strict, quiet=again)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mixed(self.seed, self.epoch, index))
            return self.transform(image, self.data.name), self.labels[found]


def mixed(*numbers: int) -> int:
    """One seed from several numbers; similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def hold_out(data: Data, count: int, seed: int) -> tuple[Data, Data | None]:
    """`data` without `count` images drawn by `seed`, and those images."""
    if count == 0:
        return data, None
    if not 0 < count < len(data):
        raise ConfigError(f"{count:,} of the {len(data):,} images of {data.name} cannot be held out: hold out fewer")
    order = shuffled(len(data), seed)
    return choose(data, order[count:]), choose(data, order[:count])
