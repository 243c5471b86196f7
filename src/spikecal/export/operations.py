"""Turn each operation of a network into nodes of a netlist. All are linear, except max-pools."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spikecal.export.builder import Builder, refuse
from spikecal.export.netlist import Conv, Flatten, Linear, MaxPool, Node, SumPool, dense_weight
from spikecal.export.values import Shape, Term, Value, mixing, ones, total
from spikecal.graph import ops
from spikecal.graph.graph import Node as Operation
from spikecal.graph.ops.shape import WHOLE
from spikecal.graph.sizes import evaluate_size

Pair = tuple[int, int]


def value_of(build: Builder, node: Operation, inputs: Sequence[Value]) -> Value:
    """The value of an operation without neurons; ConversionError if a netlist cannot express it."""
    handler = HANDLERS.get(type(node.op))
    kind = type(node.op).__name__
    if handler is None:
        refuse(node, f"{kind} has no counterpart in other simulators", "replace it in the model")
    value = handler(build, node, *inputs)
    if value.shape != build.shapes[node.name]:
        refuse(node, f"{kind} in this form cannot be exported", "replace it in the model")
    return value


# -- weights -------------------------------------------------------------------------------------------------------


def conv(build: Builder, node: Operation, value: Value) -> Value:
    op, shape = node.op, build.shapes[node.name]
    assert isinstance(op, ops.Conv)
    _two_dimensions(node, len(op.stride))
    weight = op.weight.detach().double()

    def make(mix: Tensor) -> Node:
        settings: dict[str, Any] = {
            "stride": _pair(op.stride),
            "padding": _pair(op.padding),
            "dilation": _pair(op.dilation),
        }
        if mix.ndim == 2:
            folded = torch.einsum("oi...,ij->oj...", dense_weight(weight, op.groups), mix)
            return Conv(name=node.name, shape=shape, weight=folded, **settings)
        factors = mix.reshape(op.groups, 1, -1).expand(-1, weight.shape[0] // op.groups, -1)
        folded = weight * factors.reshape(weight.shape[0], -1, 1, 1)
        return Conv(name=node.name, shape=shape, weight=folded, groups=op.groups, **settings)

    value = build.without_constant(node, value) if any(op.padding) else value
    result = Value(build.weighted(value, make), shape)
    if value.constant is not None:
        result = result.plus(value.constant @ dense_weight(weight, op.groups).sum((2, 3)).T)
    return result if op.bias is None else result.plus(build.during(node, op.bias))


def linear(build: Builder, node: Operation, value: Value) -> Value:
    op, shape = node.op, build.shapes[node.name]
    assert isinstance(op, ops.Linear)
    if len(value.shape) != 1:
        refuse(node, "a linear layer on several dimensions", "flatten its input, or use a 1x1 convolution")
    weight = op.weight.detach().double()

    def make(mix: Tensor) -> Node:
        return Linear(name=node.name, shape=shape, weight=weight * mix if mix.ndim == 1 else weight @ mix)

    result = Value(build.weighted(value, make), shape)
    if value.constant is not None:
        result = result.plus(value.constant @ weight.T)
    return result if op.bias is None else result.plus(build.during(node, op.bias))


def affine(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.ChannelAffine)
    if op.scale is not None:
        value = value.scaled(_for_channels(node, op.scale, value.shape))
    return value if op.shift is None else value.plus(build.during(node, _for_channels(node, op.shift, value.shape)))


def _for_channels(node: Operation, tensor: Tensor, shape: Shape) -> Tensor:
    """Broadcast values as one number per channel."""
    each = torch.broadcast_to(tensor.detach().double(), (1, *shape)).reshape(shape[0], -1)
    if bool((each != each[:, :1]).any()):
        refuse(node, "numbers that differ between the positions of a channel", "use one number per channel")
    return each[:, 0]


# -- sums and channels ---------------------------------------------------------------------------------------------


def add(build: Builder, node: Operation, *values: Value) -> Value:
    op, shape = node.op, build.shapes[node.name]
    assert isinstance(op, ops.Add)
    if any(value.shape != shape for value in values):
        refuse(node, "a sum of values of different shapes", "add values of the same shape")
    pairs = zip(values, op.coefficients, strict=True)
    return total([value.scaled(ones(shape[0]) * factor) for value, factor in pairs], shape)


def cat(build: Builder, node: Operation, *values: Value) -> Value:
    op, shape = node.op, build.shapes[node.name]
    assert isinstance(op, ops.Cat)
    if op.dim != 1:
        refuse(node, "a concatenation along a dimension other than the channels", "concatenate channels")
    parts, place = [], 0
    for value in values:
        parts.append(value.mixed(_placed(value.shape[0], place, shape[0])))
        place += value.shape[0]
    return total(parts, shape)


def _placed(channels: int, place: int, among: int) -> Tensor:
    """The matrix that puts channels at a `place` among others, which are 0."""
    rows = torch.zeros(among, channels, dtype=torch.double)
    rows[place : place + channels] = torch.eye(channels, dtype=torch.double)
    return rows


# -- pools ---------------------------------------------------------------------------------------------------------


def average(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.AvgPool)
    _two_dimensions(node, len(op.kernel))
    kernel, padding = _pair(op.kernel), _pair(op.padding)
    if any(padding) and not op.count_include_pad:
        refuse(node, "an average pool that does not count its padding", "use count_include_pad=True")
    divisor = op.divisor_override or kernel[0] * kernel[1]
    shape = (value.shape[0], *_places(value.shape[1:], kernel, _pair(op.stride), padding))
    return _summed(build, node, value, shape, kernel, _pair(op.stride), padding).scaled(ones(shape[0]) / divisor)


def adaptive(build: Builder, node: Operation, value: Value) -> Value:
    shape = build.shapes[node.name]
    if len(shape) != 3 or any(have % want for have, want in zip(value.shape[1:], shape[1:], strict=True)):
        refuse(node, "an adaptive pool with different windows", "pool to a divisor of the size")
    kernel = (value.shape[1] // shape[1], value.shape[2] // shape[2])
    return _summed(build, node, value, shape, kernel, kernel).scaled(ones(shape[0]) / (kernel[0] * kernel[1]))


def reduce(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.Reduce)
    if len(value.shape) != 3 or sorted(op.dims) != [2, 3]:
        refuse(node, "a mean or sum over dimensions other than height and width", "reduce over both of these")
    kernel = (value.shape[1], value.shape[2])
    pooled = _summed(build, node, value, (value.shape[0], 1, 1), kernel, kernel)
    pooled = pooled.scaled(ones(value.shape[0]) / (kernel[0] * kernel[1])) if op.kind == "mean" else pooled
    return pooled if op.keepdim else _flattened(build, node.name, pooled)


def _summed(
    build: Builder, node: Operation, value: Value, shape: Shape, kernel: Pair, stride: Pair, padding: Pair = (0, 0)
) -> Value:
    """Sum over windows. Pools of other simulators have no padding: with padding, they become convolutions of ones."""
    value = build.without_constant(node, value) if any(padding) else value
    terms = []
    for term in value.terms:
        channels = build.netlist.nodes[term.node].shape[0]
        of = (channels, *shape[1:])
        pool: Node = SumPool(name=node.name, inputs=(term.node,), shape=of, kernel=kernel, stride=stride)
        if any(padding):
            weight = torch.ones(channels, 1, *kernel, dtype=torch.double)
            pool = _each(node, term.node, of, weight, stride, padding)
        terms.append(Term(build.add(pool), term.mix))
    constant = None if value.constant is None else value.constant * (kernel[0] * kernel[1])
    return Value(tuple(terms), shape, constant)


def max_pool(build: Builder, node: Operation, value: Value) -> Value:
    """A positive scale and a constant per channel commute with a maximum: `max(a x + c) = a max(x) + c`."""
    op = node.op
    assert isinstance(op, ops.MaxPool)
    _two_dimensions(node, len(op.kernel))
    first = value.terms[0].mix
    passes = len(value.terms) == 1 and first.ndim == 1 and bool((first > 0).all())
    sources = [value.terms[0].node] if passes else build.nodes_of(replace(value, constant=None), node.name)
    pool = MaxPool(
        name=node.name, inputs=tuple(sources), shape=build.shapes[node.name], kernel=_pair(op.kernel),
        stride=_pair(op.stride), padding=_pair(op.padding), dilation=_pair(op.dilation), ceil_mode=bool(op.ceil_mode),
    )  # fmt: skip
    return Value((Term(build.add(pool), first if passes else ones(value.shape[0])),), pool.shape, value.constant)


# -- positions -----------------------------------------------------------------------------------------------------


def flatten(build: Builder, node: Operation, value: Value) -> Value:
    shape = build.shapes[node.name]
    if shape == value.shape:
        return value
    if len(shape) != 1:
        refuse(node, f"a reshape from {list(value.shape)} to {list(shape)}", "only flattening can be exported")
    return _flattened(build, node.name, value)


def _flattened(build: Builder, name: str, value: Value) -> Value:
    places = value.shape[1] * value.shape[2]
    terms = []
    for term in value.terms:
        node, mix = term.node, term.mix
        if mix.ndim == 2 and places > 1:  # channels are mixed before they become features
            node = build.add(mixing(f"{name}.from.{node}", (node,), mix, value.shape))
            mix = ones(value.shape[0])
        flat = Flatten(name=name, inputs=(node,), shape=(build.netlist.nodes[node].shape[0] * places,))
        terms.append(Term(build.add(flat), mix.repeat_interleave(places) if mix.ndim == 1 else mix))
    constant = None if value.constant is None else value.constant.repeat_interleave(places, 1)
    return Value(tuple(terms), (value.shape[0] * places,), constant)


def pad(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.Pad)
    shapes = [(1, *value.shape), *((1, *build.shapes[name]) for name in node.shape_refs)]
    sizes = [evaluate_size(size, 1, shapes) for size in op.pad]
    left, right, top, bottom, before, after, *more = [*sizes, *[0] * (6 - len(sizes))]
    if op.mode != "constant" or op.value != 0 or min(sizes) < 0 or any(more) or len(value.shape) != 3:
        refuse(node, "padding other than zeros around an image or its channels", "pad with zeros")
    if before or after:
        value = value.mixed(_placed(value.shape[0], before, before + value.shape[0] + after))
    if not any((left, right, top, bottom)):
        return value
    padding = (max(top, bottom), max(left, right))
    kernel = (1 + abs(top - bottom), 1 + abs(left - right))
    value = build.without_constant(node, value)
    return _moved(build, node, value, kernel, (padding[0] - top, padding[1] - left), padding)


def cut(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.Slice)
    items = [*op.index[1:], *[WHOLE] * (1 + len(value.shape) - len(op.index))]
    if len(value.shape) != 3 or len(items) != 3 or not all(isinstance(item, tuple) for item in items):
        refuse(node, "an index that changes the dimensions", "slice channels, or take every n-th position")
    shapes = [(1, *value.shape), *((1, *build.shapes[name]) for name in node.shape_refs)]
    kept = [
        range(side)[slice(*(None if s is None else evaluate_size(s, 1, shapes) for s in item[1:]))]
        for item, side in zip(items, value.shape, strict=True)
    ]
    if len(kept[0]) < value.shape[0]:
        value = value.mixed(torch.eye(value.shape[0], dtype=torch.double)[list(kept[0])])
    stride = (kept[1].step, kept[2].step)
    if [*kept[1:]] != [range(0, side, step) for side, step in zip(value.shape[1:], stride, strict=True)]:
        refuse(node, "an image that is cropped", "slice channels, or take every n-th position")
    return value if stride == (1, 1) else _moved(build, node, value, (1, 1), (0, 0), (0, 0), stride)


def _moved(
    build: Builder, node: Operation, value: Value, kernel: Pair, at: Pair, padding: Pair, stride: Pair = (1, 1)
) -> Value:
    """Select positions of the same channels: a convolution with one weight of 1 per channel."""
    places, terms = build.shapes[node.name][1:], []
    for term in value.terms:
        channels = build.netlist.nodes[term.node].shape[0]
        weight = torch.zeros(channels, 1, *kernel, dtype=torch.double)
        weight[:, 0, at[0], at[1]] = 1
        terms.append(Term(build.add(_each(node, term.node, (channels, *places), weight, stride, padding)), term.mix))
    return Value(tuple(terms), (value.shape[0], *places), value.constant)


def _each(node: Operation, source: str, shape: Shape, weight: Tensor, stride: Pair, padding: Pair) -> Conv:
    """A convolution of every channel by itself."""
    return Conv(
        name=node.name, inputs=(source,), shape=shape, weight=weight, stride=stride, padding=padding, groups=shape[0]
    )


def _places(sides: Sequence[int], kernel: Pair, stride: Pair, padding: Pair) -> tuple[int, ...]:
    """The output size of a window that moves over an image."""
    return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, kernel, stride, padding, strict=True))


def _two_dimensions(node: Operation, dimensions: int) -> None:
    if dimensions != 2:
        refuse(node, f"{type(node.op).__name__} in {dimensions} dimensions", "only those in 2 can be exported")


def _pair(sizes: Sequence[int]) -> Pair:
    return int(sizes[0]), int(sizes[1])


HANDLERS: dict[type[ops.Op], Callable[..., Value]] = {
    ops.Conv: conv,
    ops.Linear: linear,
    ops.ChannelAffine: affine,
    ops.Add: add,
    ops.Cat: cat,
    ops.AvgPool: average,
    ops.AdaptiveAvgPool: adaptive,
    ops.Reduce: reduce,
    ops.MaxPool: max_pool,
    ops.Flatten: flatten,
    ops.Reshape: flatten,
    ops.Pad: pad,
    ops.Slice: cut,
}
