"""Named passes that simplify a canonical graph without changing its outputs, applied in the order of `PASSES`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from spikecal.graph.graph import Graph, map_leaves
from spikecal.graph.ops import (
    Add,
    AvgPool,
    Cat,
    ChannelAffine,
    Conv,
    ConvTranspose,
    Input,
    Linear,
    MaxPool,
    Op,
    Pad,
    Permute,
    Slice,
    Spike,
    Upsample,
    frozen,
)  # fmt: skip
from spikecal.graph.ops.shape import WHOLE

Pass = Callable[[Graph], None]


def run_passes(graph: Graph) -> Graph:
    """Apply all passes, in place."""
    for apply in PASSES:
        apply(graph)
    return graph


def drop_identities(graph: Graph) -> None:
    """Remove operations that change nothing."""
    for node in list(graph.nodes.values()):
        if len(node.inputs) == 1 and _is_identity(node.op):
            replace_node(graph, node.name, node.inputs[0])


def _is_identity(op: Op) -> bool:
    if isinstance(op, ChannelAffine):
        # Only numbers: a tensor of ones may still broadcast its factor.
        return _is_number(op.scale, 1) and _is_number(op.shift, 0)
    if isinstance(op, Add):
        return op.coefficients == (1,)
    if isinstance(op, AvgPool):
        ones = (1,) * len(op.kernel)
        return op.kernel == op.stride == ones and not any(op.padding) and op.divisor_override in (None, 1)
    if isinstance(op, Pad):
        return all(p == 0 for p in op.pad)
    if isinstance(op, Permute):
        return op.dims == tuple(range(len(op.dims)))
    if isinstance(op, Slice):
        return all(item == WHOLE for item in op.index)
    if isinstance(op, Upsample):
        return op.scale is not None and all(s == 1 for s in op.scale)
    return isinstance(op, Cat)  # of one value


def _is_number(value: Tensor | None, number: float) -> bool:
    return value is None or (value.numel() == 1 and float(value) == number)


def fold_affine(graph: Graph) -> None:
    """Fold a map per channel into the convolution or linear layer before it, if nothing else reads that."""
    users = graph.users()
    for node in list(graph.nodes.values()):
        if not isinstance(node.op, ChannelAffine):
            continue
        before = graph.nodes[node.inputs[0]]
        if users[before.name] != [node.name] or not isinstance(before.op, (Conv, ConvTranspose, Linear)):
            continue
        scale, shift = (per_channel(t, before.op) for t in (node.op.scale, node.op.shift))
        if (scale is None) != (node.op.scale is None) or (shift is None) != (node.op.shift is None):
            continue
        before.op = _scaled(before.op, scale, shift)
        users[before.name] = users[node.name]
        replace_node(graph, node.name, before.name)


def per_channel(value: Tensor | None, op: Conv | ConvTranspose | Linear) -> Tensor | None:
    """`value` as [C] (or [1]) if it differs only between the output channels of `op`, else None."""
    if value is None:
        return None
    if value.numel() == 1:
        return value.reshape(1)
    place = 1 if isinstance(op, Linear) else op.weight.ndim - 1  # counted from the last dimension
    alone = value.ndim >= place and value.shape[-place] == value.numel() == op.out_channels
    return value.reshape(-1) if alone else None


def _scaled(op: Conv | ConvTranspose | Linear, scale: Tensor | None, shift: Tensor | None) -> Op:
    """The operation followed by `* scale + shift`, computed in float64."""
    weight, bias = op.weight.double(), None if op.bias is None else op.bias.double()
    if scale is not None:
        scale = scale.double().expand(op.out_channels)
        if isinstance(op, ConvTranspose):
            by_group = scale.reshape(op.groups, 1, -1).expand(-1, weight.shape[0] // op.groups, -1)
            weight = weight * by_group.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))
        else:
            weight = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = None if bias is None else bias * scale
    if shift is not None:
        shift = shift.double().expand(op.out_channels)
        bias = shift if bias is None else bias + shift
    tensors = {"weight": weight, "bias": bias}
    return type(op)(**op.config(), **{k: None if v is None else v.to(op.weight.dtype) for k, v in tensors.items()})


def merge_affine(graph: Graph) -> None:
    """Merge two maps that follow each other, if nothing else reads the first."""
    users = graph.users()
    for node in list(graph.nodes.values()):
        before = graph.nodes[node.inputs[0]] if node.inputs else node
        if not isinstance(node.op, ChannelAffine) or not isinstance(before.op, ChannelAffine):
            continue
        if users[before.name] != [node.name]:
            continue
        tensors = [t for t in (*before.op.tensors().values(), *node.op.tensors().values()) if t is not None]
        if torch.broadcast_shapes(*(t.shape for t in tensors)).numel() > max(t.numel() for t in tensors):
            continue  # a map per channel and one per position: together they would need one number per neuron
        node.op = _composed(before.op, node.op)
        node.inputs = before.inputs
        users[before.name] = []
        for name in before.inputs:
            users[name] = [node.name if user == before.name else user for user in users[name]]
    drop_dead(graph)


def _composed(first: ChannelAffine, second: ChannelAffine) -> ChannelAffine:
    scales = [t.double() for t in (first.scale, second.scale) if t is not None]
    scale = scales[0] * scales[1] if len(scales) == 2 else (scales[0] if scales else None)
    shift = None if first.shift is None else first.shift.double()
    if shift is not None and second.scale is not None:
        shift = shift * second.scale.double()
    if second.shift is not None:
        shift = second.shift.double() if shift is None else shift + second.shift.double()
    dtype = next(iter(first.tensors().values())).dtype
    return ChannelAffine(
        scale=None if scale is None else scale.to(dtype), shift=None if shift is None else shift.to(dtype)
    )


def merge_spikes(graph: Graph) -> None:
    """Merge an activation with an activation that reads it."""
    for node in list(graph.nodes.values()):
        before = graph.nodes[node.inputs[0]] if node.inputs else node
        if not isinstance(node.op, Spike) or not isinstance(before.op, Spike):
            continue
        if node.op.clip is None or (before.op.clip is not None and before.op.clip <= node.op.clip):
            replace_node(graph, node.name, before.name)
        else:
            node.inputs = before.inputs  # the lower clip decides, applied to the same current
    drop_dead(graph)


def pool_before_spike(graph: Graph) -> None:
    """Move a max-pool before the activation it reads, if nothing else reads that: max and ReLU commute."""
    for node in list(graph.nodes.values()):
        while isinstance(node.op, MaxPool):
            spike = graph.nodes[node.inputs[0]]
            users = graph.users()
            if not isinstance(spike.op, Spike) or users[spike.name] != [node.name]:
                break
            _rename_readers(graph, spike.name, spike.inputs[0], shapes_only=True)  # an activation keeps the shape
            _rename_readers(graph, node.name, spike.name)
            spike.inputs, node.inputs = (node.name,), spike.inputs
            order = [n for n in graph.nodes.values() if n is not spike]
            order.insert(order.index(node) + 1, spike)
            graph.nodes = {n.name: n for n in order}


def mark_spike_pools(graph: Graph) -> None:
    """Distinguish max-pools of spikes, which pool counts, from those of currents."""
    spikes: set[str] = set()  # values that are spikes, at most moved or pooled
    for node in graph.nodes.values():
        passes_on = (
            isinstance(node.op, MaxPool)
            or (isinstance(node.op, Cat) and node.op.dim == 1)
            or (isinstance(node.op, Slice) and all(isinstance(item, tuple) for item in node.op.index))
        )  # a new dimension would displace the channels, and spikes of a channel have one height
        fires = isinstance(node.op, Spike) and node.op.channel == 1  # where a pool expects that height
        if fires or (passes_on and spikes.issuperset(node.inputs)):
            spikes.add(node.name)
            if isinstance(node.op, MaxPool):
                node.op.of = "spikes"
        elif isinstance(node.op, MaxPool):
            node.op.of = "current"


def update_pool_units(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Update pools that count in units of thresholds after thresholds have changed; others have no unit."""
    if any(isinstance(node.op, MaxPool) and node.op.unit is not None for node in graph.nodes.values()):
        set_pool_units(graph, shapes)


@torch.no_grad()
def set_pool_units(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give max-pools of spikes the height of level 1, for neurons with more levels than 0 and 1.

    `shapes` are those of all values. Heights follow the spikes, and are concatenated and sliced like them.
    """
    heights: dict[str, Tensor] = {}
    for node in graph.nodes.values():
        op = node.op
        if isinstance(op, Spike):
            heights[node.name] = op.height(op.ndim).expand(1, *shapes[node.name][1:])
        elif heights.keys() >= set(node.inputs) and isinstance(op, (MaxPool, Cat, Slice)):
            heights[node.name] = op(*(heights[name] for name in node.inputs))
        if isinstance(op, MaxPool) and op.of == "spikes":
            op.unit = frozen(heights[node.name][0].flatten(1)[:, 0])


def drop_dead(graph: Graph) -> None:
    """Remove nodes whose value and shape nothing reads; inputs stay."""
    alive = set(graph.outputs())
    for node in reversed(list(graph.nodes.values())):
        if node.name in alive or isinstance(node.op, Input):
            alive.update(node.inputs, node.shape_refs)
        else:
            del graph.nodes[node.name]


def fold_scale_forward(graph: Graph) -> None:
    """Fold a scale per channel into the weights that read it, if everything that reads it has weights.

    Not one of the default passes: it serves to make all thresholds 1.
    """
    users = graph.users()
    for node in list(graph.nodes.values()):
        if not isinstance(node.op, ChannelAffine) or node.op.scale is None or node.op.shift is not None:
            continue
        readers = [graph.nodes[name].op if name else None for name in users[node.name]]
        folded = [_scaled_input(reader, node.op.scale) for reader in readers]
        if not readers or any(op is None for op in folded):
            continue
        for name, op in zip(users[node.name], folded, strict=True):
            graph.nodes[name].op = op  # type: ignore[assignment]
        users[node.inputs[0]] = [n for n in users[node.inputs[0]] if n != node.name] + users[node.name]
        replace_node(graph, node.name, node.inputs[0])


def _scaled_input(op: Op | None, scale: Tensor) -> Op | None:
    """`op` of an input multiplied by `scale`, or None if its weights cannot express that."""
    if not isinstance(op, (Conv, ConvTranspose, Linear)):
        return None
    weight = op.weight.double()
    groups = 1 if isinstance(op, Linear) else op.groups
    channels = op.in_channels
    place = 1 if isinstance(op, Linear) else weight.ndim - 1
    alone = scale.numel() == 1 or (
        scale.ndim >= place and scale.shape[-place] == scale.numel() == channels
    )  # fmt: skip
    if not alone:
        return None
    by_channel = scale.double().reshape(-1).expand(channels)
    tail = (1,) * (weight.ndim - 2)
    if isinstance(op, ConvTranspose):
        weight = weight * by_channel.reshape(-1, 1, *tail)
    else:
        rows = by_channel.reshape(groups, 1, -1).expand(-1, weight.shape[0] // groups, -1)
        weight = weight * rows.reshape(weight.shape[0], -1, *tail)
    return type(op)(**op.config(), weight=weight.to(op.weight.dtype), bias=op.bias)


def replace_node(graph: Graph, old: str, new: str) -> None:
    """Remove a node; its readers read `new` instead."""
    _rename_readers(graph, old, new)
    del graph.nodes[old]


def _rename_readers(graph: Graph, old: str, new: str, shapes_only: bool = False) -> None:
    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    for node in graph.nodes.values():
        node.shape_refs = renamed(node.shape_refs)
        if not shapes_only:
            node.inputs = renamed(node.inputs)
    if not shapes_only:
        graph.output = map_leaves(lambda name: new if name == old else name, graph.output)


PASSES: tuple[Pass, ...] = (
    drop_dead,
    drop_identities,
    merge_affine,
    fold_affine,
    merge_spikes,
    pool_before_spike,
    merge_spikes,
    mark_spike_pools,
    drop_dead,
)
