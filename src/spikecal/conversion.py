"""The whole story: a trained network and some images in, a calibrated spiking network out."""

import inspect
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikecal import __version__
from spikecal.calibration.cache import Cache
from spikecal.calibration.calibrators import Calibrator, Weights
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.images import Inputs, batches, collect
from spikecal.calibration.sweep import Progress, StageRecord, Sweep, observe, set_neurons, settings_of
from spikecal.calibration.workdir import Workdir, fingerprint
from spikecal.errors import ConfigError, ConversionError
from spikecal.files import is_special, write_whole
from spikecal.graph.graph import Graph, describe
from spikecal.graph.lower import lower
from spikecal.graph.ops import MaxPool, Spike
from spikecal.graph.stages import partition, with_joints
from spikecal.memory import free_memory
from spikecal.pipeline import LCP, Pipeline, resolve
from spikecal.snn.execute import CALL_FLOATS, Shapes, images_per_call, largest_value, shapes_of, steps_per_call
from spikecal.snn.file import write
from spikecal.snn.network import SpikingNetwork, weights_channels_last

logger = logging.getLogger(__name__)

WORKING_VALUES = 8  # values of one kernel call that are alive at once, besides what is cached
COUNTED = 0.875  # of the memory to use; the rest is what the allocator holds without anyone using it
MEASURED = 128  # images of a sweep that only measures
PARTS = ("counts", "exponent", "maximum", "clipped")


@dataclass
class Result:
    """Networks for every T asked for, and what was done to make them."""

    networks: dict[int, SpikingNetwork]
    records: list[StageRecord]
    pipeline: Pipeline
    histograms: dict[str, Histogram]
    seconds: dict[str, float] = field(default_factory=dict)
    keep: tuple[str, ...] = ()  # submodules that stayed analog
    card: dict[str, Any] | None = None  # what the network expects of images, for whoever reads the file
    measured: dict[str, Any] | None = None  # what was measured of it and of the ANN, likewise
    images: int | None = None  # how many there were to calibrate on; parts of the pipeline may use fewer
    more: dict[str, Any] = field(default_factory=dict)  # what else a file is to say

    @property
    def snn(self) -> SpikingNetwork:
        """The network for the largest T."""
        return self.networks[max(self.networks)]

    def at(self, T: int) -> SpikingNetwork:
        if T not in self.networks:
            raise ConfigError(f"there is no network for T={T}; there are T={sorted(self.networks)}")
        return self.networks[T]

    def save(self, path: str | Path) -> None:
        """Write one file with all networks, and beside it `path + ".json"` with the timings."""
        layers = {name: histogram.layer() for name, histogram in self.histograms.items()}
        extra = {f"{name}:{part}": getattr(h, part) for name, h in layers.items() for part in PARTS}
        write(path, self.networks, self.info(), extra)
        timings = {"seconds": self.seconds, "stages": [[r.T, r.sweep, r.stage, r.seconds] for r in self.records]}
        if not is_special(Path(path)):
            write_whole(Path(f"{path}.json"), json.dumps(timings, indent=1))

    def info(self) -> dict[str, Any]:
        """What a file says of its making; the same for the same conversion."""
        return {
            "pipeline": self.pipeline.to_dict(),
            "records": [settings_of(record) for record in self.records],
            "micro_batch": {str(T): n.info["micro_batch"] for T, n in self.networks.items() if "micro_batch" in n.info},
            **({"keep": list(self.keep)} if self.keep else {}),
            **({} if self.snn.readout == "current" else {"readout": self.snn.readout}),
            **({} if self.card is None else {"card": self.card}),
            **({} if self.measured is None else {"measured": self.measured}),
            **({} if self.images is None else {"images": self.images}),
            **self.more,
        }


def read_timings(path: str | Path) -> dict[str, float]:
    """Seconds by phase out of what `Result.save` wrote beside the file; nothing, if that is no longer there."""
    try:
        seconds = json.loads(Path(f"{path}.json").read_text())["seconds"]
        return {str(name): float(value) for name, value in seconds.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def seconds_alone(phases: Mapping[str, float]) -> dict[int, float]:
    """What a conversion for each T alone takes, with all that comes before it. `phases` as in `Result.seconds`."""
    before = sum(phases.get(name, 0.0) for name in ("distilling", "lower", "thresholds"))
    steps = {name[2:]: value for name, value in phases.items() if name.startswith("T=")}
    return {int(T): before + value for T, value in steps.items() if T.isascii() and T.isdigit() and len(T) < 9}


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None: ...


@torch.inference_mode(False)
def convert(
    model: nn.Module,
    images: Any,
    T: int | Sequence[int] = 32,
    pipeline: Pipeline | str = LCP,
    *,
    seed: int = 0,
    keep: Sequence[str] = (),
    workdir: str | Path | None = None,
    memory: int | None = None,
    micro_batch: int | None = None,
    records: bool = True,
    progress: Progress | None = None,
) -> Result:
    """Convert `model` for `T` steps (or several), calibrated on `images`; the model is left as it is.

    `images`: a tensor, a dataset or a loader, normalised as in training; labels are ignored. `keep`: submodules that
    stay analog at the end of the network. `workdir`: where a killed conversion goes on from. `memory`: bytes to use
    before going to disk, by default half of what is free. `micro_batch`: images a kernel call. `records`: whether a
    pipeline without calibrators simulates some images nevertheless, to record the errors of its stages.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ConversionError(
            type(model).__name__, "not a torch.nn.Module with Python code", "convert the module it was made from"
        )
    keep = _checked_keep(keep)
    _check_number("seed", seed, 0, 2**63)
    _check_number("memory", memory, 0)
    _check_number("micro_batch", micro_batch, 1)
    pipeline, steps, progress = resolve(pipeline), _steps(T), progress or Silent()
    device, dtype = _home(model)
    chosen = [
        tuple(x.to(device, dtype) for x in image)
        for image in collect(images, pipeline.images, _number_of_inputs(model), seed, _image_dims(model))
    ]
    started = time.perf_counter()
    graph = with_joints(lower(model, _example(chosen), keep))
    if not partition(graph):
        raise ConversionError(type(model).__name__, "a network that computes nothing", "convert one that does")
    if not any(isinstance(node.op, Spike) for node in graph.nodes.values()):
        logger.warning("the network has no ReLU: nothing in it will spike")
    _check_pools(graph, pipeline)
    weights_channels_last(graph)
    seconds = {"lower": time.perf_counter() - started}
    budget = free_memory() // 2 if memory is None else memory
    settings = Settings(pipeline, seed, micro_batch, int(COUNTED * budget), records, progress)
    if workdir is not None:
        versions = [__version__, torch.__version__]
        identity = [pipeline.to_dict(), steps, seed, list(keep), micro_batch, versions, describe(graph)]
        tensors = [t for node in graph.nodes.values() for t in node.op.tensors().values()]
        settings.workdir = Workdir(Path(workdir), fingerprint([*tensors, *(x for i in chosen for x in i)], identity))

    try:
        result = _calibrated(graph, chosen, steps, settings, seconds, dtype)
    finally:
        if settings.workdir is not None:
            settings.workdir.close()
    result.keep = tuple(keep)
    return result


@dataclass
class Settings:
    """What all phases of one conversion share."""

    pipeline: Pipeline
    seed: int
    micro_batch: int | None
    memory: int
    records: bool
    progress: Progress
    workdir: Workdir | None = None


def _calibrated(
    graph: Graph,
    chosen: list[Inputs],
    steps: list[int],
    settings: Settings,
    seconds: dict[str, float],
    dtype: torch.dtype,
) -> Result:
    """The network for every T of `steps`, calibrated on the `chosen` images."""
    pipeline = settings.pipeline
    histograms, seconds["thresholds"] = _histograms(graph, chosen[: pipeline.threshold.images], settings)
    per_image = seconds["thresholds"] / min(len(chosen), pipeline.threshold.images)
    settings.memory -= sum(x.nbytes for image in chosen for x in image)
    settings.memory -= sum(histogram.counts.nbytes for histogram in histograms.values())

    networks: dict[int, SpikingNetwork] = {}
    records: list[StageRecord] = []
    for t in steps:
        started = time.perf_counter()
        networks[t] = SpikingNetwork(graph.clone(), t)
        set_neurons(networks[t], histograms, pipeline, dtype, shapes_of(graph, chosen[0]))
        # Without calibrators a sweep is what the records are made of.
        for index, calibrators in enumerate(pipeline.sweeps or ((),) * settings.records):
            records += _sweep(graph, networks[t], calibrators, index, chosen, settings, per_image)
        seconds[f"T={t}"] = time.perf_counter() - started
    return Result(networks, records, pipeline, histograms, seconds, images=len(chosen))


def _histograms(graph: Graph, images: list[Inputs], settings: Settings) -> tuple[dict[str, Histogram], float]:
    """Histograms of all activations, and the seconds it took (once) to make them."""
    done = settings.workdir.load("histograms") if settings.workdir else None
    if done is not None:
        device = images[0][0].device
        names, took = done[1]
        return {name: Histogram(*(done[0][f"{name}:{part}"].to(device) for part in PARTS)) for name in names}, took
    started = time.perf_counter()
    grouped = batches(images, images_per_call(shapes_of(graph, images[0]), 1), ())
    settings.progress.phase("thresholds", len(grouped), None)
    found = observe(graph, grouped, _shapes(graph, grouped), settings.progress)
    took = time.perf_counter() - started
    if settings.workdir:
        tensors = {f"{name}:{part}": getattr(h, part) for name, h in found.items() for part in PARTS}
        settings.workdir.save("histograms", tensors, [list(found), took])
    return found, took


def image_passes(calibrators: Sequence[Calibrator], images: int, T: int) -> float:
    """About how many passes of the ANN over one image a sweep costs: the estimate before it starts."""
    solving = sum(3 * c.iterations * c.batch for c in calibrators if isinstance(c, Weights))
    return images * (1 + 1.5 * T) + solving


def _sweep(
    graph: Graph,
    network: SpikingNetwork,
    calibrators: Sequence[Calibrator],
    index: int,
    images: list[Inputs],
    settings: Settings,
    per_image: float,
) -> list[StageRecord]:
    used = images[: max([c.images for c in calibrators], default=MEASURED)]
    marks = sorted({min(c.images, len(used)) for c in calibrators})
    shapes = shapes_of(graph, used[0])
    size = settings.micro_batch or images_per_call(shapes, network.T)
    steps = min(network.T, steps_per_call(shapes, size))
    working = WORKING_VALUES * 4 * max(CALL_FLOATS, size * steps * largest_value(shapes))
    network.info["micro_batch"] = size
    grouped = batches(used, size, marks)
    folder = settings.workdir.folder / f"T{network.T}" / f"sweep{index}" if settings.workdir else None
    estimate = per_image * image_passes(calibrators, len(used), network.T)
    settings.progress.phase(f"T={network.T}", len(network.stages), estimate)
    cache = Cache(max(0, settings.memory - working), used[0][0].device, folder)
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
            workdir=settings.workdir,
            seed=settings.seed,
            grouping=settings.micro_batch is None,
            progress=settings.progress,
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


def _steps(T: int | Sequence[int]) -> list[int]:
    steps: list[Any] = list(T) if isinstance(T, Sequence) else [T]
    if not steps:
        raise ConfigError("T is an empty list: name at least one number of steps")
    for t in steps:
        if not isinstance(t, int) or isinstance(t, bool) or t < 1:
            raise ConfigError(f"T must be a positive number of steps, not {t!r}")
    return sorted(set(steps))


def _check_number(name: str, value: Any, least: int, below: int | None = None) -> None:
    """Raise for what is no whole number of at least `least`; None is left to the default."""
    if value is None and name != "seed":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (below is not None and value >= below):
        raise ConfigError(f"{name} is a whole number from {least} on, not {value!r}")


def _check_pools(graph: Graph, pipeline: Pipeline) -> None:
    """Raise where spikes that can be negative are max-pooled: running sums may fall, and pools take nothing back."""
    signed = pipeline.neuron.alphabet[0] < 0
    for node in graph.nodes.values():
        if signed and isinstance(node.op, MaxPool) and node.op.of == "spikes":
            found = f"a max-pool of {pipeline.neuron.name} neurons, whose spikes can be negative"
            raise ConversionError(node.name, found, "use average pools, or neurons without negative spikes")


def _checked_keep(keep: Any) -> Sequence[str]:
    names = [keep] if isinstance(keep, str) else keep
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"keep is a list of names of submodules, not {keep!r}")
    return names


def _home(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where and in what precision to work: the model's own, but never below float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type == "meta":
            raise ConversionError(name, "a tensor on the meta device, which has no data", "load the weights first")
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return torch.device("cpu"), torch.float32


def _number_of_inputs(model: nn.Module) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return max(1, sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters))


def _image_dims(model: nn.Module) -> int | None:
    """Dimensions of one image: a convolution for 2-D images takes channels and two more; None if there is none."""
    kinds = {nn.Conv1d: 2, nn.Conv2d: 3, nn.Conv3d: 4}
    found = (dims for module in model.modules() for kind, dims in kinds.items() if isinstance(module, kind))
    return next(found, None)


def _example(images: list[Inputs]) -> Inputs:
    """Two images to trace with (one twice, if there is but one or the second has another size)."""
    first = images[0]
    second = images[1] if len(images) > 1 and [x.shape for x in images[1]] == [x.shape for x in first] else first
    return tuple(torch.cat(pair) for pair in zip(first, second, strict=True))
