"""How many channels a value has, as far as weights tell without an input; and whether all its readers agree."""

from collections.abc import Mapping
from typing import NamedTuple

from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import (
    AdaptiveAvgPool,
    Add,
    AvgPool,
    Conv,
    ConvTranspose,
    Joint,
    Linear,
    MaxPool,
    Spike,
    Upsample,
)  # fmt: skip

KEEPING = (AvgPool, MaxPool, AdaptiveAvgPool, Upsample)  # operations that leave dimension 1 unchanged


class Width(NamedTuple):
    """The dimension of the channels, whether that is the last one, and how many there are."""

    dim: int
    last: bool
    channels: int


def check_widths(graph: Graph) -> None:
    """Raise ValueError if weights, thresholds or biases do not fit the number of channels of their input."""
    known: dict[str, Width] = {}
    for node in graph.nodes.values():
        op, found = node.op, known.get(node.inputs[0]) if node.inputs else None
        if found is not None and isinstance(op, (Conv, ConvTranspose, Linear)):
            if found.last if isinstance(op, Linear) else found.dim == 1:
                _compare(node, found, op.in_channels, "weights")
        elif found is not None and isinstance(op, (Spike, Joint)) and op.channel == found.dim:
            for kind, tensor in op.tensors().items():
                if tensor.ndim == 1 and len(tensor) > 1:
                    _compare(node, found, len(tensor), kind)
        width = _width(node, known)
        if width is not None:
            known[node.name] = width


def _compare(node: Node, found: Width, wanted: int, what: str) -> None:
    if found.channels != wanted:
        raise ValueError(f"{node.name[:60]!r} reads {found.channels} channels, but has {what} for {wanted}")


def _width(node: Node, known: Mapping[str, Width]) -> Width | None:
    op = node.op
    if isinstance(op, (Conv, ConvTranspose)):
        return Width(1, False, op.out_channels)
    if isinstance(op, Linear):
        return Width(node.channel, True, op.out_channels)
    found = [known.get(name) for name in node.inputs]
    if isinstance(op, Add):  # one channel may have been broadcast
        return found[0] if len(set(found)) == 1 else None
    if isinstance(op, (Spike, Joint)):
        return found[0]
    if isinstance(op, KEEPING) and found[0] is not None and not found[0].last:
        return found[0]
    return None
