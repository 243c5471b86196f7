"""What the operators of ONNX are in torch: one function each, from constants and traced values to a traced value."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Sizes = list[Any]  # of a shape, or a part of one: ints and traced sizes
Value = Any  # fx.Node (of a tensor), np.ndarray (a constant), Sizes or None (an input that is not given)

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVG_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
END = 1 << 31  # from here on a slice's end is that of the dimension


class Unknown(Exception):
    """Something that is not read."""


class Target(Protocol):
    """Where calls are put together."""

    graph: fx.Graph
    shapes: dict[str, list[int | None]]
    batch: int | None

    def module(self, name: str, module: nn.Module, *inputs: Any) -> fx.Node: ...


@dataclass
class Call:
    """One node of a file: its inputs, its attributes, and where its result goes."""

    target: Target
    kind: str
    name: str
    inputs: list[Value]
    attributes: dict[str, Any]
    names: list[str]  # of the inputs
    outputs: int

    @property
    def x(self) -> fx.Node:
        """The first input, which must be a value of the network."""
        return self.tensor(0)

    def tensor(self, index: int) -> fx.Node:
        value = self.inputs[index]
        if not isinstance(value, fx.Node):
            raise Unknown(f"the operator {self.kind} on a constant or a size")
        return value

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """An input that must be a constant; None where it is not given."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, list) and all(isinstance(n, int) for n in value):
            value = np.array(value)
        if value is not None and not isinstance(value, np.ndarray):
            raise Unknown(f"the operator {self.kind} whose input {index} depends on the network's input")
        return value

    def weight(self, index: int) -> Tensor | None:
        value = self.constant(index)
        return None if value is None else torch.tensor(np.array(value, dtype=np.float32))

    def setting(self, name: str, index: int, default: Any = None) -> Any:
        """What older versions have as an attribute and newer ones as an input."""
        if name in self.attributes:
            return self.attributes[name]
        if index < len(self.inputs) and isinstance(self.inputs[index], list):
            return self.inputs[index]
        value = self.constant(index)
        return default if value is None else value.tolist()

    def module(self, module: nn.Module, *inputs: Any) -> fx.Node:
        return self.target.module(self.name, module, *(inputs or (self.x,)))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Node:
        return self.target.graph.call_function(function, arguments, named)

    def rank(self, index: int = 0) -> int:
        shape = self.target.shapes.get(self.names[index])
        if not shape:
            raise Unknown(f"the operator {self.kind} on a value of unknown rank")
        return len(shape)


Operator = Callable[[Call], Value]
OPERATORS: dict[str, Operator] = {}


def reads(*kinds: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(kinds, function))
        return function

    return register


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
        layer: Any = TRANSPOSED[dims](
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
        raise Unknown("a MatMul with anything but a constant matrix")
    return c.module(_filled(nn.Linear(len(weight), weight.shape[1], False), weight.T, None))


@reads("BatchNormalization")
def batch_norm(c: Call) -> fx.Node:
    scale, shift, mean, variance = (c.weight(i) for i in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None:
        raise Unknown("a BatchNormalization without statistics")
    layer: Any = NORMS[c.rank()](len(scale), eps=c.attributes.get("epsilon", 1e-5))
    layer.running_mean, layer.running_var = mean, variance
    return c.module(_filled(layer, scale, shift))


def _filled(layer: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.contiguous(), requires_grad=False)
    made: nn.Module = layer.eval()
    return made


# -- activations -------------------------------------------------------------------------------------------------------

MODULES: dict[str, Callable[[Call], nn.Module]] = {  # what lowering refuses is refused there, by its name
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
def clip(c: Call) -> fx.Node:
    low, high = c.setting("min", 1), c.setting("max", 2)
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
        ceil = True  # windows that reach beyond the end are cut there, which is what padding at the end comes to
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
    """Zeros before and after each dimension, from `pads`, or from `auto_pad` where the sizes are in the file."""
    dims, how = len(reach), c.attributes.get("auto_pad", "NOTSET")
    if how in ("NOTSET", "VALID"):
        pads = tuple(c.attributes.get("pads") or (0,) * 2 * dims) if how == "NOTSET" else (0,) * 2 * dims
        return pads[:dims], pads[dims:]
    sizes = (c.target.shapes.get(c.names[0]) or [None] * (dims + 2))[2:]
    totals = []
    for k, s, n in zip(reach, stride, sizes, strict=True):
        if s > 1 and n is None:
            raise Unknown(f"auto_pad={how} of an image whose size is not in the file")
        totals.append(k - 1 if s == 1 else max(0, (-(-n // s) - 1) * s + k - n))
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
def reduce(c: Call) -> fx.Node:
    axes = c.setting("axes", 1) or list(range(1, c.rank()))
    function = torch.mean if c.kind == "ReduceMean" else torch.sum
    return c.call(function, c.x, tuple(axes), bool(c.attributes.get("keepdims", 1)))


@reads("Resize", "Upsample")
def resize(c: Call) -> fx.Node:
    mode = {"nearest": "nearest", "linear": "bilinear"}.get(c.attributes.get("mode", "nearest"))
    where = c.attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode is None or c.rank() != 4:
        raise Unknown(f"a {c.kind} of mode {c.attributes.get('mode')} of a value that is no image")
    aligned = {"align_corners": where == "align_corners"} if mode == "bilinear" else {}
    scales = c.attributes.get("scales") or (c.constant(1 if c.kind == "Upsample" else 2) if len(c.inputs) > 1 else None)
    if scales is not None and len(scales) == 4:
        factors = tuple(float(s) for s in scales[2:])
        return c.call(F.interpolate, c.x, scale_factor=factors, mode=mode, **aligned)
    sizes = c.inputs[3]
    wanted = list(sizes) if isinstance(sizes, list) else [int(n) for n in sizes]
    return c.call(F.interpolate, c.x, size=tuple(wanted[-2:]), mode=mode, **aligned)


# -- arithmetic --------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    # of values, of sizes, of constants
    "Add": (torch.add, operator.add, np.add),
    "Sub": (torch.sub, operator.sub, np.subtract),
    "Mul": (torch.mul, operator.mul, np.multiply),
    "Div": (torch.div, operator.floordiv, lambda a, b: a // b if a.dtype.kind in "iu" else a / b),
    "Min": (torch.minimum, min, np.minimum),
    "Max": (torch.maximum, max, np.maximum),
}


def _arithmetic(c: Call) -> Value:
    a, b = c.inputs
    of_values, of_sizes, of_constants = FUNCTIONS[c.kind]
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return c.call(of_values, _operand(a), _operand(b))
    if isinstance(a, list) or isinstance(b, list):
        left, right = (v if isinstance(v, list) else np.atleast_1d(v).tolist() for v in (a, b))
        longest = max(len(left), len(right))
        left, right = (v * longest if len(v) == 1 else v for v in (left, right))
        return [_sized(c, of_sizes, *pair) for pair in zip(left, right, strict=True)]
    return of_constants(a, b)


OPERATORS.update(dict.fromkeys(FUNCTIONS, _arithmetic))


def _operand(value: Value) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "f":
        value = value.astype(np.float32)
    return float(value) if value.ndim == 0 else torch.tensor(value.astype(np.float32))


def _sized(c: Call, function: Callable[..., Any], a: Any, b: Any) -> Any:
    return function(int(a), int(b)) if not {type(a), type(b)} & {fx.Node} else c.call(function, a, b)


@reads("Sum")
def total(c: Call) -> fx.Node:
    found = c.x
    for value in c.inputs[1:]:
        found = c.call(torch.add, found, _operand(value))
    return found


@reads("Neg")
def negative(c: Call) -> fx.Node:
    return c.call(torch.neg, c.x)


# -- shapes ------------------------------------------------------------------------------------------------------------


@reads("Constant")
def constant(c: Call) -> Value:
    (value,) = c.attributes.values()
    return np.asarray(value)


@reads("ConstantOfShape")
def constant_of_shape(c: Call) -> Value:
    shape, value = c.constant(0), c.attributes.get("value", np.zeros(1, np.float32))
    if shape is None or prod(shape.tolist()) > END:
        raise Unknown("a ConstantOfShape of no or of too large a shape")
    return np.full(shape.tolist(), value.item(), value.dtype)


@reads("Shape")
def shape(c: Call) -> Value:
    start, end = c.attributes.get("start", 0), c.attributes.get("end", c.rank())
    return [_size(c, d) for d in range(c.rank())][start:end]


def _size(c: Call, dim: int) -> Any:
    """A size of the first input: a number where the file has it, but for the batch's, which is never fixed."""
    known = (c.target.shapes.get(c.names[0]) or [None] * (dim + 1))[dim]
    if known is not None and dim > 0:
        return known
    return c.target.graph.call_method("size", (c.x, dim))


@reads("Cast")
def cast(c: Call) -> Value:
    if isinstance(c.inputs[0], np.ndarray):
        return c.inputs[0].astype({1: np.float32, 6: np.int32, 7: np.int64}.get(c.attributes["to"], np.float32))
    return c.inputs[0]  # floats stay what the network is in, sizes are whole


@reads("Floor", "Ceil", "Round")
def rounded(c: Call) -> Value:
    if isinstance(c.inputs[0], list):
        return c.inputs[0]  # sizes are whole
    functions = {"Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round}
    return c.call(functions[c.kind], c.x)


@reads("Gather")
def gather(c: Call) -> Value:
    source, index, axis = c.inputs[0], c.constant(1), c.attributes.get("axis", 0)
    if index is None:
        raise Unknown("a Gather without an index")
    if isinstance(source, list):
        return [source[i] for i in np.atleast_1d(index).tolist()]
    if isinstance(source, np.ndarray):
        return np.take(source, index, axis)
    where = (slice(None),) * (axis % c.rank())
    chosen = int(index) if index.ndim == 0 else index.tolist()
    return c.call(operator.getitem, c.x, (*where, chosen))


@reads("Unsqueeze", "Squeeze")
def squeezed(c: Call) -> Value:
    axes = c.setting("axes", 1)
    value = c.inputs[0]
    if isinstance(value, list):
        return value  # one size, or a list of them: both are lists here
    if isinstance(value, np.ndarray):
        return np.expand_dims(value, tuple(axes)) if c.kind == "Unsqueeze" else np.squeeze(value, tuple(axes or ()))
    found = value
    for axis in sorted(axes or (), reverse=c.kind == "Squeeze"):
        found = c.call(torch.unsqueeze if c.kind == "Unsqueeze" else torch.squeeze, found, axis)
    return found


@reads("Concat")
def concat(c: Call) -> Value:
    axis = c.attributes["axis"]
    if any(isinstance(value, list) for value in c.inputs):
        return [n for value in c.inputs for n in (value if isinstance(value, list) else np.atleast_1d(value).tolist())]
    if all(isinstance(value, np.ndarray) for value in c.inputs):
        return np.concatenate(c.inputs, axis)
    return c.call(torch.cat, tuple(c.tensor(i) for i in range(len(c.inputs))), axis)


@reads("Reshape")
def reshape(c: Call) -> Value:
    value, sizes = c.inputs[0], c.inputs[1]
    wanted = list(sizes) if isinstance(sizes, list) else [int(n) for n in sizes]
    if isinstance(value, np.ndarray):
        return value.reshape([value.shape[d] if n == 0 else n for d, n in enumerate(wanted)])
    if isinstance(value, list):
        return value
    if c.target.batch is not None and wanted and wanted[0] == c.target.batch:
        wanted[0] = 0  # written for one batch, and meant for every
    kept = [_size(c, d) if type(n) is int and n == 0 else n for d, n in enumerate(wanted)]
    return c.call(torch.reshape, c.x, tuple(kept))


@reads("Transpose")
def transpose(c: Call) -> Value:
    order = c.attributes.get("perm") or list(reversed(range(c.rank())))
    if isinstance(c.inputs[0], np.ndarray):
        return np.transpose(c.inputs[0], order)
    return c.call(torch.permute, c.x, tuple(order))


@reads("Slice")
def sliced(c: Call) -> Value:
    starts, ends = (c.setting(name, i) for i, name in enumerate(("starts", "ends"), start=1))
    axes = c.setting("axes", 3) or list(range(len(starts)))
    steps = c.setting("steps", 4) or [1] * len(starts)
    ends = [None if isinstance(end, int) and abs(end) >= END else end for end in ends]
    cuts = {a: slice(s, e, k) for a, s, e, k in zip(axes, starts, ends, steps, strict=True)}
    if isinstance(c.inputs[0], list):
        return c.inputs[0][cuts[0]]
    if isinstance(c.inputs[0], np.ndarray):
        rank = c.inputs[0].ndim
        return c.inputs[0][tuple(cuts.get(d, cuts.get(d - rank, slice(None))) for d in range(rank))]
    index = tuple(cuts.get(d, cuts.get(d - c.rank(), slice(None))) for d in range(c.rank()))
    return c.call(operator.getitem, c.x, index)


@reads("Split")
def split(c: Call) -> Value:
    axis, sizes = c.attributes.get("axis", 0), c.setting("split", 1)
    if sizes is None:
        whole = (c.target.shapes.get(c.names[0]) or [])[axis]
        if whole is None or whole % c.outputs:
            raise Unknown("a Split of a value whose size is not in the file")
        sizes = [whole // c.outputs] * c.outputs
    found = c.call(torch.split, c.x, tuple(sizes), axis)
    parts = [c.call(operator.getitem, found, i) for i in range(c.outputs)]
    return parts if c.outputs > 1 else parts[0]


@reads("Pad")
def pad(c: Call) -> fx.Node:
    pads, value = c.setting("pads", 1), c.setting("value", 2) or 0.0
    axes = c.constant(3)
    rank = c.rank()
    before, after = [0] * rank, [0] * rank
    count = len(pads) // 2
    for i, axis in enumerate(range(rank) if axes is None else axes.tolist()):
        before[axis], after[axis] = int(pads[i]), int(pads[count + i])
    first = next((d for d in range(rank) if before[d] or after[d]), rank)
    if first >= rank:
        return c.x
    pairs = [n for d in reversed(range(first, rank)) for n in (before[d], after[d])]
    mode = c.attributes.get("mode", "constant")
    mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    return c.call(F.pad, c.x, tuple(pairs), mode, *((float(value),) if mode == "constant" else ()))
