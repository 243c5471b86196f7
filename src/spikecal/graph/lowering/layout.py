"""The origin of dimensions of a value: which holds the channels, and which have the same size for all inputs."""

from collections.abc import Callable, Sequence
from typing import Any

from spikecal.graph.lowering.values import Ref
from spikecal.graph.ops import (
    AdaptiveAvgPool,
    Add,
    AvgPool,
    Cat,
    ChannelAffine,
    Conv,
    ConvTranspose,
    Flatten,
    Linear,
    MaxPool,
    Op,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Slice,
    Spike,
    Upsample,
)  # fmt: skip
from spikecal.graph.ops.shape import WHOLE

Sources = list[int | None]  # for each dimension of the result, the corresponding dimension of the first input


def layout(name: str, op: Op, inputs: Sequence[Ref], references: Sequence[Ref], shape: tuple[int, ...]) -> Ref:
    """The value of a node named `name` that reads `inputs` and the shapes of `references`."""
    own = [("of", name, d) for d in range(len(shape))]
    if not inputs:
        return Ref(name, shape, 1, (None,) * len(shape), (("batch",), *own[1:]))
    x = inputs[0]
    rule = SOURCES.get(type(op))
    sources: Sources = [None] * len(shape) if rule is None else rule(op, x, len(shape))
    sources = [s if s is not None and x.shape[s] == n else None for n, s in zip(shape, sources, strict=True)]
    fixed = [None if s is None else x.fixed[s] for s in sources]
    for d, size in _new_sizes(op, inputs, shape).items():
        fixed[d] = size
    fixed[0] = None
    origin = [own[d] if s is None else x.origin[s] for d, s in enumerate(sources)]
    for d, size in _given_sizes(op).items():
        if size[0] == "size":
            origin[d] = (x, *references)[size[1]].origin[size[2]]
    return Ref(name, shape, _channel(op, x, sources, shape), tuple(fixed), (("batch",), *origin[1:]))


def _given_sizes(op: Any) -> dict[int, Any]:
    """Size expressions of the operation's settings, by the resulting dimension."""
    if isinstance(op, Reshape):
        sizes = dict(enumerate(op.shape))
    elif isinstance(op, Upsample) and op.size is not None:
        sizes = dict(enumerate(op.size, start=2))
    else:
        return {}
    return {d: size for d, size in sizes.items() if isinstance(size, tuple)}


def _new_sizes(op: Any, inputs: Sequence[Ref], shape: tuple[int, ...]) -> dict[int, int]:
    """Sizes that the operation itself fixes."""
    if isinstance(op, Conv):
        return {1: op.weight.shape[0]}
    if isinstance(op, ConvTranspose):
        return {1: op.weight.shape[1] * op.groups}
    if isinstance(op, Linear):
        return {len(shape) - 1: op.weight.shape[0]}
    if isinstance(op, AdaptiveAvgPool):
        return {len(shape) - len(op.size) + i: n for i, n in enumerate(op.size) if n is not None}
    if isinstance(op, Reshape):
        return {d: n for d, n in enumerate(op.shape) if type(n) is int and n >= 0}
    if isinstance(op, Cat):
        whole = all(x.fixed[op.dim] is not None for x in inputs)
        return {op.dim: shape[op.dim]} if whole else {}
    if isinstance(op, Flatten):
        merged = inputs[0].fixed[op.start : op.end % inputs[0].ndim + 1]
        return {} if None in merged else {op.start: shape[op.start]}
    if isinstance(op, Slice):
        return _cut_sizes(op, inputs[0], shape)
    return {}


def _cut_sizes(op: Slice, x: Ref, shape: tuple[int, ...]) -> dict[int, int]:
    """Sizes of new dimensions, and of constant slices of a dimension of fixed size."""
    sizes = {}
    for d, (item, source) in enumerate(_slice_items(op, x)):
        if source is None:
            sizes[d] = 1
        elif x.fixed[source] is not None and all(s is None or type(s) is int for s in item[1:]):
            sizes[d] = shape[d]
    return sizes


def _slice_items(op: Any, x: Ref) -> list[tuple[Any, int | None]]:
    """For each dimension of the result: its item of the index, and the dimension of `x` that it slices."""
    found: list[tuple[Any, int | None]] = []
    source = 0
    for item in op.index:
        if item is None:
            found.append((item, None))
            continue
        if isinstance(item, tuple):
            found.append((item, source))
        source += 1
    return found + [(WHOLE, d) for d in range(source, x.ndim)]


def _channel(op: Any, x: Ref, sources: Sources, shape: tuple[int, ...]) -> int:
    if isinstance(op, Linear):
        return max(1, len(shape) - 1)
    if isinstance(op, (Conv, ConvTranspose)):
        return 1
    if isinstance(op, Slice):
        sources = [source for _, source in _slice_items(op, x)]
    elif isinstance(op, (Cat, Pad)):
        return x.channel
    if x.channel in sources:
        return max(1, sources.index(x.channel))
    if isinstance(op, Flatten) and op.start <= x.channel:
        return op.start
    if isinstance(op, Reshape) and 1 < x.channel == x.ndim - 1 and shape[-1] == x.shape[-1]:
        return len(shape) - 1
    return 1


def _same(op: Any, x: Ref, ndim: int) -> Sources:
    return [d if d < x.ndim else None for d in range(ndim)]


def _front(touched: Callable[[Any, Ref], int]) -> Callable[[Any, Ref, int], Sources]:
    """All dimensions except the last few, which the operation changes."""
    return lambda op, x, ndim: [d if d < ndim - touched(op, x) else None for d in range(ndim)]


def _slice_sources(op: Any, x: Ref, ndim: int) -> Sources:
    return [source if item == WHOLE else None for item, source in _slice_items(op, x)]


def _reduce_sources(op: Any, x: Ref, ndim: int) -> Sources:
    if op.keepdim:
        return [None if d in op.dims else d for d in range(x.ndim)]
    return [d for d in range(x.ndim) if d not in op.dims]


def _flatten_sources(op: Any, x: Ref, ndim: int) -> Sources:
    end = op.end % x.ndim
    return [*range(op.start), None, *range(end + 1, x.ndim)]


SOURCES: dict[type[Op], Callable[[Any, Ref, int], Sources]] = {
    Spike: _same,
    ChannelAffine: _same,
    Add: _same,
    Cat: _same,
    Linear: lambda op, x, ndim: [*range(ndim - 1), None],
    AvgPool: _front(lambda op, x: len(op.kernel)),
    MaxPool: _front(lambda op, x: len(op.kernel)),
    AdaptiveAvgPool: _front(lambda op, x: len(op.size)),
    Upsample: _front(lambda op, x: x.ndim - 2),
    Pad: _front(lambda op, x: len(op.pad) // 2),
    Permute: lambda op, x, ndim: list(op.dims),
    Slice: _slice_sources,
    Reduce: _reduce_sources,
    Flatten: _flatten_sources,
}
