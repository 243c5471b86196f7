"""How weighted and arithmetic operations are lowered: convolutions, linear layers, batch norm, sums, constants."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm
from torch.nn.modules import conv as convolutions

from spikecal.graph.lowering.build import Builder, handles, numbers
from spikecal.graph.lowering.values import Dim, Ref, Refusal
from spikecal.graph.ops import Add, Conv, ConvTranspose, Linear, Pad

NO_STATISTICS = "give it running statistics (track_running_stats=True) and train on, or replace it"


@handles("conv1d", "conv2d", "conv3d")
def convolution(
    b: Builder, input: Ref, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, mode: str = "zeros",
) -> Ref:  # fmt: skip
    """A Conv, after a Pad unless the padding is the same number of zeros on both sides."""
    weight = b.tensor(weight)
    dims = weight.ndim - 2
    _need_batch(input, dims)
    spacing = numbers(dilation, dims)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(spacing, weight.shape[2:], strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(p, p) for p in numbers(0 if padding == "valid" else padding, dims)]
    if mode != "zeros" or any(left != right for left, right in sides):
        pad = [p for side in reversed(sides) for p in side]
        input = b.emit(Pad(pad=pad, mode="constant" if mode == "zeros" else mode), input, part="pad")
        sides = [(0, 0)] * dims
    op = Conv(
        weight=weight, bias=None if bias is None else b.tensor(bias), stride=numbers(stride, dims),
        padding=[left for left, _ in sides], dilation=spacing, groups=groups,
    )  # fmt: skip
    return b.emit(op, input)


@handles(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution_module(b: Builder, m: Any, input: Ref) -> Ref:
    return convolution(b, input, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups, m.padding_mode)


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(
    b: Builder, input: Ref, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Ref:  # fmt: skip
    weight = b.tensor(weight)
    dims = weight.ndim - 2
    _need_batch(input, dims)
    op = ConvTranspose(
        weight=weight, bias=None if bias is None else b.tensor(bias), stride=numbers(stride, dims),
        padding=numbers(padding, dims), output_padding=numbers(output_padding, dims),
        dilation=numbers(dilation, dims), groups=groups,
    )  # fmt: skip
    return b.emit(op, input)


@handles(convolutions._ConvTransposeNd)
def transposed_convolution_module(b: Builder, m: Any, input: Ref, output_size: Any = None) -> Ref:
    if output_size is not None:
        raise Refusal("a transposed convolution called with output_size", "give it an output_padding instead")
    return transposed_convolution(
        b, input, m.weight, m.bias, m.stride, m.padding, m.output_padding, m.groups, m.dilation
    )


def _need_batch(x: Ref, dims: int) -> None:
    if isinstance(x, Ref) and x.ndim != dims + 2:
        raise Refusal(f"a value of shape {list(x.shape)}, not of batch, channels and {dims} dimension(s)")


@handles("linear")
def linear(b: Builder, input: Ref, weight: Tensor, bias: Tensor | None = None) -> Ref:
    if isinstance(input, Ref) and input.ndim < 2:
        raise Refusal("a linear layer over the images of a batch")
    return b.emit(Linear(weight=b.tensor(weight), bias=None if bias is None else b.tensor(bias)), input)


@handles(nn.Linear)
def linear_module(b: Builder, m: Any, input: Ref) -> Ref:
    return linear(b, input, m.weight, m.bias)


@handles("matmul", "mm")
def matmul(b: Builder, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise Refusal("a matrix product of two values of the network")
    if not isinstance(input, Ref) or other.ndim != 2:
        raise Refusal("a matrix product other than `value @ matrix`", "write it as a linear layer")
    return linear(b, input, other.t())


@handles("batch_norm")
def batch_norm(
    b: Builder, input: Ref, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Ref:  # fmt: skip
    """`(x - mean) / sqrt(var + eps) * weight + bias` as one affine map per channel."""
    if running_mean is None or running_var is None:
        raise Refusal("a batch norm that has no running statistics: its output depends on the batch", NO_STATISTICS)
    if training:
        raise Refusal("a batch norm that is training: its output depends on the batch", "put it in eval mode")
    if not all(isinstance(t, Tensor) for t in (running_mean, running_var)):
        raise Refusal("a batch norm whose statistics depend on the input", NO_STATISTICS)
    scale = (running_var.double() + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.double()
    shift = -running_mean.double() * scale
    if bias is not None:
        shift = shift + bias.double()
    shape = [1, -1, *(1,) * (input.ndim - 2)]
    return b.affine(input, scale.reshape(shape), shift.reshape(shape))


@handles(torch.batch_norm)
def batch_norm_native(
    b: Builder, input: Ref, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Ref:  # fmt: skip
    return batch_norm(b, input, running_mean, running_var, weight, bias, training, momentum, eps)


@handles(batchnorm._BatchNorm)
def batch_norm_module(b: Builder, m: Any, input: Ref) -> Ref:
    return batch_norm(b, input, m.running_mean, m.running_var, m.weight, m.bias, m.training, eps=m.eps)


@handles("add", "iadd")
def add(b: Builder, input: Any, other: Any, *, alpha: float = 1) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        return _sum(b, input, other, alpha)
    if isinstance(input, Ref):
        return b.affine(input, shift=_times(other, alpha))
    return b.affine(other, scale=alpha, shift=input)


@handles("sub", "isub", "subtract")
def subtract(b: Builder, input: Any, other: Any, *, alpha: float = 1) -> Ref:
    return add(b, input, other, alpha=-alpha)


@handles("rsub")
def reversed_subtract(b: Builder, input: Any, other: Any, *, alpha: float = 1) -> Ref:
    return add(b, other, input, alpha=-alpha)


def _times(value: Any, factor: float) -> Any:
    return value if factor == 1 else value * factor


def _sum(b: Builder, x: Ref, y: Ref, coefficient: float) -> Ref:
    if x.ndim != y.ndim:
        raise Refusal(f"a sum of shapes {list(x.shape)} and {list(y.shape)}, which mixes the images of a batch")
    return b.emit(Add(coefficients=[1, coefficient]), x, y)


@handles("mul", "imul", "multiply")
def multiply(b: Builder, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise Refusal("a product of two values of the network", "a gate or attention like this has no spiking form")
    value, factor = (input, other) if isinstance(input, Ref) else (other, input)
    return b.affine(value, scale=factor)


@handles("div", "truediv", "itruediv", "divide", "true_divide")
def divide(b: Builder, input: Any, other: Any, *, rounding_mode: str | None = None) -> Ref:
    if rounding_mode is not None:
        raise Refusal("a division that rounds")
    if isinstance(other, Ref):
        raise Refusal("a division by a value of the network")
    return b.affine(input, scale=other if isinstance(other, Dim) else 1 / other)


@handles("neg", "negative")
def negate(b: Builder, input: Ref) -> Ref:
    return b.affine(input, scale=-1)


@handles("pos", "positive")
def positive(b: Builder, input: Ref) -> Ref:
    return input


@handles("zeros_like")
def zeros_like(b: Builder, input: Ref, **options: Any) -> Ref:
    return b.affine(input, scale=0)


@handles("ones_like")
def ones_like(b: Builder, input: Ref, **options: Any) -> Ref:
    return b.affine(input, scale=0, shift=1)
