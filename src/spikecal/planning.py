"""Plan a conversion: estimate memory, disk and time before it starts, and refuse it if there is no room."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import torch

from spikecal.calibration.cache import level_bits
from spikecal.calibration.histogram import BINS
from spikecal.calibration.whole import NetworkPhase
from spikecal.clock import fastest
from spikecal.errors import ConfigError
from spikecal.graph.ops import Spike
from spikecal.graph.stages import Stage, last_uses, partition
from spikecal.memory import NO_LIMIT, free_memory, in_words
from spikecal.phases import Context, image_passes, images_of, working_bytes
from spikecal.pipeline import Auto, Plan
from spikecal.progress import duration, tell
from spikecal.snn.execute import Shapes, steps_per_call

WORTH_SAYING = 5.0  # seconds of a conversion: shorter ones need no plan


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The plan of a conversion's largest sweep: how it is split, and the bytes it needs."""

    T: int
    images: int
    at_once: int  # images per call
    steps: int  # per call
    own: int  # bytes of the images
    histograms: int
    working: int  # values of one call
    cached: int  # values between stages, at most
    budget: int  # for all of these
    folder: Path  # the rest goes to its disk
    all_on_disk: bool = False  # a working directory keeps everything
    seconds: float = field(default=0.0, compare=False)

    @property
    def held(self) -> int:
        """Bytes of values between stages that fit into memory."""
        return max(0, min(self.cached, self.budget - self.own - self.histograms - self.working))

    @property
    def memory(self) -> int:
        return self.own + self.histograms + self.working + self.held

    @property
    def disk(self) -> int:
        return self.cached if self.all_on_disk else self.cached - self.held

    def __str__(self) -> str:
        steps = "all steps" if self.steps >= self.T else f"{self.steps} steps"
        parts = {
            "images": self.own, "histograms": self.histograms, "one call": self.working, "between stages": self.held,
        }  # fmt: skip
        memory = ", ".join(f"{name} {in_words(count)}" for name, count in parts.items())
        disk = f"; {in_words(self.disk)} on disk, in {self.folder}" if self.disk else ""
        calls = f", {_images(self.images)}, {_images(self.at_once)} and {steps} per call" if self.images else ""
        return f"T={self.T}{calls}: about {duration(self.seconds)}; {in_words(self.memory)} of memory ({memory}){disk}"


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def needs(context: Context, T: int) -> Needs:
    """The plan of a pipeline's largest sweep at T steps. Each of several ranks has a share of the images."""

    def share(count: int) -> int:
        return -(-count // context.ranks.count)

    stages, shapes = partition(context.ann), context.shapes
    sweeps = [phase for phase in context.phases() if not isinstance(phase, NetworkPhase)]
    images = max((min(images_of(phase), len(context.images)) for phase in sweeps), default=0)
    learned = max((c.images for c in context.pipeline.calibrators if c.learns), default=0)
    size = context.images_per_call(T)
    channels = sum(shapes[stage.name][stage.end.op.channel] for stage in stages if isinstance(stage.end.op, Spike))
    folder = Path(tempfile.gettempdir()) if context.workdir is None else context.workdir.folder
    return Needs(
        T=T,
        images=images,
        at_once=size,
        steps=min(T, steps_per_call(shapes, size)),
        own=sum(x.nbytes for image in context.images for x in image),
        histograms=channels * (BINS + 1) * 8,
        working=working_bytes(shapes, size, T),
        cached=peak_bytes(stages, shapes, T, share(images), share(min(learned, images))),
        budget=context.memory,
        folder=folder,
        all_on_disk=context.workdir is not None,
    )


def peak_bytes(stages: Sequence[Stage], shapes: Shapes, T: int, images: int, learned: int = 0) -> int:
    """The most alive at once between stages: floats of the ANN, bits of spikes, one float per step at a joint.

    For the `learned` images, a stage with weights also has its mean inputs and targets.
    """
    live: dict[str, int] = {}
    peak = 0
    for stage, freed in zip(stages, last_uses(stages), strict=True):
        count = prod(shapes[stage.name][1:]) * images
        live[stage.name] = 4 * count + T * count * bits_per_step(stage) // 8
        samples = sum(prod(shapes[name][1:]) for name in (*stage.inputs, stage.name)) if stage.weighted() else 0
        peak = max(peak, sum(live.values()) + 4 * learned * samples)
        for name in freed:
            live.pop(name, None)
    return peak


def bits_per_step(stage: Stage) -> int:
    """Bits that the cache holds per step of a neuron or a joint."""
    return level_bits(stage.end.op.neuron.alphabet) if isinstance(stage.end.op, Spike) else 32


def passes(plan: Plan, T: int) -> float:
    """The work of a conversion in passes of the ANN over one image: thresholds, sweeps, iterations, trials."""
    if isinstance(plan, Auto):
        return plan.times * passes(plan.fixed, T)
    return plan.threshold.images + sum(image_passes(phase, images_of(phase), T) for phase in plan.phases(records=True))


def show_plan(context: Context, plan: Plan, steps: Sequence[int]) -> None:
    """Refuse a conversion without enough room; report one that takes long or goes to disk."""
    found = needs(context, max(steps))
    check_room(found, free_memory(context.images[0][0].device), free_disk(found.folder))

    def said() -> str | None:
        few = context.images[: context.images_per_call(1)]
        batch = [torch.cat(x) for x in zip(*few, strict=True)] if len({x.shape for x, *_ in few}) == 1 else few[0]
        per_image = fastest(lambda: context.ann.run(*batch)) / len(batch[0])
        seconds = per_image * sum(passes(plan, T) for T in steps) / context.ranks.count
        spilled = found.disk and not found.all_on_disk  # a working directory was asked for
        return f"plan: {replace(found, seconds=seconds)}" if seconds >= WORTH_SAYING or spilled else None

    tell(context.progress, said)


def check_room(found: Needs, memory: int, disk: int) -> None:
    """Raise if these free bytes are too few; the images are already in memory."""
    least = found.histograms + found.working
    if least > memory:
        raise ConfigError(
            f"this conversion needs {in_words(least)} of memory ({in_words(found.working)} for one call of "
            f"{_images(found.at_once)} and {found.steps} steps, {in_words(found.histograms)} for histograms) besides "
            f"its images, but {in_words(memory)} is free: convert on a larger machine, or with smaller images"
        )
    if found.disk > disk:
        raise ConfigError(
            f"this conversion would put {in_words(found.disk)} of values between stages into {found.folder}, but "
            f"{in_words(disk)} is free there: give it more memory, a working directory on a larger disk, fewer than "
            f"{found.images:,} images or fewer steps than {found.T}"
        )


def free_disk(folder: Path) -> int:
    """Bytes that a conversion may use in a folder: free ones, and those of a killed conversion to resume."""
    try:
        kept = sum(file.stat().st_size for file in folder.glob("T*/*/*") if file.suffix in (".ann", ".snn"))
        return shutil.disk_usage(folder).free + kept
    except OSError:
        return NO_LIMIT  # an unreadable folder raises when written to
