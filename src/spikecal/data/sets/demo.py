"""The embedded images: sheets of tiles, losslessly packed, with their labels beside them."""

import json
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spikecal.errors import DataError

TILE = 32
COLUMNS = 32
SHEETS = {"train": "calibration", "test": "test"}  # split -> name of its sheet


def demo_folder() -> Traversable:
    return resources.files("spikecal") / "demo"


def load_demo(split: str, folder: Traversable | None = None) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and labels [N]: `train` is the calibration sheet, `test` the test sheet."""
    folder = demo_folder() if folder is None else folder
    name = SHEETS[split]
    try:
        labels = torch.tensor(json.loads((folder / "labels.json").read_text())[name])
        with (folder / f"{name}.png").open("rb") as file:
            images = unpack(file_pixels(file), len(labels))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"the embedded demo images are damaged ({error}): install spikecal again") from error
    return images, labels


def file_pixels(file: object) -> np.ndarray:
    with Image.open(file) as sheet:  # type: ignore[arg-type]
        return np.asarray(sheet.convert("RGB"))


def pack(images: Tensor) -> np.ndarray:
    """Tiles [N, 3, 32, 32] as one sheet [rows * 32, columns * 32, 3], the last row padded with black."""
    rows = -(-len(images) // COLUMNS)
    tiles = torch.zeros((rows * COLUMNS, 3, TILE, TILE), dtype=torch.uint8)
    tiles[: len(images)] = images
    grid = tiles.reshape(rows, COLUMNS, 3, TILE, TILE).permute(0, 3, 1, 4, 2)
    return grid.reshape(rows * TILE, COLUMNS * TILE, 3).numpy()


def unpack(sheet: np.ndarray, count: int) -> Tensor:
    """The first `count` tiles of a sheet: the inverse of `pack`."""
    rows = sheet.shape[0] // TILE
    if sheet.shape != (rows * TILE, COLUMNS * TILE, 3) or not (rows - 1) * COLUMNS < count <= rows * COLUMNS:
        raise ValueError(f"a sheet of {sheet.shape} does not hold {count} tiles")
    grid = torch.from_numpy(sheet.copy()).reshape(rows, TILE, COLUMNS, TILE, 3).permute(0, 2, 4, 1, 3)
    return grid.reshape(rows * COLUMNS, 3, TILE, TILE)[:count].contiguous()
