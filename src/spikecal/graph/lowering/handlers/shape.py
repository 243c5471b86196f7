"""How operations that only move values are lowered: reshapes, permutes, slices, concatenation, padding, casts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import padding as paddings

from spikecal.graph.lowering.build import Builder, handles, numbers
from spikecal.graph.lowering.values import Dim, Ref, Refusal, example_size
from spikecal.graph.ops import Cat, Flatten, Pad, Permute, Reshape, Slice
from spikecal.graph.ops.shape import WHOLE

MAX_RUNS = 64  # most slices for one selection of channels
BATCH_HINT = "keep dimension 0 the batch, written as x.size(0), x.shape[0] or -1"


@handles("getattr")
def attribute(b: Builder, input: Ref, name: str) -> Any:
    if name == "shape":
        return input.dims()
    if name == "data":
        return input
    if name in ("mT", "mH"):
        return transpose(b, input, -1, -2)
    raise Refusal(f"the tensor attribute {name}")


@handles("size")
def size(b: Builder, input: Ref, dim: int | None = None) -> Any:
    return input.dims() if dim is None else input.dims()[input.dim(dim)]


@handles("view", "reshape")
def reshape(b: Builder, input: Ref, *shape: Any, **named: Any) -> Ref:
    shape = shape or tuple(named.values())
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    if any(isinstance(s, torch.dtype) for s in shape):
        raise Refusal("a view of the bits as another type")
    return _reshape(b, input, shape)


def _reshape(b: Builder, x: Ref, shape: Sequence[Any], part: str = "") -> Ref:
    first, rest = shape[0], shape[1:]
    known = [example_size(s) for s in rest]
    if first == -1:
        count = 1
        for n in (*known, 1):
            count *= n
        keeps = torch.Size(x.shape).numel() == count * x.shape[0]
    else:
        keeps = isinstance(first, Dim) and first.is_batch
    if not keeps:
        shown = [s.value if isinstance(s, Dim) else s for s in shape]
        raise Refusal(f"a reshape from {list(x.shape)} to {shown} that mixes the batch with other sizes", BATCH_HINT)
    sizes, refs = b.sizes(x, rest)
    return b.emit(Reshape(shape=[("batch",), *sizes]), x, refs=refs, part=part)


@handles("view_as", "reshape_as")
def reshape_as(b: Builder, input: Ref, other: Ref) -> Ref:
    return _reshape(b, input, other.dims())


@handles("flatten", "ravel")
def flatten(b: Builder, input: Ref, start_dim: int = 0, end_dim: int = -1) -> Ref:
    start, end = input.dim(start_dim), input.dim(end_dim)
    if start == end:
        return input
    if start == 0:
        raise Refusal("a flatten that mixes the batch with other dimensions", "flatten from dimension 1 on")
    return b.emit(Flatten(start=start, end=end), input)


@handles(nn.Flatten)
def flatten_module(b: Builder, m: Any, input: Ref) -> Ref:
    return flatten(b, input, m.start_dim, m.end_dim)


@handles("unflatten")
def unflatten(b: Builder, input: Ref, dim: int, sizes: Sequence[Any]) -> Ref:
    d = input.dim(dim)
    return _reshape(b, input, [*input.dims()[:d], *sizes, *input.dims()[d + 1 :]])


@handles(nn.Unflatten)
def unflatten_module(b: Builder, m: Any, input: Ref) -> Ref:
    if not all(type(s) is int for s in m.unflattened_size):
        raise Refusal("named dimensions")
    return unflatten(b, input, m.dim, m.unflattened_size)


@handles("squeeze")
def squeeze(b: Builder, input: Ref, dim: Any = None) -> Ref:
    """A reshape, not an index: it fails if a dimension turns out to be larger than 1 at another input size."""
    wanted = range(1, input.ndim) if dim is None else [input.dim(d) for d in _several(dim)]
    gone = {d for d in wanted if input.shape[d] == 1}
    if 0 in wanted and input.shape[0] == 1:
        raise Refusal("a squeeze of the batch dimension", BATCH_HINT)
    if not gone:
        return input
    return _reshape(b, input, [s for d, s in enumerate(input.dims()) if d not in gone])


@handles("unsqueeze")
def unsqueeze(b: Builder, input: Ref, dim: int) -> Ref:
    d = dim if dim >= 0 else dim + input.ndim + 1
    return b.emit(Slice(index=[*_leading(d), None]), input)


def _leading(count: int) -> list[Any]:
    """Whole slices for the first dimensions; a new or selected dimension at 0 would displace the batch."""
    if count == 0:
        raise Refusal("an index into the batch dimension", BATCH_HINT)
    return [WHOLE] * count


@handles("getitem")
def getitem(b: Builder, input: Ref, index: Any) -> Ref:
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [i for i in items if not isinstance(i, (Tensor, Ref))]:
        at = items.index(Ellipsis)
        taken = sum(i is not None for i in items) - 1
        items[at : at + 1] = [slice(None)] * (input.ndim - taken)
    chosen = [d for d, item in enumerate(items) if isinstance(item, (list, Tensor))]
    if chosen:
        return _index(b, input, items, chosen)
    bounds: list[Any] = []
    for item in items:
        if isinstance(item, slice):
            bounds += [s for s in (item.start, item.stop, item.step) if s is not None]
        elif item is not None and type(item) is not int:
            raise Refusal("an index that is not made of numbers and slices")
    sizes, refs = b.sizes(input, bounds)
    expressed = iter(sizes)
    plain = [
        ("slice", *(None if s is None else next(expressed) for s in (item.start, item.stop, item.step)))
        if isinstance(item, slice)
        else item
        for item in items
    ]
    if plain and plain[0] != WHOLE:
        raise Refusal("an index into the batch dimension", BATCH_HINT)
    if all(item == WHOLE for item in plain):
        return input
    return b.emit(Slice(index=plain), input, refs=refs)


def _index(b: Builder, x: Ref, items: list[Any], chosen: list[int]) -> Ref:
    """`x[:, [2, 0, 1]]`: one list among whole slices."""
    if len(chosen) > 1 or any(item != slice(None) for d, item in enumerate(items) if d not in chosen):
        raise Refusal("an index that is not made of numbers and slices, or of one list among whole slices")
    return index_select(b, x, chosen[0], items[chosen[0]])


@handles("index_select")
def index_select(b: Builder, input: Ref, dim: int, index: Any) -> Ref:
    """A concatenation of slices, one per run of evenly spaced numbers in the index."""
    d = input.dim(dim)
    leading, numbers = _leading(d), torch.as_tensor(index)
    if numbers.is_floating_point() or numbers.dtype in (torch.bool, torch.uint8) or numbers.ndim != 1:
        raise Refusal("an index that is not a list of numbers")
    if input.fixed[d] is None:  # a slice past the end of a smaller image would not raise
        raise Refusal("a list of numbers as index into a dimension whose size depends on the input")
    runs = _runs([n % input.shape[d] for n in numbers.tolist()])
    if len(runs) > MAX_RUNS:
        raise Refusal(f"a selection in {len(runs)} separate pieces", "reorder the weights of the layers around it")
    parts = [
        b.emit(Slice(index=[*leading, ("slice", start, stop, step)]), input, part=f"{i}" if len(runs) > 1 else "")
        for i, (start, stop, step) in enumerate(runs)
    ]
    return parts[0] if len(parts) == 1 else b.emit(Cat(dim=d), *parts)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """The numbers as (start, stop, step) of slices, each as long as possible."""
    runs: list[list[int]] = []
    for n in numbers:
        run = runs[-1] if runs else []
        if run and n > run[-1] and (len(run) == 1 or n - run[-1] == run[1] - run[0]):
            run.append(n)
        else:
            runs.append([n])
    return [(run[0], run[-1] + 1, run[1] - run[0] if len(run) > 1 else 1) for run in runs]


@handles("select")
def select(b: Builder, input: Ref, dim: int, index: int) -> Ref:
    return b.emit(Slice(index=[*_leading(input.dim(dim)), *numbers(index, 1)]), input)


@handles("narrow")
def narrow(b: Builder, input: Ref, dim: int, start: Any, length: Any) -> Ref:
    d = input.dim(dim)
    start = start if isinstance(start, Dim) or start >= 0 else input.dims()[d] + start
    return _cut(b, input, d, [(start, start + length)])[0]


def _cut(b: Builder, x: Ref, d: int, ranges: Sequence[tuple[Any, Any]]) -> tuple[Ref, ...]:
    """One slice along `d` for each range."""
    parts, leading = [], _leading(d)
    for i, bounds in enumerate(ranges):
        (start, stop), refs = b.sizes(x, bounds)
        op = Slice(index=[*leading, ("slice", start, stop, None)])
        parts.append(b.emit(op, x, refs=refs, part=f"{i}" if len(ranges) > 1 else ""))
    return tuple(parts)


@handles("split", "split_with_sizes")
def split(
    b: Builder, tensor: Ref, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None,
    split_sizes: Any = None,
) -> tuple[Ref, ...]:  # fmt: skip
    """Function, method and `split_with_sizes` have different names for the second argument."""
    d = tensor.dim(dim)
    for given in (split_size, split_sizes):
        split_size_or_sections = given if split_size_or_sections is None else split_size_or_sections
    if isinstance(split_size_or_sections, (tuple, list)):
        ranges, start = [], 0
        for length in split_size_or_sections:
            ranges.append((start, start + length))
            start = start + length
        return _cut(b, tensor, d, ranges)
    step = split_size_or_sections
    count = -(-tensor.shape[d] // example_size(step))
    return _cut(b, tensor, d, [(step * i, step * (i + 1)) for i in range(count)])


@handles("chunk")
def chunk(b: Builder, input: Ref, chunks: int, dim: int = 0) -> tuple[Ref, ...]:
    d = input.dim(dim)
    return split(b, input, (input.dims()[d] + (chunks - 1)) // chunks, d)


@handles("unbind")
def unbind(b: Builder, input: Ref, dim: int = 0) -> tuple[Ref, ...]:
    d = input.dim(dim)
    if input.fixed[d] is None:
        raise Refusal("an unbind along a dimension whose size depends on the input")
    leading = _leading(d)
    return tuple(b.emit(Slice(index=[*leading, i]), input, part=f"{i}") for i in range(input.shape[d]))


@handles("permute")
def permute(b: Builder, input: Ref, *dims: Any) -> Ref:
    order = [input.dim(d) for d in _several(dims[0] if len(dims) == 1 else dims)]
    if order[0] != 0:
        raise Refusal("a permutation that moves the batch", BATCH_HINT)
    return input if order == sorted(order) else b.emit(Permute(dims=order), input)


@handles("transpose", "swapaxes", "swapdims")
def transpose(b: Builder, input: Ref, dim0: int, dim1: int) -> Ref:
    order = list(range(input.ndim))
    i, j = input.dim(dim0), input.dim(dim1)
    order[i], order[j] = j, i
    return permute(b, input, order)


@handles("movedim", "moveaxis")
def movedim(b: Builder, input: Ref, source: Any, destination: Any) -> Ref:
    moved = {input.dim(t): input.dim(s) for s, t in zip(_several(source), _several(destination), strict=True)}
    others = iter(d for d in range(input.ndim) if d not in moved.values())
    return permute(b, input, [moved[d] if d in moved else next(others) for d in range(input.ndim)])


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


@handles("cat", "concat", "concatenate")
def cat(b: Builder, tensors: Sequence[Any], dim: int = 0) -> Ref:
    refs = list(tensors)
    if not all(isinstance(x, Ref) for x in refs):
        raise Refusal("a concatenation with a constant")
    d = refs[0].dim(dim)
    if d == 0:
        raise Refusal("a concatenation along the batch", "concatenate along another dimension")
    return refs[0] if len(refs) == 1 else b.emit(Cat(dim=d), *refs)


@handles("stack")
def stack(b: Builder, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    d = dim if dim >= 0 else dim + tensors[0].ndim + 1
    index = [*_leading(d), None]
    return cat(b, [b.emit(Slice(index=index), x, part=f"{i}") for i, x in enumerate(tensors)], d)


@handles("repeat", "tile")
def repeat(b: Builder, input: Ref, *repeats: Any) -> Ref:
    times = numbers(repeats[0] if isinstance(repeats[0], (tuple, list)) else repeats, 1)
    if len(times) != input.ndim or times[0] != 1 or min(times) < 1:
        raise Refusal(f"a repetition by {list(times)}, which mixes the images of a batch")
    for d, n in enumerate(times):
        if n > 1:
            input = b.emit(Cat(dim=d), *[input] * n)
    return input


@handles("pad")
def pad(b: Builder, input: Ref, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Ref:
    sizes, refs = b.sizes(input, pad)
    if len(sizes) == 2 * input.ndim:
        if sizes[-2:] != [0, 0]:
            raise Refusal("a padding of the batch")
        sizes = sizes[:-2]
    return b.emit(Pad(pad=sizes, mode=mode, value=float(value or 0)), input, refs=refs)


@handles(paddings._ConstantPadNd)
def constant_pad(b: Builder, m: Any, input: Ref) -> Ref:
    return pad(b, input, m.padding, "constant", m.value)


@handles(paddings._ReflectionPadNd)
def reflection_pad(b: Builder, m: Any, input: Ref) -> Ref:
    return pad(b, input, m.padding, "reflect")


@handles(paddings._ReplicationPadNd)
def replication_pad(b: Builder, m: Any, input: Ref) -> Ref:
    return pad(b, input, m.padding, "replicate")


@handles(paddings._CircularPadNd)
def circular_pad(b: Builder, m: Any, input: Ref) -> Ref:
    return pad(b, input, m.padding, "circular")


@handles("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(b: Builder, input: Ref, groups: int) -> Ref:
    batch, channels, *space = input.dims()
    x = _reshape(b, input, [batch, groups, channels // groups, *space], part="split")
    x = b.emit(Permute(dims=[0, 2, 1, *range(3, x.ndim)]), x, part="permute")
    return _reshape(b, x, [batch, channels, *space])


@handles(nn.ChannelShuffle)
def channel_shuffle_module(b: Builder, m: Any, input: Ref) -> Ref:
    return channel_shuffle(b, input, m.groups)


@handles("pixel_shuffle")
def pixel_shuffle(b: Builder, input: Ref, upscale_factor: int) -> Ref:
    batch, channels, height, width = input.dims()
    r = upscale_factor
    x = _reshape(b, input, [batch, channels // (r * r), r, r, height, width], part="split")
    x = b.emit(Permute(dims=[0, 1, 4, 2, 5, 3]), x, part="permute")
    return _reshape(b, x, [batch, channels // (r * r), height * r, width * r])


@handles(nn.PixelShuffle)
def pixel_shuffle_module(b: Builder, m: Any, input: Ref) -> Ref:
    return pixel_shuffle(b, input, m.upscale_factor)


@handles("pixel_unshuffle")
def pixel_unshuffle(b: Builder, input: Ref, downscale_factor: int) -> Ref:
    batch, channels, height, width = input.dims()
    r = downscale_factor
    x = _reshape(b, input, [batch, channels, height // r, r, width // r, r], part="split")
    x = b.emit(Permute(dims=[0, 1, 3, 5, 2, 4]), x, part="permute")
    return _reshape(b, x, [batch, channels * (r * r), height // r, width // r])


@handles(nn.PixelUnshuffle)
def pixel_unshuffle_module(b: Builder, m: Any, input: Ref) -> Ref:
    return pixel_unshuffle(b, input, m.downscale_factor)


@handles("contiguous", "clone", "detach", "cpu", "cuda", "float", "double", "half", "bfloat16", "type_as")
def unchanged(b: Builder, input: Ref, *arguments: Any, **options: Any) -> Ref:
    """Copies, memory formats and float types: the graph has a single float type."""
    return input


@handles("to", "type")
def to(b: Builder, input: Ref, *arguments: Any, **options: Any) -> Ref:
    for value in (*arguments, *options.values()):
        if isinstance(value, torch.dtype) and not value.is_floating_point:
            raise Refusal(f"a cast to {value}")
    return input
