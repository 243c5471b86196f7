"""The state of an unfinished training, in one file that is replaced as a whole and read without running its code."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikecal.errors import ConfigError, FileError
from spikecal.files import NO_TORCH_FILE, load_torch, write_whole
from spikecal.training.recipes import QUICK, Recipe
from spikecal.workdir import fingerprint

FORMAT = 2
WAY_OUT = "delete it to start over, or write to a different file"


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace the file; a process killed meanwhile leaves the old one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(path, buffer.getvalue())


def read(path: Path) -> dict[str, Any] | None:
    """What `write` was given, or None if there is nothing yet."""
    if not path.exists():
        return None
    try:
        state: Any = load_torch(path)
    except NO_TORCH_FILE as error:
        raise FileError(f"{path} is not a complete checkpoint of a training: {WAY_OUT}") from error
    if isinstance(state, dict) and set(state) == {"recipe", "model", "optimiser", "schedule", "epoch"}:
        state = _from_first_format(state)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FileError(f"{path} is not a checkpoint of this version: {WAY_OUT}")
    return state


def _from_first_format(state: dict[str, Any]) -> dict[str, Any]:
    """Format 1 knew only the recipe `quick`, whole epochs, and neither network nor images."""
    settings = dict(state["recipe"])
    settings["lr"] = settings.pop("peak_lr")
    kept = {key: state[key] for key in ("model", "optimiser", "epoch")}
    unknown: dict[str, Any] = {"network": None, "data": None, "ema": None, "seconds": None, "history": []}
    recipe = QUICK.changed(**settings).to_dict()
    return {"format": FORMAT, "recipe": recipe, "step": 0, "loss": 0.0, **kept, **unknown}


def check(state: dict[str, Any], path: Path, recipe: Recipe, network: str, data: str) -> None:
    """Raise if the recipe, network or images differ from those of the checkpoint."""
    wanted = recipe.to_dict()
    found: dict[str, Any] = {"precision": Recipe.precision, **state["recipe"]}  # older checkpoints do not name it
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing or set(found) != set(wanted):
        key = differing[0] if differing else "settings"
        told = f"{key} {_said(found.get(key))}, not {_said(wanted.get(key))}"
        raise ConfigError(f"{path} belongs to a different recipe ({told}): {WAY_OUT}")
    for what, known, now in (("network", state["network"], network), ("images", state["data"], data)):
        if known not in (None, now):
            raise ConfigError(
                f"{path} belongs to {'a different' if what == 'network' else 'different'} {what}: {WAY_OUT}"
            )


def network_fingerprint(model: nn.Module) -> str:
    """A hash of names and shapes; not of values, which a user's function may draw differently in every process."""
    return fingerprint([], [[name, str(t.dtype), list(t.shape)] for name, t in model.state_dict().items()])


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
