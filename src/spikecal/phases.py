"""The phases of a conversion: one pass of the ANN for histograms, then neurons and sweeps for every T. All resume."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from spikecal.calibration.cache import Cache
from spikecal.calibration.calibrators import Calibrator, Weights
from spikecal.calibration.histogram import PARTS, Histogram
from spikecal.calibration.images import Inputs, batches
from spikecal.calibration.sweep import StageRecord, Sweep, observe
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Spike, frozen
from spikecal.graph.passes import set_pool_units
from spikecal.pipeline import Pipeline
from spikecal.progress import Progress
from spikecal.snn.execute import CALL_FLOATS, Shapes, images_per_call, largest_value, shapes_of, steps_per_call
from spikecal.snn.network import SpikingNetwork
from spikecal.workdir import Workdir

WORKING_VALUES = 8  # values of one kernel call that are alive at once, besides what is cached
MEASURED = 128  # images of a sweep that only measures


@dataclass(frozen=True, kw_only=True)
class Context:
    """What all phases of one conversion share. `memory` is bytes for values between stages."""

    ann: Graph
    images: Sequence[Inputs]
    pipeline: Pipeline
    seed: int
    micro_batch: int | None
    memory: int
    records: bool
    progress: Progress
    workdir: Workdir | None

    @cached_property
    def shapes(self) -> Shapes:
        """Of all values for the first image, which sizes are planned by."""
        return shapes_of(self.ann, self.images[0])

    def images_per_call(self, T: int) -> int:
        return self.micro_batch or images_per_call(self.shapes, T)

    def phases(self) -> Sequence[Sequence[Calibrator]]:
        """The sweeps; without any, one that only measures, if records are wanted."""
        return self.pipeline.sweeps or ((),) * self.records


def histograms(context: Context) -> tuple[dict[str, Histogram], float]:
    """Histograms of all activations, and the seconds it took (once) to make them."""
    images = context.images[: context.pipeline.threshold.images]
    done = context.workdir.load("histograms") if context.workdir else None
    if done is not None:
        device = images[0][0].device
        names, took = done[1]
        return {name: Histogram(*(done[0][f"{name}:{part}"].to(device) for part in PARTS)) for name in names}, took
    started = time.perf_counter()
    grouped = batches(images, images_per_call(context.shapes, 1), ())
    context.progress.phase("thresholds", len(grouped), None)
    found = observe(context.ann, grouped, _shapes(context.ann, grouped), context.progress)
    took = time.perf_counter() - started
    if context.workdir:
        tensors = {f"{name}:{part}": getattr(h, part) for name, h in found.items() for part in PARTS}
        context.workdir.save("histograms", tensors, [list(found), took])
    return found, took


def set_neurons(
    network: SpikingNetwork, histograms: dict[str, Histogram], pipeline: Pipeline, dtype: torch.dtype, shapes: Shapes
) -> None:
    """Give every layer its kind of neuron, its threshold and the half step of rounding."""
    largest = pipeline.neuron.alphabet[-1]
    for stage in network.stages:
        op = stage.end.op
        if not isinstance(op, Spike):
            continue
        op.neuron = pipeline.neuron
        # the search is for the largest value that a mean can have, in so many steps as it has levels
        reach = pipeline.threshold.solve(histograms[stage.name], network.T * largest, pipeline.quantiser).to(dtype)
        theta = (reach if op.clip is None else reach.clamp(max=op.clip)) / largest
        op.theta = frozen(theta)
        op.bias = frozen(theta / (2 * network.T)) if pipeline.rounding == "bias" else None
        op.v_init = frozen(theta / 2) if pipeline.rounding == "potential" else None
    if len(pipeline.neuron.alphabet) > 2:
        set_pool_units(network.graph, shapes)


def image_passes(calibrators: Sequence[Calibrator], images: int, T: int) -> float:
    """About how many passes of the ANN over one image a sweep costs: the estimate before it starts."""
    solving = sum(3 * c.iterations * c.batch for c in calibrators if isinstance(c, Weights))
    return images * (1 + 1.5 * T) + solving


def sweep(
    context: Context, network: SpikingNetwork, calibrators: Sequence[Calibrator], index: int, per_image: float
) -> list[StageRecord]:
    """One pass of calibrators over a network; `per_image` are the seconds of the ANN, for the estimate."""
    graph, T = context.ann, network.T
    used = context.images[: max([c.images for c in calibrators], default=MEASURED)]
    marks = sorted({min(c.images, len(used)) for c in calibrators})
    shapes, size = context.shapes, context.images_per_call(T)
    working = WORKING_VALUES * 4 * max(CALL_FLOATS, size * min(T, steps_per_call(shapes, size)) * largest_value(shapes))
    grouped = batches(used, size, marks)
    folder = context.workdir.folder / f"T{T}" / f"sweep{index}" if context.workdir else None
    context.progress.phase(f"T={T}", len(network.stages), per_image * image_passes(calibrators, len(used), T))
    cache = Cache(max(0, context.memory - working), used[0][0].device, folder)
    try:
        return Sweep(
            ann=graph,
            network=network,
            calibrators=calibrators,
            index=index,
            batches=grouped,
            shapes=_shapes(graph, grouped),
            marks=marks,
            cache=cache,
            workdir=context.workdir,
            seed=context.seed,
            grouping=context.micro_batch is None,
            progress=context.progress,
        ).run()
    finally:
        cache.close()


def _shapes(graph: Graph, grouped: Sequence[Inputs]) -> list[Shapes]:
    """Shapes of all values for every batch; each image size is run once."""
    known: dict[tuple[torch.Size, ...], Shapes] = {}
    for batch in grouped:
        key = tuple(x.shape[1:] for x in batch)
        if key not in known:
            known[key] = shapes_of(graph, batch)
    return [known[tuple(x.shape[1:] for x in batch)] for batch in grouped]
