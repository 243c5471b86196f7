"""The parts of a conversion: one pass of the ANN for histograms, then neurons and phases for every T. All resume."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from spikecal.calibration.cache import Cache
from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.histogram import PARTS, Histogram
from spikecal.calibration.images import Inputs, batches
from spikecal.calibration.sweep import StageRecord, Sweep, observe
from spikecal.calibration.threshold import Quantiser, UnusableThreshold
from spikecal.calibration.whole import NetworkPhase, Whole
from spikecal.errors import CalibrationError, first_line
from spikecal.graph.graph import Graph
from spikecal.graph.ops import SignedSpike, Spike, frozen
from spikecal.graph.passes import set_pool_units
from spikecal.pipeline import Phase, Pipeline
from spikecal.progress import Progress
from spikecal.ranks import Ranks
from spikecal.snn.execute import CALL_FLOATS, Shapes, images_per_call, largest_value, shapes_of, steps_per_call
from spikecal.snn.network import SpikingNetwork
from spikecal.usercode import is_own
from spikecal.workdir import Workdir

WORKING_VALUES = 8  # values of one kernel call alive at once, besides the cache
MEASURED = 128  # images of a sweep that only measures
SAVE_SECONDS = 10  # between saved states of a phase on the whole network: the most a killed process loses


@dataclass(frozen=True, kw_only=True)
class Context:
    """What all phases of one conversion share. `memory` is the bytes for values between stages."""

    ann: Graph
    images: Sequence[Inputs]
    pipeline: Pipeline
    seed: int
    micro_batch: int | None
    memory: int
    records: bool
    progress: Progress
    workdir: Workdir | None
    ranks: Ranks = field(default_factory=Ranks)
    labels: Tensor | None = None  # of the images, where the pipeline learns from them

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of all values for the first image, by which sizes are planned."""
        return shapes_of(self.ann, self.images[0])

    def images_per_call(self, T: int) -> int:
        return self.micro_batch or images_per_call(self.shapes, T)

    def phases(self) -> Sequence[Phase]:
        """The pipeline's own, with one that only measures where records would be missing."""
        return self.pipeline.phases(self.records)


def histograms(context: Context) -> tuple[dict[str, Histogram], float]:
    """Histograms of all activations, and the seconds taken (once) to make them."""
    images = context.images[: context.pipeline.threshold.images]
    done = context.workdir.load("histograms") if context.workdir else None
    if done is not None:
        device = images[0][0].device
        names, took = done[1]
        return {name: Histogram(*(done[0][f"{name}:{part}"].to(device) for part in PARTS)) for name in names}, took
    started = time.perf_counter()
    grouped = batches(images, images_per_call(context.shapes, 1), ())
    context.progress.phase("thresholds", len(context.ranks.share(len(grouped))), None)
    found = observe(context.ann, grouped, _shapes(context.ann, grouped), context.progress, context.ranks)
    took = time.perf_counter() - started
    if context.workdir:
        tensors = {f"{name}:{part}": getattr(h, part) for name, h in found.items() for part in PARTS}
        context.workdir.save("histograms", tensors, [list(found), took])
    return found, took


def set_neurons(
    network: SpikingNetwork,
    histograms: dict[str, Histogram],
    pipeline: Pipeline,
    dtype: torch.dtype,
    shapes: Shapes,
    ranks: Ranks,
) -> None:
    """Give every layer its neuron, its threshold and the half step of rounding; linear values have their own."""
    layers = {stage.name: stage.end.op for stage in network.stages if isinstance(stage.end.op, Spike)}
    for op in layers.values():
        if not isinstance(op, SignedSpike):
            op.neuron = pipeline.neuron

    def reach(name: str) -> Tensor:
        """The largest value that a mean can have, in as many steps as it has levels."""
        neuron = layers[name].neuron
        quantiser = pipeline.quantiser if neuron.floors else "round"
        return solve_threshold(pipeline, name, histograms[name], network.T * neuron.alphabet[-1], quantiser)

    reached = ranks.each_once({name: float(len(histograms[name].maximum)) for name in layers}, reach)
    for name, op in layers.items():
        most = reached[name].to(histograms[name].maximum.device, dtype)
        set_threshold(op, pipeline.threshold.within(most, op.clip) / op.neuron.alphabet[-1], network.T, pipeline)
        if isinstance(op, SignedSpike) and op.theta is not None:
            op.reach = frozen(closing_reach(op.theta, network.T)) if network.waits.get(name) else None
    if len(pipeline.neuron.alphabet) > 2:
        set_pool_units(network.graph, shapes)


def solve_threshold(pipeline: Pipeline, stage: str, histogram: Histogram, steps: int, quantiser: Quantiser) -> Tensor:
    """A layer's threshold. A user's own method may return anything; an error names the layer."""
    part = type(pipeline.threshold)
    try:
        return pipeline.threshold.solve(histogram, steps, quantiser)
    except UnusableThreshold as error:
        raise CalibrationError(stage, part.__name__, str(error)) from error
    except Exception as error:
        if not is_own(part):
            raise
        raised = f"raised {type(error).__name__}: {first_line(error)}"
        raise CalibrationError(stage, part.__name__, raised) from error


def set_threshold(op: Spike, theta: Tensor, T: int, pipeline: Pipeline) -> None:
    """Give a layer a threshold, and its half step of rounding unless its neurons round by themselves."""
    early, steadily = pipeline.half_step if op.neuron.floors else (0.0, 0.0)
    op.theta = frozen(theta)
    op.bias = frozen(steadily * theta / (2 * T)) if steadily else None
    op.v_init = frozen(early * theta / 2) if early else None


def closing_reach(theta: Tensor, T: int) -> Tensor:
    """`[T, 1]`: `1 - t / (2 T)` at step t, a dead zone that shrinks until neurons round; for layers that wait.

    Without waits the first spikes of a layer are late, and a wider dead zone would make them later.
    With a constant current, the n-th spike of either sign comes when `|c| t + theta t / (2 T)` reaches `n theta`:
    neurons round by a bias that points away from 0.
    """
    return 1 - torch.arange(1, T + 1).to(theta)[:, None] / (2 * T)


def run_phases(context: Context, network: SpikingNetwork, per_image: float) -> list[StageRecord]:
    """Run all phases of the pipeline, in order; `per_image` is the ANN's seconds, for the estimate."""
    records: list[StageRecord] = []
    aim = context.ann
    ends = (stage.end.op for stage in network.stages if stage.spiking)
    context.ranks.same([tensor for op in ends for tensor in op.tensors().values()])  # processors may round differently
    for index, phase in enumerate(context.phases()):
        if isinstance(phase, NetworkPhase):
            aim = on_whole_network(context, network, phase, index, per_image, aim)
        else:
            records += sweep(context, network, phase, index, per_image, aim)
    return records


def on_whole_network(
    context: Context, network: SpikingNetwork, phase: NetworkPhase, index: int, per_image: float, aim: Graph
) -> Graph:
    """Run one phase on the whole network; returns the aim of later sweeps, which is `aim` so far."""
    rounding = partial(set_threshold, T=network.T, pipeline=context.pipeline)
    used = context.images[: images_of(phase)]
    labels = None if context.labels is None else context.labels[: len(used)]
    whole = Whole(context.ann, aim, network, used, context.seed, rounding, context.ranks, labels)
    key = f"T{network.T}/phase{index}"
    seconds = per_image * image_passes(phase, len(whole.images), network.T)
    context.progress.phase(f"T={network.T} {phase.label}", phase.rounds, seconds)
    known = context.workdir.load(key) if context.workdir else None
    state, done = known if known else (phase.start(whole), 0)
    saved = time.monotonic()
    for number in range(done, phase.rounds):
        state = phase.advance(whole, state, number)
        last = number + 1 == phase.rounds
        due = last or time.monotonic() - saved > SAVE_SECONDS
        if context.workdir and context.ranks.decided(due):
            context.workdir.save(key, state, number + 1)
            saved = time.monotonic()
        context.progress.advance()
    return phase.finish(whole, state)


def images_of(phase: Phase) -> int:
    """How many images a phase looks at, if there are that many."""
    return phase.images if isinstance(phase, NetworkPhase) else max([c.images for c in phase], default=MEASURED)


def image_passes(phase: Phase, images: int, T: int) -> float:
    """The approximate cost of a phase in passes of the ANN over one image, estimated before it starts."""
    if isinstance(phase, NetworkPhase):
        return phase.passes(images, T)
    return images * (1 + 1.5 * T) + sum(c.passes(images, T) for c in phase)


def sweep(
    context: Context,
    network: SpikingNetwork,
    calibrators: tuple[Calibrator, ...],
    index: int,
    per_image: float,
    aim: Graph,
) -> list[StageRecord]:
    """Run one pass of calibrators over a network, towards `aim`; `per_image` is for the estimate."""
    T = network.T
    used = context.images[: images_of(calibrators)]
    marks = sorted({min(c.images, len(used)) for c in calibrators})
    shapes, size = context.shapes, context.images_per_call(T)
    working = working_bytes(shapes, size, T)
    grouped = batches(used, size, marks)
    folder = context.workdir.folder / f"T{T}" / f"sweep{index}" if context.workdir else None
    context.progress.phase(f"T={T}", len(network.stages), per_image * image_passes(calibrators, len(used), T))
    cache = Cache(max(0, context.memory - working), used[0][0].device, folder)
    try:
        return Sweep(
            ann=aim,
            network=network,
            calibrators=calibrators,
            index=index,
            batches=grouped,
            shapes=_shapes(aim, grouped),
            marks=marks,
            cache=cache,
            workdir=context.workdir,
            seed=context.seed,
            grouping=context.micro_batch is None,
            progress=context.progress,
            ranks=context.ranks,
        ).run()
    finally:
        cache.close()


def working_bytes(shapes: Shapes, images: int, T: int) -> int:
    """The bytes that one call on this many images needs, besides the cache."""
    steps = min(T, steps_per_call(shapes, images))
    return WORKING_VALUES * 4 * max(CALL_FLOATS, images * steps * largest_value(shapes))


def _shapes(graph: Graph, grouped: Sequence[Inputs]) -> list[Shapes]:
    """Shapes of all values for every batch; each image size is run once."""
    known: dict[tuple[torch.Size, ...], Shapes] = {}
    for batch in grouped:
        key = tuple(x.shape[1:] for x in batch)
        if key not in known:
            known[key] = shapes_of(graph, batch)
    return [known[tuple(x.shape[1:] for x in batch)] for batch in grouped]
