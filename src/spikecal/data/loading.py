"""Load images of a dataset as normalised tensors, for use in Python."""

from pathlib import Path

import torch
from torch import Tensor

from spikecal.data.card import Card
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset

BATCH = 256


def load_images(
    spec: str,
    card: Card | None = None,
    split: str = "train",
    *,
    count: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The images of `spec`, normalised for the network of `card`, and their labels, or None if there are none.

    Args:
        spec: What `--data` takes: `demo`, `cifar10`, `folder:PATH`, `npz:PATH`, `file.py:function` and so on.
        card: Size and normalisation, as `load_model` returns them. Without a card, images keep their size and pixels.
        split: `"train"` for calibration, `"test"` for measuring.
        count: How many images, drawn by the seed; by default all.
        seed: The same seed draws the same images.
        root: Folder of the named datasets; by default `$SPIKECAL_DATA`, else `~/.cache/spikecal`.
    """
    card = card or Card(name=spec)
    data = subset(load_data(spec, split, None if root is None else Path(root), card), count, seed)
    return torch.cat([images for images, _ in Prepared(data, card).batches(BATCH)]), data.labels
