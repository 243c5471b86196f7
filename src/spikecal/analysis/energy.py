"""Energy as the paper counts it: multiplications of the ANN against additions caused by spikes of the SNN.

4.6 pJ per multiply-accumulate and 0.9 pJ per addition (45 nm, float32). A spike costs one addition per synapse
in the layers that read it: `SOPs = sum_t sum_i [spike_i(t)] fanout_i`. A product with the zeros of padding is not an
operation on either side, so a network that fires at every step has T times as many SOPs as the ANN has MACs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from spikecal.analysis.operations import Weighted, fanout, nominal_macs, stage_ends, window_sums
from spikecal.calibration.expected import AC_PJ, MAC_PJ
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import (
    AdaptiveAvgPool,
    Add,
    AvgPool,
    ChannelAffine,
    Input,
    Joint,
    MaxPool,
    Pad,
    Reduce,
    Spike,
    Upsample,
)  # fmt: skip
from spikecal.snn.execute import Shapes, shapes_of
from spikecal.snn.network import SpikingNetwork

DELAY_LINES = "delay lines"  # the name of their line
SIZES = 16  # of images with cached fan-outs: those of large images take memory
Kind = Literal["once", "spikes", "analog", "skip"]


@dataclass(frozen=True)
class LayerEnergy:
    """One weighted layer, per image. `kind` is what it reads, which determines its cost in the SNN:

    `once`: the image, or a value computed from it without neurons, constant in time: its MACs, once. `spikes`: one SOP
    per spike and synapse. `analog`: currents that change from step to step: its MACs, T times. `skip`: no weights,
    spikes added to a neuron's current, one SOP each.
    """

    name: str
    stage: str
    kind: Kind
    macs: float  # of the ANN
    nominal_macs: float  # including products with the zeros of padding, as often counted
    sops: float
    snn_macs: float

    @property
    def ann_pj(self) -> float:
        return MAC_PJ * self.macs

    @property
    def snn_pj(self) -> float:
        return AC_PJ * self.sops + MAC_PJ * self.snn_macs


@dataclass(frozen=True)
class Line:
    """Operations of 0.9 pJ other than synapses, per image: the ANN's and the SNN's."""

    name: str
    ann: float
    snn: float


@dataclass(frozen=True)
class Energy:
    """Operations and energy of one image. `ann_pj`, `snn_pj` and `ratio` count synapses alone, as in the paper.

    `lines` are pooling, sums, bias, comparisons, neuron updates and delay lines; `ratio_with_all` counts them on both
    sides. `spikes` are those of all layers.
    """

    T: int
    images: int
    layers: list[LayerEnergy]
    lines: list[Line]
    spikes: float = 0.0

    @property
    def macs(self) -> float:
        return sum(layer.macs for layer in self.layers)

    @property
    def sops(self) -> float:
        return sum(layer.sops for layer in self.layers)

    @property
    def ann_pj(self) -> float:
        return sum(layer.ann_pj for layer in self.layers)

    @property
    def snn_pj(self) -> float:
        return sum(layer.snn_pj for layer in self.layers)

    @property
    def ratio(self) -> float | None:
        """Energy of the SNN as a share of the ANN's; None for a network without weights."""
        return self.snn_pj / self.ann_pj if self.ann_pj else None

    @property
    def ratio_with_all(self) -> float | None:
        ann = self.ann_pj + AC_PJ * sum(line.ann for line in self.lines)
        return (self.snn_pj + AC_PJ * sum(line.snn for line in self.lines)) / ann if ann else None

    @property
    def delayed(self) -> float | None:
        """Energy of the delay lines alone, as a share of the ANN's; they are not in `ratio`."""
        held = sum(line.snn for line in self.lines if line.name == DELAY_LINES)
        return AC_PJ * held / self.ann_pj if self.ann_pj else None

    @property
    def break_even(self) -> float | None:
        """The number of steps after which the SNN, firing at this rate, has cost as much as the ANN; None if never."""
        once = sum(layer.snn_pj for layer in self.layers if layer.kind == "once")
        step = (self.snn_pj - once) / self.T
        return (self.ann_pj - once) / step if step > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, energies included."""
        layers = [asdict(x) | {"ann_pj": x.ann_pj, "snn_pj": x.snn_pj} for x in self.layers]
        totals = {
            name: getattr(self, name)
            for name in (
                "spikes",
                "macs",
                "sops",
                "ann_pj",
                "snn_pj",
                "ratio",
                "ratio_with_all",
                "delayed",
                "break_even",
            )
        }
        lines = [asdict(line) for line in self.lines]
        return {"T": self.T, "images": self.images, **totals, "layers": layers, "lines": lines}


def stored_costs(energy: Energy | None) -> dict[str, float | None]:
    """The values that a file keeps; None if not counted."""
    names = {"energy_ratio": "ratio", "delayed": "delayed", "spikes": "spikes"}
    return {name: None if energy is None else getattr(energy, of) for name, of in names.items()}


@torch.no_grad()
def measure_energy(snn: SpikingNetwork, *inputs: Tensor) -> Energy:
    """Run `snn` on these images and count."""
    meter = EnergyMeter(snn)
    meter.add(inputs, snn.run(*inputs).spikes)
    return meter.result()


@dataclass
class _Value:
    """How a value behaves in time; if it consists of spikes, `spikes` `[N or 1, ...]` counts those at each element."""

    kind: Literal["once", "spikes", "analog"]
    spikes: Tensor | None = None


@dataclass
class _Tally:
    """Operations of one layer, over all images so far."""

    stage: str
    kind: Kind
    macs: float = 0.0
    nominal_macs: float = 0.0
    sops: float = 0.0
    snn_macs: float = 0.0


@dataclass
class EnergyMeter:
    """Adds up the operations of a network over batches of images and the spikes they caused."""

    network: SpikingNetwork
    images: int = 0
    spikes: float = 0.0
    _layers: dict[str, _Tally] = field(default_factory=dict)
    _lines: dict[str, list[float]] = field(default_factory=dict)
    _fanouts: dict[tuple[str, tuple[int, ...]], Tensor] = field(default_factory=dict)
    _shapes: dict[tuple[tuple[int, ...], ...], dict[str, torch.Size]] = field(default_factory=dict)
    _ends: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph: Graph = self.network.graph
        self.T: int = self.network.T
        self._run = self.T  # steps of the current batch
        self._ends = stage_ends(self.graph)
        nodes = [node for node in self.graph.nodes.values() if not isinstance(node.op, (Spike, Joint))]
        self._biased = {self._ends[node.name] for node in nodes if {"bias", "shift"} & node.op.tensors().keys()}
        # Counts are processed linearly, so images can be added up first, unless spikes are max-pooled.
        self._together = not any(isinstance(n.op, MaxPool) and n.op.of == "spikes" for n in self.graph.nodes.values())

    @torch.no_grad()
    def add(self, inputs: Sequence[Tensor], spikes: Mapping[str, Tensor], steps: int | None = None) -> None:
        """Count one batch: its images, and how often each neuron fired `[N, ...]`, by layer, in `steps` or all T."""
        self._run = self.T if steps is None else steps
        key = tuple(tuple(x.shape[1:]) for x in inputs)
        if key not in self._shapes:
            if len(self._shapes) == SIZES:
                self._shapes.clear()
                self._fanouts.clear()
            self._shapes[key] = shapes_of(self.graph, inputs)
        shapes, values, n = self._shapes[key], dict[str, _Value](), len(inputs[0])
        self.images += n
        for node in self.graph.nodes.values():
            values[node.name] = self._node(node, [values[name] for name in node.inputs], shapes, spikes, n)
        windows = self.network.windows
        for stage in windows.stages:
            for name, lead in windows.delays(stage).items():
                self._delayed(values[name], n * prod(shapes[name][1:]), lead)

    def tallies(self) -> dict[str, Any]:
        """The counts so far, as plain data: all of them integers."""
        layers = {name: astuple(tally) for name, tally in self._layers.items()}
        return {"images": self.images, "spikes": self.spikes, "layers": layers, "lines": self._lines}

    def merge(self, tallies: Mapping[str, Any]) -> None:
        """Add the counts of another meter of the same network."""
        self.images += tallies["images"]
        self.spikes += tallies["spikes"]
        for name, (stage, kind, *counts) in tallies["layers"].items():
            known = self._layers.get(name, _Tally(stage, kind))
            self._layers[name] = _Tally(stage, kind, *(a + b for a, b in zip(astuple(known)[2:], counts, strict=True)))
        for name, (ann, snn) in tallies["lines"].items():
            self._line(name, ann, snn)

    def result(self) -> Energy:
        n = max(self.images, 1)
        layers = [
            LayerEnergy(name, t.stage, t.kind, t.macs / n, t.nominal_macs / n, t.sops / n, t.snn_macs / n)
            for name, t in self._layers.items()
        ]
        lines = [Line(name, a / n, s / n) for name, (a, s) in self._lines.items()]
        return Energy(self.T, self.images, layers, lines, self.spikes / n)

    # -- one operation -----------------------------------------------------------------------------------------

    def _node(self, node: Node, inputs: list[_Value], shapes: Shapes, spikes: Mapping[str, Tensor], n: int) -> _Value:
        op, size = node.op, n * prod(shapes[node.name][1:])
        if isinstance(op, Input):
            return _Value("once")
        if isinstance(op, Spike):
            return self._neurons(node, inputs[0], spikes[node.name], size)
        if isinstance(op, Weighted):
            return self._weighted(node, inputs[0], shapes, n)
        if isinstance(op, Add):
            return self._sum(node, inputs, size)
        (first, *_) = inputs
        kinds = {value.kind for value in inputs}
        kind = first.kind if len(kinds) == 1 else "analog"
        passed = self._passed(node, inputs, shapes) if kind == "spikes" else None
        if isinstance(op, (AvgPool, AdaptiveAvgPool, Reduce)):
            terms = n * float(window_sums(op, torch.ones(1, *shapes[node.inputs[0]][1:])).sum())
            self._line("pooling", terms, float(passed.sum()) if passed is not None else self._steps(kind) * terms)
        elif isinstance(op, MaxPool):
            compared = size * (prod(op.kernel) - 1)
            self._line("comparisons", compared, self._steps(kind) * compared)
        elif isinstance(op, ChannelAffine) and op.shift is not None:
            self._line("bias", size, size if kind == "once" else 0)
        elif isinstance(op, Joint) and self._has_bias(node, kind):
            self._line("bias", 0, self._steps(kind) * size)
        if kind == "spikes" and passed is None:  # no longer whole spikes
            return _Value("analog")
        return _Value(kind, passed)

    def _has_bias(self, end: Node, kind: str) -> bool:
        """Whether a bias is added at every step: all biases of a stage count as one, at its end."""
        return "bias" in end.op.tensors() or (kind != "once" and end.name in self._biased)

    def _steps(self, kind: str) -> int:
        return 1 if kind == "once" else self._run

    def _neurons(self, node: Node, arriving: _Value, fired: Tensor, size: int) -> _Value:
        op = node.op
        assert isinstance(op, Spike)
        if arriving.spikes is not None:
            self._skip(node.name, arriving.spikes)
        if self._has_bias(node, arriving.kind):
            self._line("bias", 0, self._run * size)
        self._line("comparisons", size, self._run * size)
        # The current is added at every step, and every spike subtracts once.
        counts = fired.float().sum(0, keepdim=True).double() if self._together else fired.double()
        fires = float(counts.sum())
        self.spikes += fires
        self._line("neuron updates", 0, self._run * size + fires)
        return _Value("spikes", counts)

    def _delayed(self, value: _Value, size: int, lead: int) -> None:
        """Early values are held: a spike, or a number at every step, moves on once per step of its lead.

        The image, and values computed from it alone, are the same at every step: nothing needs to be held.
        """
        if value.kind != "once":
            held = self._run * size if value.spikes is None else float(value.spikes.sum(dtype=torch.float64))
            self._line(DELAY_LINES, 0, lead * held)

    def _weighted(self, node: Node, read: _Value, shapes: Shapes, n: int) -> _Value:
        op = node.op
        assert isinstance(op, Weighted)
        shape = tuple(shapes[node.inputs[0]][1:])
        key = (node.name, shape)
        if key not in self._fanouts:
            self._fanouts[key] = fanout(op, shape)
        fan = self._fanouts[key]
        macs = n * float(fan.sum())
        tally = self._layers.setdefault(node.name, _Tally(self._ends[node.name], read.kind))
        tally.macs += macs
        tally.nominal_macs += n * nominal_macs(op, shape, tuple(shapes[node.name][1:]))
        if read.spikes is not None:
            tally.sops += float((read.spikes.sum(0, dtype=torch.float64).cpu() * fan).sum())
        else:
            tally.snn_macs += self._steps(read.kind) * macs
        if op.bias is not None:
            size = n * prod(shapes[node.name][1:])
            self._line("bias", size, size if read.kind == "once" else 0)
        return _Value("once" if read.kind == "once" else "analog")

    def _sum(self, node: Node, inputs: list[_Value], size: int) -> _Value:
        kinds = {value.kind for value in inputs}
        terms = sum(value.kind != "spikes" for value in inputs)  # spikes are counted as synapses
        steps = 1 if kinds == {"once"} else self._run
        self._line("sums", (len(inputs) - 1) * size, steps * max(0, terms - 1) * size)
        if kinds == {"spikes"}:
            total = inputs[0].spikes
            for value in inputs[1:]:
                assert total is not None and value.spikes is not None
                total = total + value.spikes
            return _Value("spikes", total)
        for value in inputs:
            if value.spikes is not None:
                self._skip(node.name, value.spikes, self._ends[node.name])
        return _Value("once" if kinds == {"once"} else "analog")

    def _skip(self, name: str, spikes: Tensor, stage: str | None = None) -> None:
        tally = self._layers.setdefault(name, _Tally(stage or name, "skip"))
        tally.sops += float(spikes.sum(dtype=torch.float64))

    def _passed(self, node: Node, inputs: list[_Value], shapes: Shapes) -> Tensor | None:
        """How many spikes reach each element of the node's value; None if spikes reach it only in parts."""
        counts = [value.spikes for value in inputs]
        assert all(c is not None for c in counts)
        op = node.op
        if isinstance(op, (Joint, ChannelAffine)):
            return counts[0]
        if isinstance(op, (AvgPool, AdaptiveAvgPool, Reduce)):
            return window_sums(op, counts[0])  # type: ignore[arg-type]
        if isinstance(op, MaxPool) and op.of == "current":
            return None
        if isinstance(op, Upsample) and not op.mode.startswith("nearest"):
            return None
        if isinstance(op, Pad) and op.mode == "constant":
            op = Pad(pad=op.pad)  # padding adds no spikes
        references = [shapes[name] for name in (*node.inputs[:1], *node.shape_refs)]
        reached: Tensor = op(*counts, shapes=references)
        return reached

    def _line(self, name: str, ann: float, snn: float) -> None:
        line = self._lines.setdefault(name, [0.0, 0.0])
        line[0] += ann
        line[1] += snn
