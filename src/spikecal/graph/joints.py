"""Linear values that weights read: pass them on as analog currents or signed spikes, or merge them away.

A weighted layer that reads spikes costs additions. One that reads the float currents of a linear value, such as the
projection that feeds an expansion in MobileNetV2, costs all of its multiply-adds at every step, and a chip that sends
spikes cannot run it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from spikecal.errors import ConfigError
from spikecal.graph.graph import Graph, Node
from spikecal.graph.lowering.lower import lower
from spikecal.graph.merging import merged_maps, multiply_adds
from spikecal.graph.ops import ChannelAffine, Input, Joint, MaxPool, SignedSpike, Spike, Upsample
from spikecal.graph.stages import REARRANGING, WEIGHTED, joint_sources, with_joints, with_nodes_after

Joints = Literal["analog", "signed", "merge"]
JOINTS: tuple[Joints, ...] = get_args(Joints)
DEFAULT: Joints = "signed"

# How a value behaves in time: constant (the image, and anything linear in it), spikes, or currents.
InTime = Literal["once", "spikes", "analog"]
Sizes = Mapping[str, Sequence[int]]  # node -> shape of its value


def staged(model: nn.Module, example: tuple[Tensor, ...], keep: Sequence[str] = (), joints: Joints = DEFAULT) -> Graph:
    """The canonical graph of a model, ready to be cut into stages."""
    return arranged(lower(model, example, keep), example, joints)


def arranged(graph: Graph, example: Sequence[Tensor], joints: Joints) -> Graph:
    """A lowered graph, ready to be cut into stages."""
    return with_joints(HANDLED[checked_joints(joints)](graph, sizes_of(graph, example)))


def checked_joints(joints: Joints) -> Joints:
    if joints not in JOINTS:
        raise ConfigError(f"joints must be one of {', '.join(JOINTS)}, not {joints!r}")
    return joints


def sizes_of(graph: Graph, example: Sequence[Tensor]) -> Sizes:
    """Shape of every value for one image of the example."""
    return {name: value.shape for name, value in graph.walk(*(x[:1] for x in example))}


# -- finding them --------------------------------------------------------------------------------------------------


def in_time(graph: Graph, spiking: frozenset[str] = frozenset()) -> dict[str, InTime]:
    """How every value behaves in time, as if neurons followed those named in `spiking`."""
    found: dict[str, InTime] = {}
    for node in graph.nodes.values():
        found[node.name] = "spikes" if node.name in spiking else _in_time(node, {found[name] for name in node.inputs})
    return found


def _in_time(node: Node, read: set[InTime]) -> InTime:
    op = node.op
    if isinstance(op, Spike):
        return "spikes"
    if isinstance(op, Input) or read == {"once"}:
        return "once"
    whole = not (
        isinstance(op, WEIGHTED)
        or (isinstance(op, MaxPool) and op.of == "current")
        or (isinstance(op, Upsample) and not op.mode.startswith("nearest"))
    )  # else the values are no longer whole spikes of one height
    return "spikes" if whole and read == {"spikes"} else "analog"


def analog_readers(graph: Graph) -> list[str]:
    """The weighted layers that read float currents."""
    found = in_time(graph)
    return [n.name for n in graph.nodes.values() if isinstance(n.op, WEIGHTED) and found[n.inputs[0]] == "analog"]


def analog_values(graph: Graph) -> list[str]:
    """The values that need signed neurons so that no weighted layer reads float currents, in the order of readers.

    Neurons after one value may turn a later sum into a sum of spikes, so they are placed one reader at a time.
    """
    placed: list[str] = []
    while True:
        found = in_time(graph, frozenset(placed))
        readers = (n for n in graph.nodes.values() if isinstance(n.op, WEIGHTED) and found[n.inputs[0]] == "analog")
        reader = next(readers, None)
        if reader is None:
            return placed
        placed += [name for name in dict.fromkeys(_sources(graph, reader.inputs[0])) if found[name] != "spikes"]


def _sources(graph: Graph, name: str) -> Iterator[str]:
    """The values that a value is composed of: operations that only move, repeat or scale pass on spikes."""
    node = graph.nodes[name]
    repeats = isinstance(node.op, Upsample) and node.op.mode.startswith("nearest")
    if repeats or isinstance(node.op, (*REARRANGING, ChannelAffine, Joint)):
        for source in node.inputs:
            yield from _sources(graph, source)
    else:
        yield name


@dataclass(frozen=True)
class LinearValues:
    """The linear values of a network that weighted layers read, and the effect of each way to handle them."""

    names: tuple[str, ...]  # where signed neurons would be
    at_joints: int  # how many of them are read by several stages
    share: float  # of all multiply-adds, those in layers that read them
    merged: int  # weighted layers that would be merged with the one before
    left: int  # weighted layers that would still read float currents


def linear_values(graph: Graph, example: Sequence[Tensor]) -> LinearValues:
    """The linear values of a lowered graph that weighted layers read."""
    sizes, names, readers = sizes_of(graph, example), analog_values(graph), analog_readers(graph)
    costs = {n.name: multiply_adds(n.op, sizes[n.name]) for n in graph.nodes.values() if isinstance(n.op, WEIGHTED)}
    share = sum(costs[name] for name in readers) / max(1, sum(costs.values()))
    without = merged(graph, sizes)
    gone = len(graph.nodes) - len(without.nodes)
    return LinearValues(tuple(names), len(joint_sources(graph) & set(names)), share, gone, len(analog_readers(without)))


# -- handling them -------------------------------------------------------------------------------------------------


def _left_analog(graph: Graph, sizes: Sizes) -> Graph:
    return graph


def signed(graph: Graph, sizes: Sizes) -> Graph:
    """The graph with signed neurons at every linear value that a weighted layer reads; everything reads their spikes.

    An output of the network stays a current, as all outputs are.
    """
    added = {}
    for name in analog_values(graph):
        channel, ndim = graph.nodes[name].channel, len(sizes[name])
        added[name] = Node(f"{name}.signed", SignedSpike(channel=channel, ndim=ndim), (name,), channel=channel)
    return with_nodes_after(graph, added)


def merged(graph: Graph, sizes: Sizes) -> Graph:
    """The graph with two maps merged if one feeds only the other and both together cost more multiply-adds."""
    return merged_maps(graph, sizes, analog_readers)


HANDLED: dict[Joints, Callable[[Graph, Sizes], Graph]] = {"analog": _left_analog, "signed": signed, "merge": merged}
