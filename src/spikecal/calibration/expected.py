"""The expected energy of a network before it has run, from firing rates according to the ANN's values."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from spikecal.calibration.histogram import Histogram
from spikecal.graph.graph import Graph
from spikecal.graph.joints import Sizes, in_time
from spikecal.graph.merging import multiply_adds
from spikecal.graph.ops import AdaptiveAvgPool, Add, AvgPool, Reduce, Spike
from spikecal.graph.stages import WEIGHTED

MAC_PJ, AC_PJ = 4.6, 0.9  # a multiply-accumulate, an addition: 45 nm, float32


@dataclass(frozen=True)
class Expected:
    """Picojoules per image: the ANN's, and the SNN's by what its weighted layers read."""

    T: int
    ann: float
    once: float  # the image: once
    analog: float  # currents that change from step to step: at every step
    spikes: float
    readers: int  # layers that read currents

    @property
    def ratio(self) -> float:
        return (self.once + self.analog + self.spikes) / self.ann if self.ann else 0.0

    def sentence(self) -> str:
        """The share of the ANN's energy; if the SNN takes more, also the reason and the way out."""
        share = f"expected energy at T={self.T}: {100 * self.ratio:.0f} % of the ANN's"
        return f"{share}; {self._advice()}" if self.ratio > 1 else share

    def _advice(self) -> str:
        if self.analog > self.spikes:
            layers = "1 layer reads" if self.readers == 1 else f"{self.readers} layers read"
            return f'{layers} linear values as currents at every step: joints="signed" (--joints signed) sends spikes'
        even = int(self.T * (self.ann - self.once) / max(self.analog + self.spikes, 1e-12))
        return f"use fewer steps: the costs are equal at about T={even}" if even >= 1 else "it costs more at every T"


def expected_rate(histogram: Histogram, theta: Tensor) -> float:
    """Spikes per neuron and step: the mean of `clip(x, 0, theta) / theta`, with values at the middle of their bins."""
    edges = histogram.edges()
    middles = (edges[:, :-1] + edges[:, 1:]) / 2
    limits = theta.double().to(edges.device).view(-1, 1).expand(len(edges), 1)
    counts = histogram.counts.double()
    whole = counts.sum()
    return float((counts[:, 1:] * (middles.minimum(limits) / limits)).sum() / whole) if whole else 0.0


def expected_energy(graph: Graph, sizes: Sizes, rates: Mapping[str, float], T: int) -> Expected:
    """Energy of synapses alone, as in the paper; `sizes` are shapes of all values, `rates` those of spiking layers."""
    kinds, reach = in_time(graph), _spikes_per_element(graph, sizes, rates)
    ann, cost, readers = 0.0, {"once": 0.0, "analog": 0.0, "spikes": 0.0}, 0
    for node in graph.nodes.values():
        if not isinstance(node.op, WEIGHTED):
            continue
        macs, source = multiply_adds(node.op, sizes[node.name]), node.inputs[0]
        kind = kinds[source]
        ann += MAC_PJ * macs
        readers += kind == "analog"
        each = {"once": MAC_PJ, "analog": MAC_PJ * T, "spikes": AC_PJ * T * reach[source]}[kind]
        cost[kind] += each * macs
    return Expected(T, ann, cost["once"], cost["analog"], cost["spikes"], readers)


def _spikes_per_element(graph: Graph, sizes: Sizes, rates: Mapping[str, float]) -> dict[str, float]:
    """How many spikes reach an element of each value per step; pools and sums pass on all of theirs."""
    found: dict[str, float] = {}
    for node in graph.nodes.values():
        read = [(found[name], prod(sizes[name][1:])) for name in node.inputs]
        own = prod(sizes[node.name][1:])
        if isinstance(node.op, Spike):
            found[node.name] = rates.get(node.name, 0.0)
        elif isinstance(node.op, Add):
            found[node.name] = sum(reach for reach, _ in read)
        elif isinstance(node.op, (AvgPool, AdaptiveAvgPool, Reduce)):
            found[node.name] = read[0][0] * read[0][1] / max(own, 1)
        else:
            found[node.name] = sum(reach * count for reach, count in read) / max(1, sum(count for _, count in read))
    return found
