"""How activations, pools, interpolation and dropout are lowered."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import dropout as dropouts
from torch.nn.modules import pooling

from spikecal.graph.lowering.build import Builder, handles, numbers
from spikecal.graph.lowering.values import Dim, Ref, Refusal, example_size, find
from spikecal.graph.ops import AdaptiveAvgPool, AvgPool, MaxPool, Reduce, Spike, Upsample

ADAPTIVE_HINT = "replace it with a max-pool of a fixed kernel or with an adaptive average pool"
RELU_HINT = "replace it with ReLU, ReLU6 or Hardtanh(0, c) and fine-tune"


@handles("relu")
def relu(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    return spike(b, input, None)


@handles(nn.ReLU)
def relu_module(b: Builder, m: Any, input: Ref) -> Ref:
    return spike(b, input, None)


def spike(b: Builder, x: Ref, clip: float | None) -> Ref:
    if x.ndim < 2:
        raise Refusal("an activation of one number per image", "squeeze or index after it, not before it")
    return b.emit(Spike(clip=clip, channel=x.channel, ndim=x.ndim), x)


@handles("relu6")
def relu6(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    return spike(b, input, 6.0)


@handles("clamp", "clip", "hardtanh")
def clamp(b: Builder, input: Ref, min: Any = None, max: Any = None, **named: Any) -> Ref:
    low, high = (_bound(value) for value in (named.get("min_val", min), named.get("max_val", max)))
    if low is None and isinstance(b.graph.nodes[input.name].op, Spike):
        low = 0.0  # no values lie below
    if isinstance(high, Tensor):
        return _clip_by_channel(b, input, low, high)
    if low != 0 or (high is not None and high <= 0):
        raise Refusal(f"a clamp to [{low}, {high}], which does not start at 0", RELU_HINT)
    return spike(b, input, None if high is None else float(high))


def _bound(value: Any) -> Any:
    """None, a number, or a tensor of several if a clip was learned per channel."""
    if isinstance(value, Tensor):
        first = value.flatten()[0]
        return float(first) if bool((value == first).all()) else value
    if find((Ref, Dim), value) or not (value is None or isinstance(value, (int, float))):
        raise Refusal("a clamp with bounds that are not numbers", RELU_HINT)
    return value


def _clip_by_channel(b: Builder, x: Ref, low: Any, high: Tensor) -> Ref:
    """`clamp(x, 0, alpha)` as `alpha clamp(x / alpha, 0, 1)`: a layer's clip is one number."""
    if low != 0 or not bool((high > 0).all()):
        raise Refusal(f"a clamp from {low} to several bounds, which does not start at 0", RELU_HINT)
    before = b.graph.nodes[x.name]
    if isinstance(before.op, Spike) and before.op.clip is None:
        x = b.value(before.inputs[0])  # a separate ReLU would be another layer of neurons
    return b.affine(spike(b, b.affine(x, 1 / high, part="unit"), 1.0), high, part="clip")


@handles("minimum", "min")
def minimum(b: Builder, input: Any, other: Any) -> Ref:
    """`min(relu(x), alpha)`, as learned clips are often written."""
    x, alpha = (input, other) if isinstance(input, Ref) else (other, input)
    if not isinstance(alpha, Tensor):
        raise Refusal("a minimum of anything except a value and a constant tensor", RELU_HINT)
    return clamp(b, x, None, alpha)


@handles("clamp_min")
def clamp_min(b: Builder, input: Ref, min: Any) -> Ref:
    return clamp(b, input, min)


@handles(nn.Hardtanh)
def hardtanh_module(b: Builder, m: Any, input: Ref) -> Ref:
    return clamp(b, input, m.min_val, m.max_val)


@handles("threshold")
def threshold(b: Builder, input: Ref, threshold: float, value: float, inplace: bool = False) -> Ref:
    if threshold != 0 or value != 0:
        raise Refusal(f"a threshold at {threshold} with value {value}", RELU_HINT)
    return spike(b, input, None)


@handles(nn.Threshold)
def threshold_module(b: Builder, m: Any, input: Ref) -> Ref:
    return threshold(b, input, m.threshold, m.value)


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    b: Builder, input: Ref, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Ref:  # fmt: skip
    dims = _space(input)
    if find(Dim, kernel_size):
        return _global_pool(b, input, kernel_size, padding)
    kernel = numbers(kernel_size, dims)
    op = AvgPool(
        kernel=kernel, stride=_stride(stride, kernel), padding=numbers(padding, dims), ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, divisor_override=divisor_override,
    )  # fmt: skip
    return b.emit(op, input)


def _global_pool(b: Builder, x: Ref, kernel: Any, padding: Any) -> Ref:
    """`F.avg_pool2d(x, x.size(3))`: a kernel as large as the image averages all of it."""
    kernel = kernel if isinstance(kernel, (tuple, list)) else (kernel,)
    sizes = [example_size(k) for k in kernel] * (_space(x) if len(kernel) == 1 else 1)
    if sizes != list(x.shape[2:]) or any(numbers(padding, len(sizes))):
        raise Refusal("an average pool with a kernel computed from the input's size", "use an adaptive average pool")
    return b.emit(AdaptiveAvgPool(size=[1] * len(sizes), square=len(kernel) < len(sizes)), x)


def _space(x: Ref) -> int:
    if not 3 <= x.ndim <= 5:
        raise Refusal(f"a pool or interpolation of a value of shape {list(x.shape)}")
    return x.ndim - 2


def _stride(stride: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    empty = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    return kernel if empty else numbers(stride, len(kernel))


@handles(pooling._AvgPoolNd)
def avg_pool_module(b: Builder, m: Any, input: Ref) -> Ref:
    divisor = getattr(m, "divisor_override", None)
    return avg_pool(b, input, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, divisor)


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(b: Builder, input: Ref, output_size: Any) -> Ref:
    dims = _space(input)
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    if find(Dim, sizes):
        raise Refusal("an adaptive pool to a size computed from the input", "interpolate with mode='area' instead")
    return b.emit(AdaptiveAvgPool(size=sizes), input)


@handles(pooling._AdaptiveAvgPoolNd)
def adaptive_avg_pool_module(b: Builder, m: Any, input: Ref) -> Ref:
    return adaptive_avg_pool(b, input, m.output_size)


@handles("mean")
def mean(b: Builder, input: Ref, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    return _reduce(b, "mean", input, dim, keepdim, dtype)


@handles("sum")
def sum_(b: Builder, input: Ref, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    return _reduce(b, "sum", input, dim, keepdim, dtype)


def _reduce(b: Builder, kind: str, x: Ref, dim: Any, keepdim: bool, dtype: Any) -> Ref:
    dims = [] if dim is None else sorted(x.dim(d) for d in (dim if isinstance(dim, (tuple, list)) else [dim]))
    if not dims or dims[0] == 0:
        raise Refusal(f"a {kind} over the images of a batch", "name the dimensions to reduce, without dimension 0")
    if dtype is not None and not dtype.is_floating_point:
        raise Refusal(f"a {kind} in {dtype}")
    return b.emit(Reduce(kind=kind, dims=dims, keepdim=keepdim), x)


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    b: Builder, input: Ref, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Ref:  # fmt: skip
    if return_indices:
        raise Refusal("a max-pool that returns indices")
    dims = _space(input)
    kernel = numbers(kernel_size, dims)
    op = MaxPool(
        kernel=kernel, stride=_stride(stride, kernel), padding=numbers(padding, dims),
        dilation=numbers(dilation, dims), ceil_mode=ceil_mode,
    )  # fmt: skip
    return b.emit(op, input)


@handles(pooling._MaxPoolNd)
def max_pool_module(b: Builder, m: Any, input: Ref) -> Ref:
    return max_pool(b, input, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, input: Ref, output_size: Any, return_indices: bool = False) -> Ref:
    """A max-pool with the kernel for this input size; refused unless that is the same for all inputs."""
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * _space(input)
    kernel = []
    for size, wanted in zip(input.fixed[2:], sizes, strict=True):
        if size is None:
            raise Refusal("an adaptive max-pool of a size that depends on the input", ADAPTIVE_HINT)
        if size % (wanted or size):
            raise Refusal(f"an adaptive max-pool from {size} to {wanted}, whose windows differ in size", ADAPTIVE_HINT)
        kernel.append(size // (wanted or size))
    return max_pool(b, input, kernel, return_indices=return_indices)


@handles(pooling._AdaptiveMaxPoolNd)
def adaptive_max_pool_module(b: Builder, m: Any, input: Ref) -> Ref:
    return adaptive_max_pool(b, input, m.output_size, m.return_indices)


@handles("interpolate")
def interpolate(
    b: Builder, input: Ref, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Ref:  # fmt: skip
    dims = _space(input)
    if antialias:
        raise Refusal("interpolation with antialias=True")
    if scale_factor is not None:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * dims
        if find(Dim, factors) or (recompute_scale_factor and any(f != int(f) for f in factors)):
            raise Refusal("interpolation by a factor that is recomputed from the sizes", "give the size instead")
        return b.emit(Upsample(mode=mode, scale=[float(f) for f in factors], align_corners=align_corners), input)
    sizes, refs = b.sizes(input, size if isinstance(size, (tuple, list)) else (size,) * dims)
    return b.emit(Upsample(mode=mode, size=sizes, align_corners=align_corners), input, refs=refs)


@handles(nn.Upsample)
def upsample_module(b: Builder, m: Any, input: Ref) -> Ref:
    recompute = m.recompute_scale_factor
    return interpolate(b, input, m.size, m.scale_factor, m.mode, m.align_corners, recompute)


@handles("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
def dropout(b: Builder, input: Ref, p: float = 0.5, training: bool = True, inplace: bool = False, **named: Any) -> Ref:
    if named.get("train", training) and p > 0:
        raise Refusal("a dropout that is active in eval mode", "pass training=self.training")
    return input


@handles(dropouts._DropoutNd)
def dropout_module(b: Builder, m: Any, input: Ref) -> Ref:
    return dropout(b, input, m.p, m.training)


@handles(nn.Identity)
def identity(b: Builder, m: Any, input: Ref) -> Ref:
    return input


@handles("torchvision.ops.stochastic_depth.stochastic_depth")
def stochastic_depth(b: Builder, input: Ref, p: float, mode: str, training: bool = True) -> Ref:
    return dropout(b, input, p, training)
