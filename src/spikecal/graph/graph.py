"""The canonical graph: named nodes of closed-set operations in running order, and a structure of outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.devices import tensors_on
from spikecal.graph.ops import Input, Joint, Op, Spike
from spikecal.neurons import IntegrateAndFire


@dataclass
class Node:
    """One operation. `shape_refs` are nodes of which it reads only the shape (`y.view(x.shape)`).

    `channel` is the channel dimension of its value, found when the network is lowered.
    """

    name: str
    op: Op
    inputs: tuple[str, ...] = ()
    shape_refs: tuple[str, ...] = ()
    channel: int = 1


@dataclass
class Graph:
    """Nodes in running order. `output` nests tuples, lists and dicts of node names.

    `head`, if there is one, is analog: it takes the values of `output`, then a tuple, and returns what the model
    returns.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    output: Any = None
    head: nn.Module | None = None

    def add(self, node: Node) -> str:
        if node.name in self.nodes:
            raise ValueError(f"there are two nodes called {node.name}")
        self.nodes[node.name] = node
        return node.name

    def clone(self) -> "Graph":
        """A separate graph whose tensors share memory with this one's until they are replaced."""
        nodes = {n.name: replace(n, op=n.op.clone()) for n in self.nodes.values()}
        return Graph(nodes, self.output, self.head)

    def inputs(self) -> list[str]:
        """Names of the inputs, in the order the model takes them."""
        found = [(n.op.index, n.name) for n in self.nodes.values() if isinstance(n.op, Input)]
        return [name for _, name in sorted(found)]

    def outputs(self) -> list[str]:
        """Names of the output values, each once, in the order of the structure."""
        return list(dict.fromkeys(leaves(self.output)))

    def users(self) -> dict[str, list[str]]:
        """Node -> the nodes that read its value, in running order; an output counts as a reader named ''."""
        users: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for name in dict.fromkeys(node.inputs):
                users[name].append(node.name)
        for name in self.outputs():
            users[name].append("")
        return users

    def run(self, *inputs: Tensor) -> Any:
        """The ANN: the same outputs as the model the graph was lowered from."""
        wanted = set(self.outputs())
        found = {name: value for name, value in self.walk(*inputs) if name in wanted}
        return self.finish(found.__getitem__)

    def walk(self, *inputs: Tensor, hooks: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Every value of the ANN in running order; each is released after its last reader.

        Without `hooks`, the user's hooks on operations are not called.
        """
        values: dict[str, Tensor] = dict(zip(self.inputs(), inputs, strict=True))
        yield from list(values.items())
        last = {name: node.name for node in self.nodes.values() for name in (*node.inputs, *node.shape_refs)}
        for node in self.nodes.values():
            if isinstance(node.op, Input):
                continue
            value = apply_node(node, values, hooks)
            if node.name in last:
                values[node.name] = value
            for name in {*node.inputs, *node.shape_refs}:
                if last[name] == node.name:
                    del values[name]
            yield node.name, value

    def finish(self, value: Callable[[str], Tensor]) -> Any:
        """Outputs in the model's own structure, from the values at the output nodes."""
        body = map_leaves(value, self.output)
        if self.head is None:
            return body
        with tensors_on(_device_of(body)):  # the model's code may create tensors
            return self.head(*body)


def _device_of(structure: Any) -> torch.device:
    """The device of the values of a structure."""
    found: list[Tensor] = []
    map_leaves(found.append, structure)
    return found[0].device if found else torch.device("cpu")


def apply_node(node: Node, values: dict[str, Tensor], hooks: bool = False) -> Tensor:
    """The value of one node on a plain batch."""
    shapes = [values[name].shape for name in (*node.inputs[:1], *node.shape_refs)]
    run = node.op if hooks else node.op.forward
    value: Tensor = run(*(values[name] for name in node.inputs), shapes=shapes)
    return value


def describe(graph: Graph) -> list[Any]:
    """The graph without its tensors, as plain data: nodes in running order, then the output structure.

    Equal networks in files of the first format are equal here.
    """
    nodes = [
        [node.name, type(node.op).__name__, list(node.inputs), list(node.shape_refs), _settings(node.op)]
        for node in graph.nodes.values()
    ]
    return [nodes, repr(graph.output)]


def _settings(op: Op) -> dict[str, Any]:
    settings = op.config()
    if isinstance(op, Joint):
        del settings["channel"]  # it follows from the rest, and the first format wrote the last dimension as -1
    if isinstance(op, Spike) and op.neuron == IntegrateAndFire():
        del settings["neuron"]  # there was only one kind
    return settings


def leaves(structure: Any) -> Iterable[Any]:
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, (list, tuple)):
        for part in structure:
            yield from leaves(part)
    elif structure is not None:
        yield structure


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same nested tuples, lists and dicts with `function` applied to every element except None."""
    if isinstance(structure, dict):
        return {key: map_leaves(function, part) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = (map_leaves(function, part) for part in structure)
        return list(parts) if isinstance(structure, list) else tuple(parts)
    return None if structure is None else function(structure)


def same_structure(a: Any, b: Any, close: Callable[[Tensor, Tensor], bool]) -> bool:
    """Whether two nested structures are alike and all their tensors are `close`."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_structure(a[k], b[k], close) for k in a)
    if isinstance(a, (list, tuple)):
        return (
            isinstance(b, Sequence)
            and len(a) == len(b)
            and all(same_structure(p, q, close) for p, q in zip(a, b, strict=True))
        )
    return (a is None and b is None) or (isinstance(a, Tensor) and isinstance(b, Tensor) and close(a, b))
