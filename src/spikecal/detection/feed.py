"""Batches of images and boxes for training. Their content depends on (seed, epoch, step) and nothing else."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spikecal.data.folder import ImageFiles
from spikecal.data.images import in_its_place
from spikecal.detection.boxes import BoxData
from spikecal.errors import ConfigError
from spikecal.training.feed import mixed, own_batches
from spikecal.training.recipes import DetectionRecipe
from spikecal.vision import vision
from spikecal.workdir import fingerprint

SMALLEST = 2.0  # pixels: boxes that a crop leaves smaller are dropped

Item = tuple[Tensor, dict[str, Tensor]]
Batch = list[Item]


class BoxFeed:
    """The training images of a run, shuffled for every epoch."""

    def __init__(
        self,
        data: BoxData,
        name: str,
        recipe: DetectionRecipe,
        device: torch.device,
        workers: int = 0,
        strict: bool = False,
    ) -> None:
        if recipe.batch > len(data):
            have = "1 image" if len(data) == 1 else f"{len(data):,} images"
            raise ConfigError(f"{data.name} has {have} to train on, fewer than a batch of {recipe.batch}")
        self.data, self.name, self.recipe, self.device, self.workers = data, name, recipe, device, workers
        self.steps, self.strict = len(data) // recipe.batch, strict
        self.transform = _transform(recipe)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The epoch's batches from step `first` on."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data), generator=generator)[: self.steps * self.recipe.batch]
        yield from DataLoader(
            _Epoch(self.data, self.transform, self.recipe.seed, epoch, self.strict),
            batch_sampler=own_batches(order, self.recipe.batch, first),
            num_workers=self.workers,
            collate_fn=list,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the detector's losses."""
        images = [image.to(self.device) for image, _ in batch]
        targets = [{key: value.to(self.device) for key, value in target.items()} for _, target in batch]
        losses: dict[str, Tensor] = model(images, targets)
        return torch.stack(list(losses.values())).sum()

    def fingerprint(self) -> str:
        """A hash of all boxes and file names; the images are too many to read."""
        tensors = [t for target in self.data.targets for t in (target.boxes, target.labels, target.ignored)]
        images = self.data.images
        names = [path.rpartition("/")[2] for path in images.paths] if isinstance(images, ImageFiles) else []
        return fingerprint(tensors, [names, dict(self.data.classes)])


class _Epoch(Dataset[Item]):
    """Augmented images of one epoch, each with its own seed: workers and interruptions change nothing.

    An unreadable image is replaced by the next readable one; with `strict` it is an error.
    """

    def __init__(self, data: BoxData, transform: Any, seed: int, epoch: int, strict: bool) -> None:
        self.data, self.transform, self.seed, self.epoch, self.strict = data, transform, seed, epoch, strict

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Item:
        again = self.epoch > 0  # the first epoch reported unreadable images
        image, found = in_its_place(self.data.images, index, self.data.name, self.strict, quiet=again)
        target = self.data.targets[found]
        learned = ~target.ignored
        tensors = vision("torchvision.tv_tensors")
        height, width = image.shape[-2:]
        boxes = tensors.BoundingBoxes(target.boxes[learned], format="XYXY", canvas_size=(height, width))
        labelled = {"boxes": boxes, "labels": target.labels[learned]}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mixed(self.seed, self.epoch, index))
            image, labelled = self.transform(tensors.Image(image), labelled)
        return image.as_subclass(Tensor), {key: value.as_subclass(Tensor) for key, value in labelled.items()}


def _transform(recipe: DetectionRecipe) -> Any:
    """torchvision's transforms of images with boxes, in the recipe's order."""
    v2 = vision("torchvision.transforms.v2")
    known = {
        "flip": lambda: v2.RandomHorizontalFlip(),
        "vertical-flip": lambda: v2.RandomVerticalFlip(),
        "colour-jitter": lambda: v2.ColorJitter(*recipe.jitter),
        "zoom-out": lambda: v2.RandomZoomOut(fill=127, side_range=(1.0, 2.0)),
        "iou-crop": lambda: v2.RandomIoUCrop(min_scale=0.5),
    }
    steps = [known[name]() for name in recipe.augment]
    clean = [v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(min_size=SMALLEST)]
    return v2.Compose([*steps, *clean, v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])
