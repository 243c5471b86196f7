"""Before and after lowering: a private copy of the caller's model, and the comparison with it."""

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from spikecal.errors import ConversionError, DataError
from spikecal.graph.graph import Graph, same_structure
from spikecal.tensors import as_tensor

# Tolerance between lowered graph and model, relative to the largest output: rounding in the model's own dtype.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
SMALL_TYPES = (torch.float16, torch.bfloat16)
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)


@dataclass(frozen=True)
class Working:
    """Copies in eval mode: `original` in the model's own dtype, `model` and `example` in the dtype to work in."""

    original: nn.Module
    model: nn.Module
    example: tuple[Tensor, ...]
    dtype: torch.dtype
    device: torch.device
    tolerance: float


def prepare(model: nn.Module, example: Sequence[Tensor], dtype: torch.dtype | None = None) -> Working:
    """Copy the model and the example inputs, to `dtype` or their own, with half precision becoming float32."""
    model = unwrapped(model)
    inputs = _checked(example)
    types, device = _types_and_device(model, inputs)
    original = _copy(model)
    if dtype is not None:
        original, types = original.to(dtype), {dtype}
    widest = functools.reduce(torch.promote_types, types)
    dtype = torch.float32 if widest in SMALL_TYPES else widest
    working = original if types == {dtype} else _copy(model).to(dtype)
    placed = tuple(x.detach().to(device, dtype) for x in inputs)
    return Working(original, working, placed, dtype, device, max(TOLERANCE.get(t, 1e-4) for t in types))


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of torch.compile, parallel training and averaging."""
    while True:
        inner = getattr(model, "_orig_mod", model.module if isinstance(model, WRAPPERS) else None)
        if inner is None:
            return model
        model = inner


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).eval().requires_grad_(False)
    except Exception as error:
        hint = "make it work with copy.deepcopy (old weight_norm hooks: torch.nn.utils.remove_weight_norm)"
        raise ConversionError(type(model).__name__, f"the model cannot be copied: {error}", hint) from error


def _types_and_device(model: nn.Module, example: Sequence[Tensor]) -> tuple[set[torch.dtype], torch.device]:
    """The float types of the model's tensors, or of the example if it has none, and their devices."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ConversionError(type(model).__name__, "a TorchScript module", "give the Python module it was made from")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ConversionError(name, "a parameter without values", "run the model once before converting it")
        if tensor.is_meta:
            raise ConversionError(name, "a parameter on the meta device, which holds no values", "load the weights")
    devices = {tensor.device: name for name, tensor in tensors}
    if len(devices) > 1:
        places = " and ".join(f"{name} on {device}" for device, name in devices.items())
        raise ConversionError(type(model).__name__, f"parameters on several devices: {places}", "use model.to(device)")
    types = {t.dtype for _, t in tensors if t.is_floating_point()} or {x.dtype for x in example}
    return types, next(iter(devices), example[0].device)


def _checked(example: Sequence[Tensor]) -> list[Tensor]:
    example = [as_tensor(x) for x in example]
    if not example:
        raise DataError("there is no example input")
    for i, x in enumerate(example):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(f"input {i} is {kind}: inputs must be tensors of floats")
        if x.ndim < 2 or x.numel() == 0:
            raise DataError(f"input {i} has shape {list(x.shape)}: dimension 0 must be a batch of at least one image")
        if not torch.isfinite(x).all():
            raise DataError(f"input {i} holds NaN or infinite values")
    sizes = {x.shape[0] for x in example}
    if len(sizes) > 1:
        raise DataError(f"the inputs have different batch sizes: {sorted(sizes)}")
    # A batch of one could be confused with any other dimension of size one.
    return [torch.cat([x, x]) if x.shape[0] == 1 else x for x in example]


def relative_error(graph: Graph, working: Working) -> float:
    """The largest difference between graph and model on the example, relative to the largest output."""
    with torch.no_grad():
        try:
            own = next((p.dtype for p in working.original.parameters() if p.is_floating_point()), working.dtype)
            expected = working.original(*(x.to(own, copy=True) for x in working.example))
        except RuntimeError:  # some operations lack half-precision kernels on some devices
            expected = working.model(*(x.clone() for x in working.example))
        found = graph.run(*(x.clone() for x in working.example))
    errors = [0.0]

    def compare(a: Tensor, b: Tensor) -> bool:
        if a.shape == b.shape and b.numel():
            scale = max(float(b.abs().max()), 1e-6)
            errors.append(float((a - b.to(a.dtype)).abs().max()) / scale)
        return a.shape == b.shape

    same = same_structure(found, _plain(expected), compare)
    return max(errors) if same and all(map(math.isfinite, errors)) else math.inf


def _plain(value: Any) -> Any:
    """Outputs as plain tuples, lists and dicts, even if the model returns subclasses."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return tuple(_plain(v) for v in value) if isinstance(value, tuple) else value
