"""Partition of a canonical graph into stages: everything between two layers of neurons, with the neurons at its end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spikecal.graph.graph import Graph, Node, map_leaves
from spikecal.graph.ops import (
    Cat,
    ChannelAffine,
    Conv,
    ConvTranspose,
    Flatten,
    Input,
    Joint,
    Linear,
    Pad,
    Permute,
    Reshape,
    SignedSpike,
    Slice,
    Spike,
)  # fmt: skip

# Moving values is too cheap for a boundary: every stage that reads them repeats it.
REARRANGING = (Cat, Slice, Pad, Reshape, Flatten, Permute)
MOST_REPEATED = 1_000_000  # nodes of all stages together: only a malicious file has more
WEIGHTED = (Conv, ConvTranspose, Linear)


@dataclass(frozen=True)
class Stage:
    """All operations that feed one activation, and that activation; without an activation, a joint.

    `inputs` are the boundaries that it reads: network inputs and ends of earlier stages.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]

    @property
    def end(self) -> Node:
        return self.nodes[-1]

    @property
    def name(self) -> str:
        return self.end.name

    @property
    def spiking(self) -> bool:
        return isinstance(self.end.op, Spike)

    @property
    def kind(self) -> str:
        if isinstance(self.end.op, SignedSpike):
            return "signed neurons"
        return "neurons" if self.spiking else "joint"

    def weighted(self) -> list[Node]:
        """The nodes whose weights calibration may change."""
        return [node for node in self.nodes if isinstance(node.op, WEIGHTED)]

    def parametric(self) -> bool:
        """Whether anything here has parameters; a stage that only moves spikes has nothing to calibrate."""
        return any(isinstance(node.op, (*WEIGHTED, ChannelAffine)) for node in self.nodes)


def with_joints(graph: Graph) -> Graph:
    """The graph with a Joint after every linear value that is an output or that several stages read."""
    ends = {name: graph.nodes[name] for name in joint_sources(graph)}
    joints = {
        name: Node(f"{name}.joint", Joint(channel=end.channel), (name,), channel=end.channel)
        for name, end in ends.items()
    }
    result = with_nodes_after(graph, joints)
    result.output = map_leaves(lambda name: joints[name].name if name in joints else name, graph.output)
    return result


def with_nodes_after(graph: Graph, added: Mapping[str, Node]) -> Graph:
    """The graph with a new node after each of some nodes, which their readers read instead; outputs do not change."""
    result = Graph(output=graph.output, head=graph.head)
    for node in graph.nodes.values():
        inputs = tuple(added[name].name if name in added else name for name in node.inputs)
        result.add(replace(node, inputs=inputs))
        if node.name in added:
            result.add(added[node.name])
    return result


def joint_sources(graph: Graph) -> set[str]:
    """The linear nodes that must end a stage."""
    users, outputs = graph.users(), set(graph.outputs())
    ends: dict[str, frozenset[str]] = {}  # the stage ends that a value reaches without passing another
    joints: set[str] = set()
    for node in reversed(graph.nodes.values()):
        reached: set[str] = set()
        for user in filter(None, users[node.name]):
            is_end = isinstance(graph.nodes[user].op, (Spike, Joint)) or user in joints
            reached |= {user} if is_end else ends[user]
        ends[node.name] = frozenset(reached)
        if isinstance(node.op, (Input, Spike, Joint)):
            continue
        shared = len(reached) > 1 and not isinstance(node.op, REARRANGING)
        if node.name in outputs or shared:
            joints.add(node.name)
    return joints


def partition(graph: Graph) -> list[Stage]:
    """The stages of a graph with joints, in running order. Every parameter belongs to exactly one."""
    stages = []
    place = {name: i for i, name in enumerate(graph.nodes)}
    repeated = 0
    for node in graph.nodes.values():
        if isinstance(node.op, (Spike, Joint)):
            inner, inputs = _collect(graph, node)
            nodes = tuple(graph.nodes[name] for name in sorted(inner, key=place.__getitem__))
            stages.append(Stage(nodes, tuple(sorted(inputs, key=place.__getitem__))))
            repeated += len(inner) + len(inputs)
            if repeated > MOST_REPEATED:
                raise ValueError("too many stages repeat the same operations")
    owners: dict[str, str] = {}
    for stage in stages:
        for inner_node in stage.nodes:
            if inner_node.op.TENSORS and owners.setdefault(inner_node.name, stage.name) != stage.name:
                raise ValueError(f"{inner_node.name} is in two stages: call with_joints first")
    return stages


def behind_branches(stages: Sequence[Stage]) -> set[str]:
    """The stages that come after a branch, such as all residual blocks: several stages read what leads to them."""
    readers = Counter(name for stage in stages for name in stage.inputs)
    found, known = set[str](), {stage.name for stage in stages}
    for stage in stages:
        if any(name in found or (name in known and readers[name] > 1) for name in stage.inputs):
            found.add(stage.name)
    return found


def last_uses(stages: Sequence[Stage]) -> list[list[str]]:
    """For every stage, the boundaries that no later stage reads: liveness."""
    freed = [list[str]() for _ in stages]
    last = {name: i for i, stage in enumerate(stages) for name in (*stage.inputs, stage.name)}
    for name, i in last.items():
        freed[i].append(name)
    return freed


def _collect(graph: Graph, end: Node) -> tuple[set[str], set[str]]:
    """The nodes between `end` and the boundaries before it, and those boundaries."""
    wanted, inputs, todo = {end.name}, set[str](), list(end.inputs)
    while todo:
        name = todo.pop()
        if isinstance(graph.nodes[name].op, (Input, Spike, Joint)):
            inputs.add(name)
        elif name not in wanted:
            wanted.add(name)
            todo.extend(graph.nodes[name].inputs)
    return wanted, inputs
