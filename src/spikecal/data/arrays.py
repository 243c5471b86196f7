"""Arrays of images and labels, from npz files and from the user's own functions."""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.errors import DataError, first_line, shown
from spikecal.files import open_regular
from spikecal.memory import free_memory

# What numpy and zipfile raise for files that are damaged, encrypted or compressed differently.
NO_NPZ_FILE = (
    OSError, ValueError, EOFError, LookupError, TypeError, SyntaxError, RuntimeError, ArithmeticError, MemoryError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError,
)  # fmt: skip
NAMED = 8  # most arrays that a message lists
FORMS = {  # of arrays of inputs, by the number of dimensions of one
    1: "vectors [N, F]",
    2: "signals [N, C, L] or [N, L]",
    3: "images [N, C, H, W], [N, H, W, C] or [N, H, W]",
    4: "volumes [N, C, D, H, W] or [N, D, H, W]",
}


def load_npz(spec: str, path: Path, split: str, card: Card | None = None) -> Data:
    """Keys `x_train` and `y_train` (or `_test`), `images` and `labels`, or `x` and `y`; or a file from `distill`."""
    if not path.exists():
        raise DataError(f"{spec}: there is no file {path}")
    names = ((f"x_{split}", f"y_{split}"), ("images", "labels"), ("x", "y"))
    try:
        with open_regular(path) as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise DataError(f"{spec}: {path} holds a single array without a name: save it with numpy.savez")
            pair = next((pair for pair in names if pair[0] in arrays), None)
            if pair is None:
                there = ", ".join(map(shown, islice(arrays, NAMED)))
                more = f" and {len(arrays) - NAMED:,} more" if len(arrays) > NAMED else ""
                raise DataError(f"{spec}: {path} has no array {_either(n for n, _ in names)}, only {there}{more}")
            images, labels = _member(spec, arrays, pair[0]), _member(spec, arrays, pair[1])
            distilled = "facts" in arrays  # other files may have `targets`, too
    except NO_NPZ_FILE as error:
        damaged = path.is_file() and not zipfile.is_zipfile(path)
        said = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        reason = "it is not an npz file" if damaged else said
        raise DataError(f"{spec}: {path} cannot be read: {reason}") from error
    return from_arrays(spec, images, labels, card, distilled)


def _member(spec: str, arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray | None:
    """The array `name`, or None; its header is checked for type and size first."""
    archive = arrays.zip
    if name not in arrays or archive is None:
        return None
    entry = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        stored = entry.file_size - file.tell()
    if dtype.hasobject:
        raise DataError(f"{spec}: {name} is an array of pickled objects, which are unsafe to open: save plain numbers")
    if min(shape, default=0) < 0:
        raise DataError(f"{spec}: {name} has an impossible shape, {shown(shape)}")
    needed = math.prod(shape) * dtype.itemsize
    if needed != stored:
        said = f"shape {shown(shape)}, {shown(needed)} bytes"
        raise DataError(f"{spec}: {name} should have {said}, but {stored:,} are there")
    if needed > free_memory():
        raise DataError(f"{spec}: {name} needs {needed:,} bytes of memory, more than is free: use folder:PATH")
    return arrays[name]


def from_arrays(name: str, images: Any, labels: Any, card: Card | None = None, distilled: bool = False) -> Data:
    """Arrays of uint8 or float whose entries are inputs of the network with this `card`."""
    pixels = as_inputs(name, _tensor(name, "images", images), card, distilled)
    if len(pixels) and not pixels.numel():
        raise DataError(f"{name}: images of shape {tuple(pixels.shape)} are empty")
    if pixels.dtype != torch.uint8:
        if not pixels.is_floating_point():
            raise DataError(f"{name}: images are {pixels.dtype}: give uint8 in 0..255 or float in 0..1")
        pixels = pixels.float()
        if not pixels.isfinite().all():
            raise DataError(f"{name}: images hold NaN or infinite values")
    return Data(name=name, images=pixels, labels=from_labels(name, labels), distilled=distilled)


def as_inputs(name: str, x: Tensor, card: Card | None = None, distilled: bool = False) -> Tensor:
    """Inputs with a dimension for channels, in first place.

    Images are [N, C, H, W] (preferred if both fit), [N, H, W, C] or [N, H, W], vectors [N, F]. If the card says
    so they are signals, [N, C, L] or [N, L], or volumes.
    """
    of_images = card is not None and (card.size is not None or card.channels is not None)
    dims = (card and card.dims) or (1 if x.ndim == 2 and not of_images else 3)
    if x.ndim == dims and dims > 1:
        x = x[:, None]
    if x.ndim != dims + 1:
        raise DataError(f"{name}: inputs of shape {tuple(x.shape)} are not {FORMS[dims]}")
    if dims != 3 or distilled or x.shape[1] in (1, 3):
        return x
    if x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2)
    if card is None or card.channels is not None:
        raise DataError(f"{name}: images of shape {tuple(x.shape)} have neither 1 nor 3 channels")
    return x  # only the network can tell


def from_labels(name: str, values: Any) -> Tensor | None:
    """Integers [N]; [N, 1] is accepted, too."""
    if values is None:
        return None
    labels = _tensor(name, "labels", values)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"{name}: labels are {labels.dtype}: give integers")
    labels = labels.to(torch.int64)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _tensor(name: str, what: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: {what} cannot be converted to numbers: {first_line(error)}") from error


def _either(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)
