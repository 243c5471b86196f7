"""Calibration images from a tensor, a dataset or a loader, with or without labels."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from spikecal.errors import DataError
from spikecal.tensors import as_labels, as_tensor, one_image, refuse_names

Inputs = tuple[Tensor, ...]  # one batch: a tensor for each input of the network


def labelled(
    images: Any, count: int, inputs: int, seed: int, dims: int | None = None
) -> tuple[list[Inputs], Tensor | None]:
    """What `collect` gives, the same images in the same order, and their labels `[count]`; None without any."""
    try:
        found = collect(images, count, inputs, seed, dims, labels=True)
    except _NoLabels:
        return collect(images, count, inputs, seed, dims), None
    return [image[:inputs] for image in found], torch.cat([image[inputs] for image in found]).cpu().long()


class _NoLabels(DataError):
    """Images come without the labels that were asked for."""


def collect(
    images: Any, count: int, inputs: int, seed: int, dims: int | None = None, labels: bool = False
) -> list[Inputs]:
    """Up to `count` images of `dims` dimensions as single-image batches, in seeded order.

    A tensor, a tuple of tensors (one per input, then labels) or an indexable dataset is sampled as a whole; of an
    iterable (a loader, a list of batches) the first `count` are read. Items may be images, or sequences that begin
    with the network's `inputs` tensors; the rest (labels) is dropped, or with `labels` comes last, one number an
    image. Numpy arrays work like tensors.
    """
    refuse_names(images)
    generator = torch.Generator().manual_seed(seed)
    images = as_tensor(images)
    if isinstance(images, tuple):
        images = tuple(map(as_labels, images))
    if isinstance(images, Tensor):
        images = (images,)
    if _is_loaders_batch(images, inputs):
        images = tuple(images)
    if isinstance(images, tuple) and images and all(isinstance(x, Tensor) for x in images):
        if dims is not None and images[0].ndim == dims:
            raise one_image(images[0])
        if labels and len(images) <= inputs:
            raise _NoLabels("there are no labels")
        return _from_tensors(images[: inputs + labels], count, inputs, generator)
    if hasattr(images, "__getitem__") and hasattr(images, "__len__") and not is_list_of_batches(images, dims):
        chosen = torch.randperm(len(images), generator=generator)[:count].tolist()
        found = [_inputs(images[i], inputs, single=True, labels=labels) for i in chosen]
    elif isinstance(images, Iterable):
        read = _first(images, count, inputs, labels)
        found = [read[i] for i in torch.randperm(len(read), generator=generator).tolist()]
    else:
        raise DataError(f"calibration images must be a tensor, a dataset or a loader, not {type(images).__name__}")
    return _checked(found, inputs)


def _is_loaders_batch(items: Any, inputs: int) -> bool:
    """Whether a list is a loader's item: the network's inputs, then labels."""
    if not (isinstance(items, list) and len(items) > inputs and all(isinstance(x, Tensor) for x in items)):
        return False
    return not items[inputs].is_floating_point() and all(x.is_floating_point() for x in items[:inputs])


def is_list_of_batches(items: Any, dims: int | None = None) -> bool:
    """Whether a list holds batches rather than single images; `dims` is that of an image, if the network tells.

    If it does not, [N, C, H, W] and [N, F] are batches, [C, H, W] and [F] are not.
    """
    if not isinstance(items, list) or not items:
        return False
    first = as_tensor(items[0][0] if isinstance(items[0], (tuple, list)) and items[0] else items[0])
    return isinstance(first, Tensor) and (first.ndim in (2, 4) if dims is None else first.ndim == dims + 1)


def batches(images: Sequence[Inputs], size: int, marks: Iterable[int]) -> list[Inputs]:
    """Micro-batches of up to `size` consecutive images of one shape; none crosses a mark."""
    ends = sorted({*marks, len(images)})
    result: list[Inputs] = []
    start = 0
    while start < len(images):
        shapes = [x.shape[1:] for x in images[start]]
        stop = start
        limit = next(end for end in ends if end > start)
        while stop < min(limit, start + size) and [x.shape[1:] for x in images[stop]] == shapes:
            stop += 1
        result.append(tuple(torch.cat(part) for part in zip(*images[start:stop], strict=True)))
        start = stop
    return result


def _from_tensors(tensors: Inputs, count: int, inputs: int, generator: torch.Generator) -> list[Inputs]:
    if len(tensors) < inputs:
        raise DataError(f"the network takes {inputs} inputs, but {len(tensors)} were given")
    if len({len(x) for x in tensors}) > 1:
        raise DataError(f"the inputs have different numbers of images: {[len(x) for x in tensors]}")
    chosen = torch.randperm(len(tensors[0]), generator=generator)[:count]
    return _checked([tuple(x[i : i + 1] for x in tensors) for i in chosen.tolist()], inputs)


def _first(loader: Iterable[Any], count: int, inputs: int, labels: bool) -> list[Inputs]:
    found: list[Inputs] = []
    for item in loader:
        batch = _inputs(item, inputs, single=False, labels=labels)
        found += [tuple(x[i : i + 1] for x in batch) for i in range(len(batch[0]))]
        if len(found) >= count:
            break
    return found[:count]


def _inputs(item: Any, inputs: int, single: bool, labels: bool) -> Inputs:
    item = as_tensor(item)
    whole = (item,) if isinstance(item, Tensor) else tuple(item) if isinstance(item, (tuple, list)) else ()
    parts = tuple(map(as_tensor, whole[:inputs]))
    if len(parts) < inputs or not all(isinstance(x, Tensor) for x in parts):
        raise DataError(
            f"an item of the calibration images is {type(item).__name__}, not a tensor or a sequence that begins "
            f"with {inputs} tensor{'s' if inputs > 1 else ''}"
        )
    more = (_label(whole[inputs:], single),) if labels else ()
    return (*(x.unsqueeze(0) if single else x for x in parts), *more)


def _label(rest: Sequence[Any], single: bool) -> Tensor:
    """The label of one image, or those of a batch: `[1]` or `[N]`."""
    found = as_labels([rest[0]] if single and isinstance(rest[0], int) else rest[0]) if rest else None
    if not isinstance(found, Tensor) or found.is_floating_point():
        raise _NoLabels("there are no labels")
    return found.reshape(1) if single and found.ndim == 0 else found


def _checked(images: list[Inputs], inputs: int) -> list[Inputs]:
    if not images:
        raise DataError("there are no calibration images: the tensor, dataset or loader is empty")
    for i, image in enumerate(images):
        for x in image[:inputs]:
            if x.is_meta:
                raise DataError("calibration images are on the meta device, which holds no data")
            if not x.is_floating_point():
                raise DataError(
                    f"calibration images are {x.dtype}: convert them to float and normalise them as in training"
                )
            if not torch.isfinite(x).all():
                raise DataError(f"calibration image {i} has NaN or infinite values")
    return images
