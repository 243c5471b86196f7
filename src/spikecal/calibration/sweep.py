"""The sweep: front to back, each stage simulated on the spikes of the stages before it, and calibrated once."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikecal.calibration.cache import Cache
from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.images import Inputs
from spikecal.calibration.update import Allowed, Update
from spikecal.calibration.view import Simulation, StageView, calls
from spikecal.errors import CalibrationError, DataError, SpikecalError, first_line
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Spike, along, frozen
from spikecal.graph.passes import update_pool_units
from spikecal.graph.stages import Stage, behind_branches, last_uses, partition
from spikecal.progress import Progress
from spikecal.ranks import Ranks
from spikecal.snn.execute import Shapes, images_per_call
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.walk import analog_values
from spikecal.tensors import channels_last
from spikecal.usercode import is_own
from spikecal.workdir import Workdir

UNIT, UNIT_BATCHES = 16, 4  # most images and micro-batches in a unit, which stays on one rank; calls do not cross units


@dataclass
class StageRecord:
    """What happened to one stage. `errors` are relative errors, "before" and after each calibrator.

    `rate` is spikes per neuron and step; `saturated` the share of neurons that fire at every step (over images);
    `dead` the share that fires for no image. A joint has no neurons and no threshold.
    """

    T: int
    sweep: int
    stage: str
    kind: str
    threshold: float | None
    errors: list[tuple[str, float]]
    rate: float | None
    saturated: float | None
    dead: float | None
    seconds: float
    notes: list[str] = field(default_factory=list)


@torch.no_grad()
def observe(
    graph: Graph, batches: Sequence[Inputs], shapes: Sequence[Shapes], progress: Progress, ranks: Ranks | None = None
) -> dict[str, Histogram]:
    """One pass of the ANN: a histogram of every activation, over the batches of all ranks."""
    ranks, stages = ranks or Ranks(), partition(graph)
    channels = {stage.name: stage.end.op.channel for stage in stages if isinstance(stage.end.op, Spike)}
    device = batches[0][0].device
    found = {name: Histogram.empty(shapes[0][name][channel], device) for name, channel in channels.items()}
    for batch, batch_shapes in ((batches[i], shapes[i]) for i in ranks.each(len(batches))):
        inputs = {name: channels_last(x).unsqueeze(0) for name, x in zip(graph.inputs(), batch, strict=True)}
        for stage, value in analog_values(stages, inputs, batch_shapes):
            if isinstance(stage.end.op, Spike):
                # of magnitudes: signed neurons have one threshold for both signs, and others no negative values
                signed = stage.end.op.neuron.alphabet[0] < 0
                try:
                    seen = Histogram.of(value[0].abs() if signed else value[0], stage.end.op.channel, stage.end.op.clip)
                except ValueError as error:
                    raise DataError(f"{stage.name}: {error} in the ANN: its weights are too large") from error
                found[stage.name] = found[stage.name].merge(seen)
        progress.advance()
    return dict(_over_ranks(found, ranks)) if ranks.count > 1 and found else found


def _over_ranks(found: dict[str, Histogram], ranks: Ranks) -> Iterator[tuple[str, Histogram]]:
    """Merge with those of all other ranks: counts are integers, so the order does not matter."""
    widths = [len(own.maximum) for own in found.values()]
    maxima = ranks.largest(torch.cat([own.maximum for own in found.values()])).split(widths)
    exponents = ranks.largest(torch.cat([own.exponent for own in found.values()])).split(widths)
    for (name, own), maximum, exponent in zip(found.items(), maxima, exponents, strict=True):
        counts = ranks.counted(torch.cat([own.widened(exponent), own.clipped[:, None]], 1))
        inside, clipped = counts[:, :-1].contiguous(), counts[:, -1].contiguous()
        yield name, Histogram(inside, exponent.clone(), maximum.clone(), clipped)


@dataclass
class Sweep:
    """One pass of calibrators over a network. `ann` is the graph before any change."""

    ann: Graph
    network: SpikingNetwork
    calibrators: Sequence[Calibrator]
    index: int
    batches: Sequence[Inputs]
    shapes: Sequence[Shapes]
    marks: Sequence[int]
    cache: Cache
    workdir: Workdir | None
    seed: int
    grouping: bool  # whether small stages may run several micro-batches at once
    progress: Progress
    ranks: Ranks

    def __post_init__(self) -> None:
        self._counts = [len(batch[0]) for batch in self.batches]
        images = min(UNIT, UNIT_BATCHES * max(self._counts)) if self.grouping else 1
        self._units = list(calls(self._counts, self.marks, self.shapes, images, range(len(self.batches))))

    def run(self) -> list[StageRecord]:
        for batch, inputs in enumerate(self.batches):
            for name, x in zip(self.ann.inputs(), inputs, strict=True):
                value = channels_last(x)
                self.cache.pin((name, batch, "ann"), value)
                self.cache.pin((name, batch, "snn"), value.unsqueeze(0))
        records = []
        stages = self.network.stages
        for number, (ann, stage, freed) in enumerate(zip(partition(self.ann), stages, last_uses(stages), strict=True)):
            key = f"T{self.network.T}/sweep{self.index}/{number:04d}"
            record = self._restore(stage, key)
            if record is None:
                record = self._calibrate(ann, stage, number)
                if self.workdir is not None:
                    self.workdir.save(key, _tensors(stage), asdict(record))
            for name in freed:
                self.cache.free(name)
            records.append(record)
            self.progress.advance(f"{stage.name}  error {record.errors[-1][1]:.3f}")
        return records

    def _restore(self, stage: Stage, key: str) -> StageRecord | None:
        done = self.workdir.load(key) if self.workdir is not None else None
        if done is None:
            return None
        tensors, record = done
        _replace(stage, {name: channels_last(value).to(self.cache.device) for name, value in tensors.items()})
        record["errors"] = [(label, error) for label, error in record["errors"]]
        return StageRecord(**record)

    def _calibrate(self, ann: Stage, stage: Stage, number: int) -> StageRecord:
        started = time.perf_counter()
        own = {name: self.shapes[0][name] for name in (*stage.inputs, *(node.name for node in stage.nodes))}
        together = images_per_call(own, self.network.T) if self.grouping else 1
        seed = self.seed + number
        settings = self._counts, self.marks, self.shapes, seed, together, stage.name in self.ann.outputs()
        home = self._units, self.ranks, self.batches[0][0].dtype
        view = StageView(ann, stage, self.network.windows, self.cache, *settings, *home)
        view.branched = stage.name in behind_branches(self.network.stages)
        applicable = [c for c in self.calibrators if c.applies(stage)]
        view.prepare()
        errors = [("before", view.simulate(keep=not applicable).error)]
        for calibrator in applicable:
            last = calibrator is applicable[-1]
            before = _tensors(stage)
            update = self._solve(calibrator, view)
            self.ranks.same(update.tensors())
            self._apply(view, update)
            error = view.simulate(keep=last).error
            if calibrator.guarded and self.ranks.decided(not error <= errors[-1][1]):
                view.notes.append(f"{calibrator.label} would have raised the error to {error:.4f}: left unchanged")
                _replace(stage, before)
                view.forget_currents()
                error = view.simulate(keep=last).error
            errors.append((calibrator.label, error))
        self.cache.free(stage.name, "current")
        return self._record(view, errors, time.perf_counter() - started)

    def _solve(self, calibrator: Calibrator, view: StageView) -> Update:
        """The update of a calibrator. A user's own may return anything; an error names the stage."""
        if not is_own(type(calibrator)):
            return calibrator.solve(view)
        stage, name = view.stage, type(calibrator).__name__
        try:
            update = calibrator.solve(view)
        except SpikecalError:
            raise
        except Exception as error:
            raise CalibrationError(stage.name, name, f"raised {type(error).__name__}: {first_line(error)}") from error
        like, shape = view.like, tuple(self.shapes[0][stage.name])
        return Allowed(stage, name, calibrator.learns, self.network.T, shape, like, view.one_size).checked(update)

    def _apply(self, view: StageView, update: Update) -> None:
        apply(view.stage, update)
        if update.scale is not None:
            update_pool_units(self.network.graph, self.shapes[0])
        if update.weights:
            view.forget_currents()

    def _record(self, view: StageView, errors: list[tuple[str, float]], seconds: float) -> StageRecord:
        stage, run = view.stage, view.simulation
        op = stage.end.op
        neurons = isinstance(op, Spike)
        return StageRecord(
            T=self.network.T,
            sweep=self.index,
            stage=stage.name,
            kind=stage.kind,
            threshold=float(op.height(1).mean()) if isinstance(op, Spike) else None,
            errors=errors,
            rate=run.spikes / run.slots if neurons else None,
            saturated=run.saturated / run.neurons if neurons else None,
            dead=_dead(run) if neurons else None,
            seconds=seconds,
            notes=view.notes,
        )


def apply(stage: Stage, update: Update) -> None:
    """The one place that changes a network's parameters."""
    op = stage.end.op
    if update.scale is not None and isinstance(op, Spike):
        for name, tensor in op.scaled(update.scale).tensors().items():
            setattr(op, name, frozen(tensor))
    if update.bias is not None:
        op.bias = frozen(update.bias if op.bias is None else op.bias + update.bias)  # type: ignore[operator]
    if update.step_bias is not None and isinstance(op, Spike):
        op.step_bias = frozen(update.step_bias if op.step_bias is None else op.step_bias + update.step_bias)
    if update.v_init is not None and isinstance(op, Spike):
        delta = update.v_init
        if op.v_init is not None:
            known: Tensor = op.v_init
            ndim = max(known.ndim, delta.ndim)  # per channel plus per neuron is per neuron
            channel = op.channel - 1 if op.channel > 0 else -1
            delta = along(known, channel, ndim) + along(delta, channel, ndim)
        op.v_init = frozen(delta)
    for node in stage.nodes:
        if node.name in update.weights:
            node.op.weight = frozen(update.weights[node.name])


def _tensors(stage: Stage) -> dict[str, Tensor]:
    return {f"{node.name}:{name}": value for node in stage.nodes for name, value in node.op.tensors().items()}


def _replace(stage: Stage, tensors: dict[str, Tensor]) -> None:
    for node in stage.nodes:
        for name in node.op.TENSORS:
            value = tensors.get(f"{node.name}:{name}")
            setattr(node.op, name, None if value is None else frozen(value))


def _dead(run: Simulation) -> float:
    assert run.fired is not None
    return 1 - float(run.fired.double().mean())


def settings_of(record: StageRecord) -> dict[str, Any]:
    """A record without its timing, which is the same every time the same conversion runs."""
    plain = asdict(record)
    del plain["seconds"]
    return plain
