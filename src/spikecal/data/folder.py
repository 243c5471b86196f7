"""Folders of images: listed in a fixed order, read on demand, upright and in 8 bits, however they are stored."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from spikecal.data.card import Card
from spikecal.data.fit import fit_image
from spikecal.data.images import Data, UnreadableImage
from spikecal.errors import DataError, first_line
from spikecal.files import open_regular

SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # whatever the file's suffix
MOST_BYTES = 2**30  # of one file
SPLITS = {"train": ("train",), "test": ("test", "val")}
NAMED = 3  # most folders that a message lists

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFiles:
    """Image files, read on demand: [3, H, W] uint8."""

    paths: Sequence[str]  # strings: a million take a third of the memory of paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.fitted(index, Card(name=""))

    def fitted(self, index: int, card: Card) -> Tensor:
        """Image `index` in the card's size; grey if the card has one channel."""
        path = self.paths[index]
        try:
            with open_image(path) as image:
                pixels = np.array(fit_image(decode(image, "L" if card.channels == 1 else "RGB"), card))
        except Exception as error:  # on damaged files decoders raise anything: OSError, SyntaxError, struct.error …
            raise UnreadableImage(path, _why(error)) from error
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


@contextmanager
def open_image(path: str | Path) -> Iterator[Image.Image]:
    """Open an image file of one of the formats of `SUFFIXES`; Pillow would start programs for others."""
    with open_regular(path, MOST_BYTES) as file, Image.open(file, formats=FORMATS) as image:
        yield image


def decode(image: Image.Image, mode: str) -> Image.Image:
    """An opened image as people see it: rotated by its EXIF data, transparency on white, 16 bits as 8."""
    image.load()  # damaged pixels raise here
    with suppress(Exception):  # damaged EXIF data are ignored if the pixels are intact
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is unknown: store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def load_folder(spec: str, folder: Path, split: str) -> Data:
    """Class folders, directly in `folder` or under `train` and `test` (or `val`); without class folders, no labels.

    The folders of `train` number the classes of all splits, as the network was trained on them.
    """
    if not folder.is_dir():
        raise DataError(f"{spec}: there is no folder {folder}")
    known: list[str] = []
    if any((folder / name).is_dir() for names in SPLITS.values() for name in names):
        own, train = (_split_folder(folder, name) for name in (split, "train"))
        if own is None:
            raise DataError(f"{spec}: {folder} has no folder {' or '.join(SPLITS[split])}")
        known = [] if train is None else class_folders(train)
        folder = own
    present = class_folders(folder)
    if not present:
        paths, others = image_files(folder)
        if not paths:
            raise DataError(f"{spec}: {folder} holds neither class folders nor images")
        _mention(spec, "skipped files without an image suffix", others)
        return Data(name=spec, images=ImageFiles(paths))
    classes = known or present
    if len(classes) == 1:
        log.warning("%s: all images get the same label, as %s holds only one folder, %s", spec, folder, classes[0])
    _mention(spec, f"classes of train without a folder in {folder.name}", [c for c in classes if c not in present])
    strange = [name for name in present if name not in classes]
    _mention(spec, f"left out of {folder.name}, as train has no such class", strange)
    if len(strange) == len(present):
        raise DataError(
            f"{spec}: train and {folder.name} have no class in common: use the same names of classes in both"
        )
    return labelled(spec, folder, classes, {c: i for i, c in enumerate(classes) if c in present})


def _split_folder(folder: Path, split: str) -> Path | None:
    return next((folder / name for name in SPLITS[split] if (folder / name).is_dir()), None)


def labelled(spec: str, folder: Path, classes: Sequence[str], numbers: dict[str, int]) -> Data:
    """The images of the class folders `numbers` in `folder`, with these labels; `classes` are all names."""
    paths: list[str] = []
    labels: list[int] = []
    empty = []
    others = sorted(str(p) for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    for name, number in sorted(numbers.items()):
        images, rest = image_files(folder / name)
        paths += images
        labels += [number] * len(images)
        others += rest
        if not images:
            empty.append(name)
    if not paths:
        raise DataError(f"{spec}: the class folders of {folder} hold no images ({', '.join(sorted(SUFFIXES))})")
    _mention(spec, "no images in class folder", empty)
    _mention(spec, "skipped files without an image suffix or a class", others)
    return Data(name=spec, images=ImageFiles(paths), labels=torch.tensor(labels), classes=tuple(classes))


def class_folders(folder: Path) -> list[str]:
    """The folders in `folder`, sorted by name, without hidden ones."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and p.is_dir())


def image_files(folder: Path) -> tuple[list[str], list[str]]:
    """The image files in `folder` and below, and other files; hidden ones are ignored, a linked folder counts once."""
    images: list[str] = []
    others: list[str] = []
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_unlisted):
        real = os.path.realpath(here)
        if real in seen:  # a link to a folder above, or a second link to the same
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith("."):
                (images if name.lower().endswith(SUFFIXES) else others).append(os.path.join(here, name))
    return sorted(images), sorted(others)


def _mention(spec: str, what: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        log.warning("%s: %s: %s%s", spec, what, ", ".join(names[:NAMED]), more)


def _unlisted(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _why(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
