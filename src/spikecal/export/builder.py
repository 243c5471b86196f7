"""Shared state of the walk over a network's graph: the netlist so far, bounds of its values, and time."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from spikecal.errors import ConversionError
from spikecal.export.bounds import Range, range_of
from spikecal.export.clock import clock
from spikecal.export.netlist import Delay, Image, Netlist, Neurons, Node
from spikecal.export.values import Shape, Term, Value, mixing, ones
from spikecal.graph.graph import Node as Operation
from spikecal.snn.network import SpikingNetwork


class Builder:
    """A netlist under construction. A scale accompanies each value until weights absorb it."""

    def __init__(self, snn: SpikingNetwork, image: Tensor, low: Tensor, high: Tensor) -> None:
        self.snn = snn
        self.shapes: dict[str, Shape] = {name: tuple(of[1:]) for name, of in snn.course((image,)).shapes.items()}
        self.netlist = Netlist(snn.T, snn.latency, snn.warm_up if snn.warm_up < snn.T else 0)
        self.ranges: dict[str, Range] = {}
        self.starts: dict[str, int] = {}  # the first step at which a node can be nonzero
        self._delays: dict[tuple[str, int], str] = {}
        self._arrivals = {node.name: snn.windows.arrival(stage) for stage in snn.stages for node in stage.nodes}
        self.add(Image(name="image", shape=tuple(image.shape[1:]), low=low, high=high))

    def add(self, node: Node) -> str:
        """Add a node, with the bounds of its value; returns its name."""
        name = self.netlist.add(node)
        self.ranges[name] = range_of(node, [self.ranges[source] for source in node.inputs])
        earliest = min((self.starts[source] for source in node.inputs), default=0)
        late = node.steps if isinstance(node, Delay) else 0
        self.starts[name] = node.start if isinstance(node, Neurons) else earliest + late
        return name

    def delayed(self, value: Value, steps: int) -> Value:
        """The value `steps` later; delay lines of the same node and length are shared."""
        terms = tuple(Term(self._delay(term.node, steps), term.mix) for term in value.terms)
        constant = value.constant
        if constant is not None:
            constant = torch.cat([constant.new_zeros(steps, constant.shape[1]), constant[:-steps]])
        return Value(terms, value.shape, constant)

    def _delay(self, source: str, steps: int) -> str:
        if (source, steps) not in self._delays:
            shape = self.netlist.nodes[source].shape
            line = Delay(name=f"{source}.delay", inputs=(source,), shape=shape, steps=steps)
            self._delays[source, steps] = self.add(line)
        return self._delays[source, steps]

    def nodes_of(self, value: Value, name: str) -> list[str]:
        """Nodes whose sum is the value; a mix becomes a 1x1 convolution, a constant a clock."""
        found = []
        for term in value.terms:
            scaled = mixing(f"{name}.from.{term.node}", (term.node,), term.mix, value.shape)
            found.append(term.node if term.plain else self.add(scaled))
        ticking = None if value.constant is None else clock(f"{name}.clock", value.shape, value.constant)
        return found if ticking is None else [*found, self.add(ticking)]

    def without_constant(self, node: Operation, value: Value) -> Value:
        """The value with its constant as a term, for operations that treat borders differently."""
        if value.constant is None:
            return value
        ticking = clock(f"{node.name}.clock", value.shape, value.constant)
        more = () if ticking is None else (Term(self.add(ticking), ones(value.shape[0])),)
        return Value((*value.terms, *more), value.shape)

    def during(self, node: Operation, values: Tensor) -> Tensor:
        """Numbers `[C]` or `[T, C]` over all steps: added while the node's stage receives its input."""
        start, T = self._arrivals[node.name], self.snn.T
        schedule = torch.zeros(self.snn.latency, values.shape[-1], dtype=torch.double)
        schedule[start : start + T] = values.detach().double()
        return schedule

    def weighted(self, value: Value, make: Callable[[Tensor], Node]) -> tuple[Term, ...]:
        """Nodes created by `make` for a mix of their inputs: one per way of mixing terms."""
        alike: list[tuple[Tensor, list[str]]] = []
        for term in value.terms:
            known = (names for mix, names in alike if torch.equal(mix, term.mix))
            names = next(known, None)
            if names is None:
                alike.append((term.mix, [term.node]))
            else:
                names.append(term.node)
        made = [self.add(replace(make(mix), inputs=tuple(names))) for mix, names in alike]
        return tuple(Term(name, ones(self.netlist.nodes[name].shape[0])) for name in made)


def refuse(node: Operation, found: str, hint: str) -> NoReturn:
    """A network that cannot be exported."""
    raise ConversionError(node.name, found, hint)
