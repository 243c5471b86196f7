"""PyTorch datasets and loaders: their images in any form, one at a time, and all of their labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from spikecal.data.arrays import as_inputs, from_arrays, from_labels
from spikecal.data.card import Card
from spikecal.data.folder import decode
from spikecal.data.images import Data
from spikecal.errors import DataError, SpikecalError, first_line
from spikecal.tensors import as_labels, as_tensor

GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of one channel
LABELS = ("targets", "labels")  # attributes in which datasets keep all labels


@dataclass(frozen=True, eq=False)  # comparing datasets is useless, and raises if they contain arrays
class DatasetImages:
    """The images of a map-style dataset whose items are, or begin with, an image: a tensor, an array or Pillow's."""

    name: str
    dataset: Any
    card: Card | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor:
        return as_image(f"{self.name}: item {index}", _item(self.name, self.dataset, index)[0], self.card)


def from_dataset(name: str, dataset: Any, labels: Any = None, card: Card | None = None) -> Data:
    """A map-style dataset, or a list, whose items are images or pairs of an image and its class."""
    if len(dataset) == 0:
        raise DataError(f"{name} holds no images")
    if labels is None:
        labels = _stored_labels(dataset)
        if labels is None and len(_item(name, dataset, 0)) > 1:  # only the items contain them
            labels = [int(_label(name, _item(name, dataset, i), i)) for i in range(len(dataset))]
    return Data(name=name, images=DatasetImages(name, dataset, card), labels=from_labels(name, labels))


def from_loader(name: str, loader: Iterable[Any], card: Card | None = None) -> Data:
    """A loader of batches. If it only stacks the items of a map-style dataset, these are read one at a time."""
    if isinstance(loader, DataLoader) and loader.collate_fn is default_collate:
        if not isinstance(loader.dataset, IterableDataset):
            return from_dataset(name, loader.dataset, None, card)
    images: list[Tensor] = []
    labels: list[Tensor] = []
    try:
        for batch in loader:
            parts = batch if isinstance(batch, list | tuple) else (batch,)
            images.append(torch.as_tensor(as_tensor(parts[0])))
            labels += [torch.as_tensor(as_labels(part)) for part in parts[1:2]]
        return from_arrays(name, torch.cat(images), torch.cat(labels) if labels else None, card)
    except SpikecalError:
        raise
    except Exception as error:  # user code, or batches that do not fit together
        raise DataError(f"{name}: its batches cannot be read: {type(error).__name__}: {first_line(error)}") from error


def as_image(name: str, image: Any, card: Card | None = None) -> Tensor:
    """One image as [C, H, W] (or a signal, a vector): a tensor, an array or Pillow's."""
    if isinstance(image, Image.Image):
        image = np.array(decode(image, "L" if image.mode in GREY else "RGB"))
    image = as_tensor(image)
    if not isinstance(image, Tensor):
        raise DataError(f"{name} is a {type(image).__name__}, not an image: give a tensor, an array or a Pillow image")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise DataError(f"{name} is an image of {image.dtype}: give uint8 in 0..255 or float in 0..1")
    return as_inputs(name, image[None], card)[0]


def _item(name: str, dataset: Any, index: int) -> Sequence[Any]:
    """The parts of an item: the image, and anything after it."""
    try:
        item = dataset[index]
    except SpikecalError:
        raise
    except Exception as error:  # user code
        raise DataError(f"{name}: item {index} raised {type(error).__name__}: {first_line(error)}") from error
    return item if isinstance(item, list | tuple) and item else (item,)


def _label(name: str, item: Sequence[Any], index: int) -> Any:
    label = as_labels(item[1]) if len(item) > 1 else None
    if isinstance(label, Tensor) and label.numel() == 1 and not label.is_floating_point():
        return label.item()
    if not isinstance(label, int | np.integer) or isinstance(label, bool):
        raise DataError(f"{name}: item {index} has a {type(label).__name__} after its image, not the number of a class")
    return label


def _stored_labels(dataset: Any) -> list[int] | None:
    """All labels of a dataset that keeps them in a list, so that no image is read for its label; else None."""
    if isinstance(dataset, Subset):
        inner = _stored_labels(dataset.dataset)
        return None if inner is None else [inner[i] for i in dataset.indices]
    if getattr(dataset, "target_transform", None) is not None:
        return None  # items have different labels from the list
    for kept in (as_labels(getattr(dataset, name, None)) for name in LABELS):
        if isinstance(kept, Tensor) and kept.shape == (len(dataset),) and not kept.is_floating_point():
            return [int(label) for label in kept.tolist()]
    return None
