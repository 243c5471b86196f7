"""Images and labels from a short specification: a named dataset, `folder:PATH`, `npz:PATH` or a user's function."""

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from spikecal.data.arrays import from_arrays, load_npz
from spikecal.data.card import Card
from spikecal.data.datasets import from_dataset, from_loader
from spikecal.data.folder import load_folder
from spikecal.data.images import Data, Images, subset
from spikecal.data.sets.imagenet import load_imagenet
from spikecal.data.sets.known import KNOWN
from spikecal.errors import ConfigError, DataError
from spikecal.usercode import call, is_factory, load_factory

__all__ = ["Data", "Images", "chosen_data", "data_root", "load_data", "runs_code", "subset"]

SPLITS = ("train", "test")
DISTILLED = "distilled"  # made by `convert --data` itself, from the network
KINDS: dict[str, Callable[[str, Path, str], Data]] = {
    "folder": load_folder,
    "imagenet": load_imagenet,
}
ARRAYS = "npz"


def data_root() -> Path:
    """The folder of the named datasets: `$SPIKECAL_DATA`, else the user's cache folder."""
    return Path(os.environ.get("SPIKECAL_DATA") or "~/.cache/spikecal").expanduser()


def load_data(spec: str, split: str, root: Path | None = None, card: Card | None = None) -> Data:
    """The images of `spec`: the name of a dataset, `folder:PATH`, `npz:PATH`, `imagenet:PATH` or a function.

    A function is `file.py:name` or `package.module:name`. With the `card` of the network they are for, arrays may
    also hold signals or volumes.
    """
    if split not in SPLITS:
        raise DataError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if spec in KNOWN:
        return KNOWN[spec].load(data_root() if root is None else root, split)
    if spec == DISTILLED:
        raise DataError(
            "`distilled` works only in `spikecal convert --data distilled`; to use images of `spikecal distill` "
            "elsewhere, give the file as npz:FILE"
        )
    kind, _, rest = spec.partition(":")
    if kind in KINDS and rest:
        return KINDS[kind](spec, Path(rest).expanduser(), split)
    if kind == ARRAYS and rest:
        return load_npz(spec, Path(rest).expanduser(), split, card)
    if is_factory(spec):
        return _from_factory(spec, split, card)
    raise DataError(
        f"unknown data {spec!r}: give {', '.join(KNOWN)}, {', '.join(f'{kind}:PATH' for kind in (*KINDS, ARRAYS))}, "
        f"file.py:function or module:function"
    )


def chosen_data(name: str | None, card: Card, split: str, root: Path | None, *, from_file: bool = False) -> Data:
    """The named dataset, else the one on the card; a card from a file cannot name code to run."""
    if name is None and from_file and card.data is not None and runs_code(card.data):
        raise ConfigError(
            f"the file names {card.data} as its images, which is code: if you trust it, give it with --data"
        )
    name = name or card.data
    if name is None:
        raise ConfigError(f"{card.name} comes with no images: give --data")
    try:
        return load_data(name, split, root, card)
    except DataError as error:
        if not from_file or name != card.data:
            raise
        raise DataError(f"{error}; the file names these images as its own: give others with --data") from error


def runs_code(spec: str) -> bool:
    """Whether reading these images would run a function: fine if a user types it, but not if it comes from a file."""
    return spec not in KNOWN and spec.partition(":")[0] not in (*KINDS, ARRAYS) and is_factory(spec)


def _from_factory(spec: str, split: str, card: Card | None) -> Data:
    """What the function returns: `Data`, arrays of images, a dataset or loader, or a pair of images and labels.

    It is called with the split's name if it takes an argument.
    """
    function = load_factory(spec)
    try:
        arguments = (split,) if inspect.signature(function).parameters else ()
    except (TypeError, ValueError):  # a built-in: no signature to inspect
        arguments = (split,)
    made = call(spec, function, *arguments)
    if isinstance(made, Data):
        return made
    images, labels = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if isinstance(images, Tensor | np.ndarray):
        return from_arrays(spec, images, labels, card)
    if isinstance(images, Images) and not isinstance(images, str | bytes | dict):
        return from_dataset(spec, images, labels, card)
    if isinstance(images, Iterable) and not isinstance(images, str | bytes | dict | Dataset):
        return from_loader(spec, images, card)
    raise DataError(
        f"{spec} returned a {type(made).__name__}: return images, a dataset or loader, or a pair of images and labels"
    )
