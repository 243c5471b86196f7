"""Checkpoints into models: safetensors, or torch files read without running anything from them."""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spikecal.errors import FileError

WRAPPERS = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile
SHOWN = 4


def read_weights(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a checkpoint, its wrappers taken off."""
    if not path.is_file():
        raise FileError(f"there is no weights file {path}")
    if path.suffix == ".safetensors":
        try:
            return _unprefixed(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise FileError(f"{path} is not a safetensors file: {error}") from error
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"{path} is not a plain checkpoint: it is damaged, or holds objects that only running its code could "
            f"restore; save model.state_dict() instead"
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, IndexError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileError(f"{path} is not a torch checkpoint: {reason}") from error
    for wrapper in WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise FileError(f"{path} holds no state dict: save model.state_dict(), alone or under the key 'state_dict'")
    return _unprefixed(loaded)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the checkpoint into `model`; every key must have its place, in the right shape."""
    given = read_weights(path)
    wanted = model.state_dict()
    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in wanted]
    shapes = [
        f"{key} {tuple(given[key].shape)} for {tuple(tensor.shape)}"
        for key, tensor in wanted.items()
        if key in given and given[key].shape != tensor.shape
    ]
    faults = [
        f"{what} {_few(keys)}"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes))
        if keys
    ]
    if faults:
        raise FileError(f"{path} does not fit {type(model).__name__}: {'; '.join(faults)}")
    model.load_state_dict({key: given.get(key, tensor) for key, tensor in wanted.items()})


def _unprefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    while prefix := next((p for p in PREFIXES if state and all(key.startswith(p) for key in state)), None):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _few(keys: list[str]) -> str:
    more = len(keys) - SHOWN
    return ", ".join(keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")
