"""Images and labels from a short specification: a known set, `folder:PATH`, `npz:PATH` or a user's function."""

import inspect
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spikecal.data import cifar10, demo
from spikecal.data.factory import call, first_line, is_factory, load_factory
from spikecal.errors import DataError

SPLITS = ("train", "test")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


@runtime_checkable
class Images(Protocol):
    """Anything that counts its images and gives one at a time: [C, H, W], uint8 or float in 0..1."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Data:
    """Images as they are stored, before any normalisation; `labels` [N] where known."""

    name: str
    images: Images
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.images) == 0:
            raise DataError(f"{self.name} holds no images")
        if self.labels is not None and self.labels.shape != (len(self.images),):
            raise DataError(f"{self.name}: {len(self.images)} images but labels of shape {tuple(self.labels.shape)}")
        if self.labels is not None and (self.labels.dtype != torch.int64 or int(self.labels.min()) < 0):
            raise DataError(f"{self.name}: labels must be whole numbers from 0 up")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A set with a name; `fetch` is None where there is nothing to fetch."""

    about: str
    load: Callable[[Path, str], tuple[Tensor, Tensor]]
    present: Callable[[Path], bool]
    fetch: Callable[[Path], None] | None
    classes: tuple[str, ...]


KNOWN: dict[str, KnownSet] = {
    "cifar10": KnownSet(
        about="CIFAR-10: 50,000 + 10,000 images of 32×32 in 10 classes",
        load=cifar10.load_cifar10,
        present=cifar10.has_cifar10,
        fetch=cifar10.fetch_cifar10,
        classes=cifar10.CLASSES,
    ),
    "demo": KnownSet(
        about="1,024 training and 1,000 test images of CIFAR-10, in the package",
        load=lambda _, split: demo.load_demo(split),
        present=lambda _: True,
        fetch=None,
        classes=cifar10.CLASSES,
    ),
}


def data_root() -> Path:
    """Where the known sets are kept: `$SPIKECAL_DATA`, else the user's cache folder."""
    return Path(os.environ.get("SPIKECAL_DATA") or "~/.cache/spikecal").expanduser()


def load_data(spec: str, split: str, root: Path | None = None) -> Data:
    """The images of `spec`: a known set's name, `folder:PATH`, `npz:PATH`, `file.py:name` or `package.module:name`."""
    if split not in SPLITS:
        raise DataError(f"split is one of {', '.join(SPLITS)}, not {split!r}")
    if spec in KNOWN:
        images, labels = KNOWN[spec].load(data_root() if root is None else root, split)
        return Data(name=spec, images=images, labels=labels, classes=KNOWN[spec].classes)
    kind, _, rest = spec.partition(":")
    if kind == "folder" and rest:
        return _from_folder(spec, Path(rest).expanduser(), split)
    if kind == "npz" and rest:
        return _from_npz(spec, Path(rest).expanduser(), split)
    if is_factory(spec):
        return _from_factory(spec, split)
    raise DataError(
        f"unknown data {spec!r}: give {', '.join(KNOWN)}, folder:PATH, npz:PATH, file.py:function or module:function"
    )


def subset(data: Data, count: int | None, seed: int) -> Data:
    """`count` images drawn by `seed`, in their stored order; all of them where there are no more than that."""
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise DataError(f"the number of images must be at least 1, not {count}")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    images = data.images[order] if isinstance(data.images, Tensor) else _Chosen(data.images, order.tolist())
    labels = None if data.labels is None else data.labels[order]
    return Data(name=data.name, images=images, labels=labels, classes=data.classes)


@dataclass(frozen=True)
class _Chosen:
    images: Images
    order: Sequence[int]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[self.order[index]]


@dataclass(frozen=True)
class ImageFiles:
    """Image files, read when asked for: [3, H, W] uint8."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                pixels = np.array(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} is not a readable image: {first_line(error)}") from error
        return torch.from_numpy(pixels).permute(2, 0, 1)


def _from_folder(spec: str, folder: Path, split: str) -> Data:
    """Class folders, straight in `folder` or under `train` and `test` (or `val`); without class folders, no labels."""
    if not folder.is_dir():
        raise DataError(f"{spec}: there is no folder {folder}")
    splits = {"train": ("train",), "test": ("test", "val")}
    if any((folder / name).is_dir() for names in splits.values() for name in names):
        found = [folder / name for name in splits[split] if (folder / name).is_dir()]
        if not found:
            raise DataError(f"{spec}: {folder} has no folder {' or '.join(splits[split])}")
        folder = found[0]
    classes = tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not classes:
        paths = _image_files(folder)
        if not paths:
            raise DataError(f"{spec}: {folder} holds neither class folders nor images")
        return Data(name=spec, images=ImageFiles(paths))
    per_class = [_image_files(folder / name) for name in classes]
    labels = torch.tensor([label for label, paths in enumerate(per_class) for _ in paths], dtype=torch.int64)
    if len(labels) == 0:
        raise DataError(f"{spec}: the class folders of {folder} hold no images ({', '.join(sorted(SUFFIXES))})")
    return Data(name=spec, images=ImageFiles([p for paths in per_class for p in paths]), labels=labels, classes=classes)


def _image_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def _from_npz(spec: str, path: Path, split: str) -> Data:
    """Keys `x_train` and `y_train` (or `_test`), `images` and `labels`, or `x` and `y`."""
    names = ((f"x_{split}", f"y_{split}"), ("images", "labels"), ("x", "y"))
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise DataError(f"{spec}: {path} holds one array, not named ones: save it with numpy.savez")
            pair = next((pair for pair in names if pair[0] in arrays), None)
            if pair is None:
                raise DataError(f"{spec}: {path} has no array {_either(n for n, _ in names)}, only {list(arrays)}")
            images = arrays[pair[0]]
            labels = arrays.get(pair[1])
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        damaged = not zipfile.is_zipfile(path)
        reason = "it is not an npz file" if damaged and path.is_file() else first_line(error)
        raise DataError(f"{spec}: {path} cannot be read: {reason}") from error
    return _from_arrays(spec, images, labels)


def _either(names: Any) -> str:
    return " or ".join(repr(name) for name in names)


def _from_factory(spec: str, split: str) -> Data:
    """What the function returns: `Data`, images, or a pair of images and labels; `images` may be lazy (`Images`).

    It is called with the split's name if it takes an argument.
    """
    function = load_factory(spec)
    try:
        arguments = (split,) if inspect.signature(function).parameters else ()
    except (TypeError, ValueError):  # built in: no signature to see
        arguments = (split,)
    made = call(spec, function, *arguments)
    if isinstance(made, Data):
        return made
    images, labels = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if isinstance(images, Tensor | np.ndarray):
        return _from_arrays(spec, images, labels)
    if isinstance(images, Images) and not isinstance(images, str | bytes | tuple | list | dict):
        return Data(name=spec, images=images, labels=_labels(spec, labels))
    raise DataError(f"{spec} returned a {type(made).__name__}: return images, or a pair of images and labels")


def _from_arrays(name: str, images: Any, labels: Any) -> Data:
    """Arrays [N, C, H, W] (this wins where both fit), [N, H, W, C] or [N, H, W], of uint8 or of float."""
    pixels = _tensor(name, "images", images)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4:
        raise DataError(
            f"{name}: images of shape {tuple(pixels.shape)} are not [N, C, H, W], [N, H, W, C] or [N, H, W]"
        )
    first, last = pixels.shape[1] in (1, 3), pixels.shape[3] in (1, 3)
    if not first and last:
        pixels = pixels.permute(0, 3, 1, 2)
    elif not first:
        raise DataError(f"{name}: images of shape {tuple(pixels.shape)} have neither 1 nor 3 channels")
    if pixels.dtype != torch.uint8:
        if not pixels.is_floating_point():
            raise DataError(f"{name}: images are {pixels.dtype}: give uint8 in 0..255 or float in 0..1")
        pixels = pixels.float()
        if not pixels.isfinite().all():
            raise DataError(f"{name}: images hold values that are not finite")
    return Data(name=name, images=pixels, labels=_labels(name, labels))


def _labels(name: str, values: Any) -> Tensor | None:
    """Whole numbers [N]; [N, 1] is taken too."""
    if values is None:
        return None
    labels = _tensor(name, "labels", values)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"{name}: labels are {labels.dtype}: give whole numbers")
    labels = labels.to(torch.int64)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _tensor(name: str, what: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: {what} cannot be taken for numbers: {first_line(error)}") from error
