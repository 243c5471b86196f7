"""A spiking network in the form for other programs: nodes and wires for one image size, with all thresholds 1.

The value of a node is computed from the *sum* of its inputs, so that additions need no nodes. Everything except
neurons is linear and has no memory, max-pools excepted. Time is global: step 0 is the first step of the image.
"""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikecal.neurons import Neuron


@dataclass(frozen=True, kw_only=True)
class Node:
    """`shape` is that of its value for one image."""

    name: str
    inputs: tuple[str, ...] = ()
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Image(Node):
    """The input: the image for T steps, zero afterwards. `low` and `high` `[C]` bound its values.

    If it has a `pixel`, inputs are rounded to multiples of it.
    """

    low: Tensor
    high: Tensor
    pixel: float | None = None

    def rounded(self, images: Tensor) -> Tensor:
        return images if self.pixel is None else torch.round(images / self.pixel) * self.pixel


@dataclass(frozen=True, kw_only=True)
class Conv(Node):
    weight: Tensor
    bias: Tensor | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def pointwise(self) -> bool:
        """Whether each position is computed from itself alone."""
        return self.weight.shape[2:] == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def moves(self) -> bool:
        """Whether it adds up values of a channel without weighting: its weights are 0 and 1."""
        return self.weight.shape[1] == 1 and self.bias is None and bool(((self.weight == 0) | (self.weight == 1)).all())

    def dense(self) -> "Conv":
        """The same convolution with one group: zeros for the weights of other groups."""
        return self if self.groups == 1 else replace(self, weight=dense_weight(self.weight, self.groups), groups=1)


@dataclass(frozen=True, kw_only=True)
class Linear(Node):
    weight: Tensor
    bias: Tensor | None = None
    moves: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class SumPool(Node):
    kernel: tuple[int, int]
    stride: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MaxPool(Node):
    """The increments of the pooled running sum of its input; it has memory."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool


@dataclass(frozen=True, kw_only=True)
class Flatten(Node):
    pass


@dataclass(frozen=True, kw_only=True)
class Clock(Node):
    """What depends only on the step, the same at all positions of a channel: `own[t] + gate[t]` at step t.

    `own` `[latency, C]` has initial potentials and biases, `gate` the large numbers that close and open windows.
    """

    own: Tensor
    gate: Tensor


@dataclass(frozen=True, kw_only=True)
class Delay(Node):
    """A delay line: its input from `steps` steps ago, and 0 before."""

    steps: int


@dataclass(frozen=True, kw_only=True)
class Neurons(Node):
    """Neurons with threshold 1, reset by subtraction, and potential 0 before step 0.

    They fire in the T steps from `start` on and at no others. Their clock sees to it, or where they are `masked`, which
    signed neurons are that wait, because no gate holds both signs, what they would fire outside is left out.
    """

    start: int
    neuron: Neuron
    masked: bool = False
    reach: Tensor | None = None  # `[latency, C]`, of signed neurons: the reach at each step; else 1/2


@dataclass(frozen=True, kw_only=True)
class Output(Node):
    """The output: the mean of its value from step `first` of the netlist on."""


@dataclass
class Netlist:
    """Nodes in running order, one image and one output among them."""

    T: int
    latency: int
    warm_up: int = 0  # steps of the output's window to ignore
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Node) -> str:
        """Add a node; its name gets a number if it is taken."""
        name, n = node.name, 1
        while name in self.nodes:
            name, n = f"{node.name}.{n}", n + 1
        self.nodes[name] = replace(node, name=name)
        return name

    @property
    def image(self) -> Image:
        return next(node for node in self.nodes.values() if isinstance(node, Image))

    @property
    def output(self) -> Output:
        return next(node for node in self.nodes.values() if isinstance(node, Output))

    def neurons(self) -> Iterator[Neurons]:
        yield from (node for node in self.nodes.values() if isinstance(node, Neurons))

    def clocks(self) -> Iterator[Clock]:
        yield from (node for node in self.nodes.values() if isinstance(node, Clock))

    @property
    def first(self) -> int:
        """The first step at which the output is read; it is read until the end."""
        return self.latency - self.T + self.warm_up

    @property
    def planes(self) -> int:
        """Clock planes beside the channels of the image: one for each step, or none where no clock is needed."""
        return self.latency if any(True for _ in self.clocks()) else 0

    @property
    def timed(self) -> bool:
        """Whether anything in it depends on the step."""
        return bool(self.planes) or self.latency > self.T

    def open(self, node: Neurons, step: int) -> bool:
        """Whether a layer may fire at a step."""
        return not node.masked or node.start <= step < node.start + self.T

    def readers(self) -> dict[str, list[str]]:
        """Node -> the nodes that read its value."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for name in node.inputs:
                found[name].append(node.name)
        return found

    def to(self, dtype: torch.dtype) -> "Netlist":
        """The same netlist in a different precision."""
        nodes = {name: in_precision(node, dtype) for name, node in self.nodes.items()}
        return replace(self, nodes=nodes)

    def replaced(self, changes: Mapping[str, Sequence[Node]]) -> "Netlist":
        """The netlist with some nodes replaced by others, the last of which keeps the old name."""
        nodes = [new for node in self.nodes.values() for new in changes.get(node.name, [node])]
        return replace(self, nodes={node.name: node for node in nodes})


def in_precision(node: Node, dtype: torch.dtype) -> Node:
    tensors: dict[str, Any] = {name: value.to(dtype) for name, value in vars(node).items() if isinstance(value, Tensor)}
    return replace(node, **tensors)


def dense_weight(weight: Tensor, groups: int) -> Tensor:
    """The weight of a grouped convolution with all input channels."""
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    dense = weight.new_zeros(weight.shape[0], columns * groups, *weight.shape[2:])
    for g in range(groups):
        block = slice(g * rows, (g + 1) * rows)
        dense[block, g * columns : (g + 1) * columns] = weight[block]
    return dense


def identifiers(netlist: Netlist) -> dict[str, str]:
    """Node -> a unique name that is valid in Python and in other formats."""
    found: dict[str, str] = {}
    for name in netlist.nodes:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = f"n{plain}" if plain[:1].isdigit() or keyword.iskeyword(plain) else plain
        unique, n = plain, 1
        while unique in found.values():
            unique, n = f"{plain}_{n}", n + 1
        found[name] = unique
    return found
