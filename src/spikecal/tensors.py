"""Tensors: their memory layout, and conversion from numpy."""

from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.errors import DataError


def channels_last(x: Tensor) -> Tensor:
    """The same values in one memory layout: channels last for images, plain for everything else."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def as_tensor(value: Any) -> Any:
    """A numpy array of numbers as a tensor; anything else unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    native = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False))
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def as_labels(value: Any) -> Any:
    """A list, tuple or numpy array of integers as a tensor; anything else unchanged."""
    if isinstance(value, list | tuple) and value and all(isinstance(label, Integral) for label in value):
        return torch.tensor([int(label) for label in value])
    return as_tensor(value)


def refuse_names(images: Any) -> None:
    """Raise where images are only named, as the command line does."""
    if isinstance(images, str | Path):
        raise DataError(
            f"images are a tensor, a dataset or a loader: spikecal.load_images({str(images)!r}, card) gives one"
        )


def one_image(x: Tensor) -> DataError:
    shape = list(x.shape)
    return DataError(f"an input of shape {shape} is one image without a batch: give x[None], of shape {[1, *shape]}")
