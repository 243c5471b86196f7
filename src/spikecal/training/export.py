"""Write trained weights to safetensors files, in half precision if accuracy holds, with a card beside them."""

import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from spikecal.data.card import Card
from spikecal.data.prepare import Loader
from spikecal.data.sources import Data, subset
from spikecal.evaluation import accuracy
from spikecal.files import write_whole
from spikecal.training.recipes import Recipe
from spikecal.workdir import store

log = logging.getLogger(__name__)

TOLERANCE = 0.0005  # of accuracy on training images, for storing the weights in half precision
CHECKED = 10_000  # training images to measure that on: nothing is chosen on test images
BATCH = 500


def export_weights(model: nn.Module, path: Path, images: Data | None, card: Card, seed: int = 0) -> str:
    """Write the weights of `model`; half precision if the accuracy on training `images` holds. Returns the dtype.

    Without `images` it is single precision.
    """
    if images is None:
        return export(model, path, None)
    loader = Loader(subset(images, CHECKED, seed), card, BATCH)
    return export(model, path, lambda network: accuracy(network, loader))


def export(
    model: nn.Module, path: Path, measure: Callable[[nn.Module], float] | None, tolerance: float = TOLERANCE
) -> str:
    """The same for any measure, which half precision must not change by more than `tolerance`."""
    state = {key: t.detach().cpu().contiguous().clone() for key, t in model.state_dict().items()}
    half = {key: t.half() if t.is_floating_point() else t for key, t in state.items()}
    if measure is None or not _holds(model, half, measure, tolerance):
        store(path, state)
        return "float32"
    store(path, half)
    return "float16"


def _holds(
    model: nn.Module, half: dict[str, torch.Tensor], measure: Callable[[nn.Module], float], tolerance: float
) -> bool:
    if not all(bool(t.isfinite().all()) for t in half.values()):  # too large for half precision
        return False
    rounded = copy.deepcopy(model)
    rounded.load_state_dict(half)
    before, after = measure(model), measure(rounded)
    log.info("score %.4f, in half precision %.4f", before, after)
    return abs(before - after) <= tolerance


class Named(Protocol):
    """A dataset of any kind."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...


def training_facts(recipe: Recipe, name: str, data: Named) -> dict[str, Any]:
    """A card's record of how its weights were trained."""
    return {"recipe": name, **recipe.to_dict(), "data": data.name, "images": len(data)}


def write_card(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(facts, indent=2) + "\n")
