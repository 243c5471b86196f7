"""Load checkpoints into models: safetensors, or torch files read without running their code."""

import logging
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from spikecal.errors import FileError, shown
from spikecal.files import NO_TORCH_FILE, load_tensors, load_torch

logger = logging.getLogger(__name__)

# Where training scripts put a state dict, in order of preference. Averaged weights are those evaluated.
WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema", "shadow", "state_dict",
    "model_state_dict", "model_state", "model", "net", "network", "weights", "params", "module",
)  # fmt: skip
COMPILED = "_orig_mod."  # prefix by torch.compile for the names of what it wraps
PARALLEL = "module."  # DistributedDataParallel's, and AveragedModel's
COUNTERS = ("n_averaged",)  # of torch's AveragedModel
UNNEEDED = "num_batches_tracked"  # missing in old checkpoints
FACTS = (int, float, str, type(None))  # what a file may hold besides tensors: an epoch, an accuracy, a name
SHOWN, LONGEST = 4, 120  # most keys that a message lists, and characters of each
DEEPEST = 6  # dicts around a state dict


def read_weights(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a checkpoint, without its wrappers."""
    if path.is_dir():
        raise FileError(f"{path} is a folder: give the checkpoint in it")
    if not path.is_file():
        raise FileError(f"there is no weights file {path}")
    if path.suffix == ".npz":
        raise FileError(f"{path} holds arrays, not a checkpoint: give .safetensors, or torch's .pt or .pth")
    if path.suffix == ".safetensors":
        try:
            return _unprefixed(load_tensors(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise FileError(f"{path} is not a safetensors file: {error}") from error
    try:
        loaded: Any = load_torch(path)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"{path} is not a plain checkpoint: it is damaged, or holds objects that only running code could "
            f"restore; save model.state_dict() instead"
        ) from error
    except NO_TORCH_FILE as error:
        words = "" if isinstance(error, LookupError) else str(error).strip()  # a bare key explains nothing
        reason = (words.splitlines() or ["it is damaged"])[0].split(". ")[0]  # torch adds how to run such files
        raise FileError(f"{path} is not a torch checkpoint: {reason}; save model.state_dict() again") from error
    state = _unwrapped(loaded, path)
    _check_plain(state, path)
    return _unprefixed(state)


def _check_plain(state: Mapping[Any, Tensor], path: Path) -> None:
    """Raise for anything except parameters of a network as torch stores them."""
    for key, tensor in state.items():
        if not isinstance(key, str):
            raise FileError(f"{path}: a state dict must have names for its tensors, not {shown(key)}")
        kind = "on no device" if tensor.is_meta else "quantised" if tensor.is_quantized else "nested"
        if tensor.is_meta or tensor.is_quantized or tensor.is_nested:
            raise FileError(f"{path}: {shown(key)} is {kind}: save the parameters of the network as plain tensors")
        if tensor.layout != torch.strided:
            raise FileError(f"{path}: {shown(key)} is sparse: save tensor.to_dense()")
        if tensor.is_complex():
            raise FileError(f"{path}: {shown(key)} has complex numbers: save real ones")


def _unwrapped(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside nested dicts; FileError if there is none."""
    found = _state_dict(loaded, ())
    if found is None:
        inside = f"keys {_few([str(key) for key in loaded])}" if isinstance(loaded, dict) else type(loaded).__name__
        raise FileError(
            f"{path} holds no state dict ({inside}): save model.state_dict(), alone or under the key 'state_dict'"
        )
    place, state = found
    if any("ema" in key for key in place):
        logger.info("%s: using the averaged weights under %s", path, ".".join(place))
    return state


def _state_dict(value: Any, place: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, Tensor]] | None:
    """The first state dict in `value` and its place; dicts may contain themselves."""
    if not isinstance(value, dict) or not value or len(place) > DEEPEST:
        return None
    tensors = {key: part for key, part in value.items() if isinstance(part, Tensor)}
    kinds = (Tensor,) if place else (Tensor, *FACTS)
    if tensors and all(isinstance(part, kinds) for part in value.values()):
        return place, tensors
    inner = (_state_dict(value.get(key), (*place, key)) for key in WRAPPERS)
    return next((found for found in inner if found is not None), None)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the checkpoint into `model`; every key must have a place with the right shape."""
    put_weights(model, read_weights(path), path)


def outputs(model: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """How many classes a checkpoint has for the last linear layer of `model`; None if it lacks that layer."""
    heads = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    weight = _renamed(state, set(model.state_dict())).get(f"{heads[-1]}.weight") if heads else None
    return None if weight is None else len(weight)


def put_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path, name: str = "") -> None:
    """The same with a state dict read from `path`, for the model of that name."""
    wanted = model.state_dict()
    given = _renamed(state, set(wanted))
    missing = [key for key in wanted if key not in given and not key.endswith(UNNEEDED)]
    unexpected = [key for key in given if key not in wanted and not key.endswith(UNNEEDED)]
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
        raise FileError(f"{path} does not fit {name or type(model).__name__}: {'; '.join(faults)}")
    whole = OrderedDict((key, given.get(key, tensor)) for key, tensor in wanted.items())
    whole._metadata = wanted._metadata  # type: ignore[attr-defined]  # torchvision's MNASNet needs the version
    model.load_state_dict(whole)


def _unprefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {key.replace(COMPILED, ""): value for key, value in state.items() if key not in COUNTERS}
    while state and all(key.startswith(PARALLEL) for key in state):
        state = {key.removeprefix(PARALLEL): value for key, value in state.items()}
    return state


def _renamed(state: Mapping[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Rename as in the model: without the attribute of a training module around it, or torchvision's old names."""
    if wanted.isdisjoint(state):
        state = _inside(state, wanted)
    plain = {key: key.replace(f".{PARALLEL}", ".") for key in state if key not in wanted}  # only a part was wrapped
    state = {(plain[key] if plain.get(key) in wanted else key): value for key, value in state.items()}
    # The files of torchvision's DenseNets have norm.1 for the modules norm1.
    old = {key: re.sub(r"\.(norm|conv)\.([12])\.", r".\1\2.", key) for key in state if key not in wanted}
    return {(old[key] if old.get(key) in wanted else key): value for key, value in state.items()}


def _inside(state: Mapping[str, Tensor], wanted: set[str]) -> Mapping[str, Tensor]:
    """The entries of the attribute that holds the model, such as Lightning's `model.`; averaged ones come first.

    Other contents of a training module, such as metrics and weights of its loss, are not part of the model.
    """
    last = max(wanted, key=len, default="")
    prefixes = {key.removesuffix(last) for key in state if last and key.endswith(f".{last}")}
    whole = {
        prefix for prefix in prefixes if all(prefix + key in state for key in wanted if not key.endswith(UNNEEDED))
    }
    if not whole:
        first = {key.partition(".")[0] for key in state}
        return {key.partition(".")[2]: value for key, value in state.items()} if len(first) == 1 else state
    chosen = min(whole, key=lambda prefix: ("ema" not in prefix, len(prefix), prefix))
    rest = [key for key in state if not key.startswith(chosen)]
    if rest:
        logger.info("using the weights under %s, but not %s", chosen.rstrip("."), _few(rest))
    return {key.removeprefix(chosen): value for key, value in state.items() if key.startswith(chosen)}


def _few(keys: list[str]) -> str:
    more = len(keys) - SHOWN
    return ", ".join(key[:LONGEST] for key in keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")
