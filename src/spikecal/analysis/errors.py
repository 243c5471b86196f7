"""Where the conversion error comes from: per layer and channel, in one pass over the stages.

With x the ANN's value, s the mean of what the SNN emits, r the *ANN's* stage on the SNN's mean inputs, c the mean
current at the neurons and a the ANN's activation of it:

    e = x - s = (x - r) + (r - s)                                          input error + local error
    r - s = (a - min(a, theta)) + (min(a, theta) - q) + (q - s) + (r - a)  clipping, flooring, unevenness, weights

where q is the closed form of the spike count for a constant current c (paper, eq. of ClipFloor, with the neuron's own
bias and initial potential, so flooring includes what rounding and calibration add). Signed neurons also clip at
-theta. The last term is zero unless weights were calibrated. Sums of squares do not add up, but signed means do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.calibration.images import batches, collect
from spikecal.errors import ConfigError
from spikecal.graph.graph import Graph, describe
from spikecal.graph.joints import staged
from spikecal.graph.ops import Joint, Spike, of_channels
from spikecal.graph.stages import Stage, partition
from spikecal.progress import Progress
from spikecal.snn.execute import Emission, Shapes, Want, analog, images_per_call, shapes_of
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.walk import Course, Edges, analog_values
from spikecal.snn.windows import Windows

IMAGES = 128
PARTS = ("total", "input", "local", "flooring", "clipping", "unevenness", "weights")


@dataclass(frozen=True)
class Part:
    """One part of the error per channel `[C]`: its mean over images and positions, and its sum of squares per image."""

    mean: Tensor
    squared: Tensor


@dataclass(frozen=True)
class LayerErrors:
    """One stage. All tensors are float64 `[C]`; a joint has no neurons, so values about neurons are None."""

    stage: str
    kind: str
    depth: int  # stages after it on the longest path to an output: n - l
    parts: dict[str, Part]
    squared: Tensor  # ||x||^2 per image
    threshold: Tensor | None
    rate: Tensor | None  # spikes per neuron and step
    saturated: Tensor | None  # share of neurons that fire at every step, over images
    dead: Tensor | None  # share of neurons that fire for no image

    @property
    def relative(self) -> Tensor:
        """`||x - s||^2 / ||x||^2` of every channel. For one that is 0 in the ANN: NaN, or infinite if it fires."""
        return self.parts["total"].squared / self.squared

    def share(self, part: str = "total") -> float:
        """The squared norm of a part of the error of the whole layer, relative to that of the ANN's value."""
        whole, of = float(self.squared.sum()), float(self.parts[part].squared.sum())
        return of / whole if whole > 0 else float(of > 0)

    @property
    def objective(self) -> float:
        """This layer's term of the paper's objective: `2^(n-l+1) ||e_c||^2` per image."""
        return 2.0 ** (self.depth + 1) * float(self.parts["local"].squared.sum())


@dataclass(frozen=True)
class NetworkErrors:
    """All stages of a network in running order, measured on `images` images."""

    T: int
    images: int
    layers: list[LayerErrors]

    @property
    def objective(self) -> float:
        """`sum_l 2^(n-l+1) ||e_c^l||^2` per image (paper, eq. after theorem 1)."""
        return sum(layer.objective for layer in self.layers)

    def layer(self, stage: str) -> LayerErrors:
        for layer in self.layers:
            if layer.stage == stage:
                return layer
        raise KeyError(stage)

    def neurons(self) -> list[LayerErrors]:
        return [layer for layer in self.layers if layer.threshold is not None]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: shares per layer, and everything per channel."""
        return {
            "T": self.T,
            "images": self.images,
            "objective": self.objective,
            "layers": [_plain(layer) for layer in self.layers],
        }


def measure_errors(
    ann: nn.Module | Graph,
    snn: SpikingNetwork,
    images: Any,
    *,
    count: int = IMAGES,
    seed: int = 0,
    progress: Progress | None = None,
) -> NetworkErrors:
    """Errors of `snn` relative to its source model, on `count` of `images` (as `convert` takes them)."""
    home = next(snn.parameters())
    chosen = collect(images, count, len(snn.graph.inputs()), seed)
    chosen = [tuple(x.to(home.device, home.dtype) for x in image) for image in chosen]
    graph = ann_graph(ann, snn, chosen[0])
    grouped = batches(chosen, images_per_call(shapes_of(graph, chosen[0]), snn.T), ())
    stages, own = partition(graph), snn.stages
    tallies = [_Tally(stage) for stage in own]
    if progress is not None:
        progress.phase("errors", len(grouped), None)
    for batch in grouped:
        for tally, run in zip(tallies, walk(stages, snn, batch, shapes_of(graph, batch)), strict=True):
            tally.add(run, snn.T)
        if progress is not None:
            progress.advance()
    depths = depths_of(own)
    return NetworkErrors(snn.T, len(chosen), [t.result(depths[t.stage.name], len(chosen), snn.T) for t in tallies])


def ann_graph(ann: nn.Module | Graph, snn: SpikingNetwork, example: Sequence[Tensor]) -> Graph:
    """The ANN as a graph whose stages are those of `snn`."""
    if isinstance(ann, nn.Module):
        keep = snn.origin.keep
        if snn.head is not None and not keep:
            raise ConfigError("this network has an analog head: give the graph it was made from, not the model")
        ann = staged(ann, tuple(torch.cat([x, x]) for x in example), keep, snn.origin.joints)
    if describe(ann) != describe(snn.graph):
        raise ConfigError("this spiking network was made from a different source model: their operations differ")
    return ann


def depths_of(stages: Sequence[Stage]) -> dict[str, int]:
    """How many stages follow each one on the longest path to an output; 0 for the last."""
    depths = {stage.name: 0 for stage in stages}
    for stage in reversed(stages):
        for name in stage.inputs:
            if name in depths:
                depths[name] = max(depths[name], depths[stage.name] + 1)
    return depths


# -- one batch -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRun:
    """One stage on one batch `[N, ...]`: x, r, a, q, s of the module's docstring; `spikes` are counts."""

    ann: Tensor
    on_spikes: Tensor
    activation: Tensor
    closed_form: Tensor
    mean: Tensor
    spikes: Tensor | None
    theta: Tensor | None

    def parts(self) -> dict[str, Tensor]:
        kept = self.activation if self.theta is None else self.activation.clamp(-self.theta, self.theta)
        return {
            "total": self.ann - self.mean,
            "input": self.ann - self.on_spikes,
            "local": self.on_spikes - self.mean,
            "flooring": kept - self.closed_form,
            "clipping": self.activation - kept,
            "unevenness": self.closed_form - self.mean,
            "weights": self.on_spikes - self.activation,
        }


@torch.no_grad()
def walk(stages: Sequence[Stage], snn: SpikingNetwork, batch: Sequence[Tensor], shapes: Shapes) -> Iterator[StageRun]:
    """Every stage on one batch in running order, the ANN's values beside the SNN's."""
    inputs = snn.input_values(tuple(batch))
    means = Edges(Windows(1, stages))
    for name, value in inputs.items():
        means.put(name, value, 1)
    course = Course(snn.windows, shapes)
    emissions = course.advance(inputs, snn.windows.end, last=True, want=Want.VALUE | Want.TOTAL)
    for (ann, x), (stage, emission) in zip(analog_values(stages, inputs, shapes), emissions, strict=True):
        mean = emission.summed() / snn.T
        r = analog(ann, means.take(ann, 1), shapes)
        yield _run(stage, snn.T, x[0], r[0], mean, emission)
        means.put(stage.name, mean.unsqueeze(0), 1)


def _run(stage: Stage, T: int, x: Tensor, r: Tensor, mean: Tensor, emission: Emission) -> StageRun:
    op = stage.end.op
    if not isinstance(op, Spike):
        return StageRun(x, r, mean, mean, mean, None, None)  # the only difference is the joint's own weights and bias
    assert emission.total is not None
    arriving = emission.arriving.mean(0)
    cells = op.cells(arriving.ndim)
    closed = cells.theta / T * op.neuron.closed_form(arriving, cells, T)
    return StageRun(x, r, op(arriving), closed, emission.total * (cells.theta / T), emission.spikes, cells.theta)


# -- adding up -----------------------------------------------------------------------------------------------------


@dataclass
class _Tally:
    """Sums of one stage over batches, float64 per channel."""

    stage: Stage
    sums: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    target: Tensor | None = None
    elements: int = 0  # images x positions of a channel
    spikes: Tensor | None = None
    saturated: Tensor | None = None
    fired: dict[torch.Size, Tensor] = field(default_factory=dict)  # by the shape of one image

    def add(self, run: StageRun, T: int) -> None:
        for name, part in run.parts().items():
            rows = self._rows(part)
            _accumulate(self.sums, name, rows.sum(1))
            _accumulate(self.squares, name, rows.square().sum(1))
        rows = self._rows(run.ann)
        squared = rows.square().sum(1)
        self.target = squared if self.target is None else self.target + squared
        self.elements += rows.shape[1]
        if run.spikes is None:
            return
        rows = self._rows(run.spikes)
        spikes, full = rows.sum(1), (rows == T).sum(1)
        self.spikes = spikes if self.spikes is None else self.spikes + spikes
        self.saturated = full if self.saturated is None else self.saturated + full
        fired = (run.spikes > 0).any(0)
        known = self.fired.get(fired.shape)
        self.fired[fired.shape] = fired if known is None else known | fired

    def _rows(self, values: Tensor) -> Tensor:
        """`[C, images x positions]` in float64."""
        op = self.stage.end.op
        assert isinstance(op, (Spike, Joint))
        return of_channels(values, op.channel).double()

    def result(self, depth: int, images: int, T: int) -> LayerErrors:
        op = self.stage.end.op
        assert self.target is not None
        parts = {
            name: Part((self.sums[name] / self.elements).cpu(), (self.squares[name] / images).cpu()) for name in PARTS
        }
        facts: dict[str, Any] = dict.fromkeys(("threshold", "rate", "saturated", "dead"))
        if isinstance(op, Spike):
            assert self.spikes is not None and self.saturated is not None and op.theta is not None
            facts["threshold"] = op.theta.detach().double().expand_as(self.spikes).cpu()
            facts["rate"] = (self.spikes / (self.elements * T)).cpu()
            facts["saturated"] = (self.saturated.double() / self.elements).cpu()
            # Images of different sizes have different neurons.
            alive = torch.cat([self._rows(f.unsqueeze(0)) for f in self.fired.values()], 1)
            facts["dead"] = (1 - alive.mean(1)).cpu()
        squared = (self.target / images).cpu()
        return LayerErrors(self.stage.name, self.stage.kind, depth, parts, squared, **facts)


def _accumulate(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _plain(layer: LayerErrors) -> dict[str, Any]:
    facts = {"stage": layer.stage, "kind": layer.kind, "depth": layer.depth, "objective": layer.objective}
    facts["share"] = {name: layer.share(name) for name in PARTS}
    channels: dict[str, Any] = {"relative": _numbers(layer.relative)}
    channels["mean"] = {name: part.mean.tolist() for name, part in layer.parts.items()}
    channels["squared"] = {name: part.squared.tolist() for name, part in layer.parts.items()}
    for name in ("threshold", "rate", "saturated", "dead"):
        value: Tensor | None = getattr(layer, name)
        channels[name] = None if value is None else value.tolist()
    return facts | {"channels": channels}


def _numbers(values: Tensor) -> list[float | None]:
    """JSON has neither NaN nor infinity."""
    return [value if abs(value) < float("inf") else None for value in values.tolist()]
