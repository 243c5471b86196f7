"""Draws docs/images/NAME-dark.png from every NAME.png that is a plot: the site shows it on dark pages.

.venv/bin/python scripts/dark_pictures.py
"""

from pathlib import Path

import numpy as np
from PIL import Image

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PLOTS = ("bn", "calibration", "clip", "demo", "frontier", "parts", "rate", "results", "threshold", "waiting")
PAPER = np.array([0x1E, 0x21, 0x29]) / 255  # the colour of dark pages, instead of white
TURN = 2 / 3  # takes every colour to the opposite hue, at the same distance from grey


def darkened(picture: Image.Image) -> Image.Image:
    """White becomes the dark page and black becomes white; colours keep their hues."""
    light = np.asarray(picture.convert("RGB"), dtype=np.float64) / 255
    inverted = 1 - light
    turned = TURN * inverted.sum(-1, keepdims=True) - inverted  # restores the hues that inverting has changed
    dark = PAPER + (1 - PAPER) * turned.clip(0, 1)
    return Image.fromarray((255 * dark).round().astype(np.uint8))


def main() -> None:
    for name in PLOTS:
        with Image.open(IMAGES / f"{name}.png") as picture:
            darkened(picture).save(IMAGES / f"{name}-dark.png", optimize=True)


if __name__ == "__main__":
    main()
