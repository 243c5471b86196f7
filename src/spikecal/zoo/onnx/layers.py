"""Operators with weights, activations, pools and resizing: torch modules."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from spikecal.zoo.onnx.calls import OPERATORS, Call, Unknown, Value, reads

CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVG_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


# -- weights -----------------------------------------------------------------------------------------------------------


@reads("Conv", "ConvTranspose")
def convolution(c: Call) -> fx.Node:
    weight, bias = c.weight(1), c.weight(2)
    if weight is None:
        raise Unknown("a convolution without weights")
    dims, groups = weight.ndim - 2, c.attributes.get("group", 1)
    spacing, stride = (tuple(c.attributes.get(key) or (1,) * dims) for key in ("dilations", "strides"))
    settings = {"stride": stride, "dilation": spacing, "groups": groups, "bias": bias is not None}
    kernel = tuple(weight.shape[2:])
    reach = [d * (k - 1) + 1 for d, k in zip(spacing, kernel, strict=True)]
    before, after = padding(c, reach, stride)
    if c.kind == "ConvTranspose":
        if before != after or c.attributes.get("output_shape"):
            raise Unknown("a transposed convolution with an output_shape or uneven padding")
        extra = tuple(c.attributes.get("output_padding") or (0,) * dims)
        layer = TRANSPOSED[dims](
            weight.shape[0], weight.shape[1] * groups, kernel, padding=before, output_padding=extra, **settings
        )
        return c.module(_filled(layer, weight, bias))
    x = c.x
    if before != after:
        x, before = padded(c, x, before, after), (0,) * dims
    layer = CONVOLUTIONS[dims](weight.shape[1] * groups, weight.shape[0], kernel, padding=before, **settings)
    return c.module(_filled(layer, weight, bias), x)


@reads("Gemm")
def gemm(c: Call) -> fx.Node:
    weight, bias = c.weight(1), c.weight(2)
    if weight is None or c.attributes.get("transA"):
        raise Unknown("a Gemm without constant weights, or of a transposed value")
    weight = c.attributes.get("alpha", 1.0) * (weight if c.attributes.get("transB") else weight.T)
    bias = None if bias is None else (c.attributes.get("beta", 1.0) * bias).expand(len(weight))
    return c.module(_filled(nn.Linear(weight.shape[1], len(weight), bias is not None), weight, bias))


@reads("MatMul")
def matmul(c: Call) -> fx.Node:
    weight = c.weight(1)
    if weight is None or weight.ndim != 2:
        raise Unknown("a MatMul with anything except a constant matrix")
    return c.module(_filled(nn.Linear(len(weight), weight.shape[1], False), weight.T, None))


@reads("BatchNormalization")
def batch_norm(c: Call) -> Value:
    scale, shift, mean, variance = (c.weight(i) for i in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None:
        raise Unknown("a BatchNormalization without statistics")
    eps, training = c.attributes.get("epsilon", 1e-5), bool(c.attributes.get("training_mode", 0))
    if c.is_constant:  # weights that are normalised on every run
        weights = torch.tensor(np.asarray(c.inputs[0], dtype=np.float32))
        known = (None, None) if training else (mean, variance)
        return F.batch_norm(weights, known[0], known[1], scale, shift, training, 0.0, eps).numpy()
    layer: Any = NORMS[c.rank()](len(scale), eps=eps)
    layer.running_mean, layer.running_var = mean, variance
    return c.module(_filled(layer, scale, shift))


def _filled(layer: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.contiguous(), requires_grad=False)
    made: nn.Module = layer.eval()
    return made


# -- activations -------------------------------------------------------------------------------------------------------

MODULES: dict[str, Callable[[Call], nn.Module]] = {  # lowering refuses, by name, those it cannot convert
    "Relu": lambda c: nn.ReLU(),
    "Sigmoid": lambda c: nn.Sigmoid(),
    "Tanh": lambda c: nn.Tanh(),
    "Softplus": lambda c: nn.Softplus(),
    "Mish": lambda c: nn.Mish(),
    "HardSwish": lambda c: nn.Hardswish(),
    "Gelu": lambda c: nn.GELU(approximate=c.attributes.get("approximate", "none")),
    "LeakyRelu": lambda c: nn.LeakyReLU(c.attributes.get("alpha", 0.01)),
    "Elu": lambda c: nn.ELU(c.attributes.get("alpha", 1.0)),
    "Softmax": lambda c: nn.Softmax(c.attributes.get("axis", -1)),
    "LogSoftmax": lambda c: nn.LogSoftmax(c.attributes.get("axis", -1)),
    "Identity": lambda c: nn.Identity(),
    "Dropout": lambda c: nn.Identity(),
    "Flatten": lambda c: nn.Flatten(c.attributes.get("axis", 1)),
}


def _of_module(c: Call) -> Value:
    if not isinstance(c.inputs[0], fx.Node):
        return c.inputs[0] if c.kind == "Identity" else np.maximum(c.inputs[0], 0) if c.kind == "Relu" else c.x
    return c.module(MODULES[c.kind](c))


OPERATORS.update(dict.fromkeys(MODULES, _of_module))


@reads("Clip")
def clip(c: Call) -> Value:
    low, high = c.setting("min", 1), c.setting("max", 2)
    if c.is_constant:
        return c.computed(np.clip, low, high)
    if low == 0 and high is not None:
        return c.module(nn.Hardtanh(0.0, float(high)))
    return c.call(torch.clamp, c.x, low, high)


# -- pools and sizes ---------------------------------------------------------------------------------------------------


@reads("MaxPool")
def max_pool(c: Call) -> fx.Node:
    kernel, stride, spacing = _window(c)
    reach = [d * (k - 1) + 1 for d, k in zip(spacing, kernel, strict=True)]
    before, after = padding(c, reach, stride)
    ceil = bool(c.attributes.get("ceil_mode", 0))
    if before != after:
        if any(before):
            raise Unknown("a MaxPool that pads more in front than behind")
        ceil = True  # windows beyond the end are clipped there, which is equivalent to padding at the end
    return c.module(MAX_POOLS[len(kernel)](kernel, stride, before, spacing, ceil_mode=ceil))


@reads("AveragePool")
def average_pool(c: Call) -> fx.Node:
    kernel, stride, _ = _window(c)
    before, after = padding(c, kernel, stride)
    counted, x = bool(c.attributes.get("count_include_pad", 0)), c.x
    if before != after:
        if not counted:
            raise Unknown("an AveragePool with uneven padding that is not counted")
        x, before = padded(c, x, before, after), (0,) * len(kernel)
    ceil = bool(c.attributes.get("ceil_mode", 0))
    pool: Any = AVG_POOLS[len(kernel)]
    return c.module(pool(kernel, stride, before, ceil_mode=ceil, count_include_pad=counted), x)


def _window(c: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = tuple(c.attributes["kernel_shape"])
    ones = (1,) * len(kernel)
    return kernel, tuple(c.attributes.get("strides") or ones), tuple(c.attributes.get("dilations") or ones)


def padding(c: Call, reach: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Zeros before and after each dimension, from `pads`, or from `auto_pad` if the file states the sizes."""
    dims, how = len(reach), c.attributes.get("auto_pad", "NOTSET")
    if how in ("NOTSET", "VALID"):
        pads = tuple(c.attributes.get("pads") or (0,) * 2 * dims) if how == "NOTSET" else (0,) * 2 * dims
        return pads[:dims], pads[dims:]
    sizes = (c.target.shapes.get(c.names[0]) or [None] * (dims + 2))[2:]
    totals = []
    for k, s, n in zip(reach, stride, sizes, strict=True):
        if s == 1:
            totals.append(k - 1)
        elif n is not None:
            totals.append(max(0, (-(-n // s) - 1) * s + k - n))
        else:
            raise Unknown(f"auto_pad={how} of an image whose size the file does not state")
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (small, large) if how == "SAME_UPPER" else (large, small)


def padded(c: Call, x: fx.Node, before: Sequence[int], after: Sequence[int]) -> fx.Node:
    pairs = zip(reversed(before), reversed(after), strict=True)
    return c.call(F.pad, x, tuple(n for pair in pairs for n in pair))


@reads("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> fx.Node:
    pools = {
        "GlobalAveragePool": (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        "GlobalMaxPool": (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    }
    pool: Any = pools[c.kind][c.rank() - 3]
    return c.module(pool(1))


@reads("ReduceMean", "ReduceSum")
def reduce(c: Call) -> Value:
    axes, keep = c.setting("axes", 1), bool(c.attributes.get("keepdims", 1))
    if c.is_constant:
        over = tuple(axes) if axes else None
        return c.computed(np.mean if c.kind == "ReduceMean" else np.sum, axis=over, keepdims=keep)
    function = torch.mean if c.kind == "ReduceMean" else torch.sum
    return c.call(function, c.x, tuple(axes or range(1, c.rank())), keep)


@reads("Resize", "Upsample")
def resize(c: Call) -> fx.Node:
    mode = {"nearest": "nearest", "linear": "bilinear"}.get(c.attributes.get("mode", "nearest"))
    where = c.attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode is None or c.rank() != 4:
        raise Unknown(f"a {c.kind} of mode {c.attributes.get('mode')} of a value that is not an image")
    aligned = {"align_corners": where == "align_corners"} if mode == "bilinear" else {}
    scales = c.attributes.get("scales") or (c.constant(1 if c.kind == "Upsample" else 2) if len(c.inputs) > 1 else None)
    if scales is not None and len(scales) == 4:
        factors = tuple(float(s) for s in scales[2:])
        return c.call(F.interpolate, c.x, scale_factor=factors, mode=mode, **aligned)
    sizes = c.inputs[3]
    wanted = list(sizes) if isinstance(sizes, list) else [int(n) for n in sizes]
    return c.call(F.interpolate, c.x, size=tuple(wanted[-2:]), mode=mode, **aligned)
