"""The sources of a report: the networks of one conversion, and how they were made."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikecal.analysis.evaluate import original, same_weights
from spikecal.analysis.measures import ACCURACY, MEASURES, from_stored
from spikecal.analysis.timing import Timing, timing
from spikecal.calibration.histogram import BINS, PARTS, Histogram
from spikecal.calibration.sweep import StageRecord
from spikecal.data.card import Card
from spikecal.devices import CPU, device_of
from spikecal.errors import ConfigError, FileError
from spikecal.graph.graph import Graph, describe
from spikecal.pipeline import Pipeline, title_of
from spikecal.result import Result
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.origin import Timings
from spikecal.snn.reading import Reader

WHOLE = (torch.int64, torch.int32, torch.int16)
WHOLE_PARTS = ("counts", "exponent", "clipped")  # of a histogram


@dataclass(frozen=True)
class Source:
    """Networks of one conversion, one per T. `headless`: the file has only the spiking body, not the analog head."""

    name: str
    networks: Mapping[int, SpikingNetwork]
    records: list[StageRecord]
    histograms: Mapping[str, Histogram]  # with all channels of a layer merged
    timings: Timings
    pipeline: Pipeline | None = None
    card: Card | None = None
    calibration_images: int | None = None
    measured: Mapping[str, Any] | None = None  # measurements at conversion
    headless: bool = False
    distilled: bool = False  # calibrated on images made from the network
    detector: bool = False  # the body of a detector, without its analog pyramid and heads

    @property
    def first(self) -> SpikingNetwork:
        """The network for the fewest steps; the graph is the same in all of them."""
        return self.networks[min(self.networks)]

    @property
    def model(self) -> str:
        return self.card.name if self.card is not None else self.name

    @property
    def method(self) -> str:
        """The pipeline's name, or what it calibrates."""
        return "" if self.pipeline is None else title_of(self.pipeline)

    @property
    def optimised(self) -> bool | None:
        """Whether weights were calibrated, which is a kind of training; None if unknown."""
        if self.pipeline is None:
            return None
        return self.pipeline.learns

    @property
    def kept(self) -> bool:
        """Whether the end of the model stayed analog."""
        return self.headless or self.first.head is not None

    @property
    def ann(self) -> Graph | None:
        """The original, if the networks still contain it."""
        return original(self.first, None if self.pipeline is None else self.pipeline.to_dict())

    def timing(self, T: int) -> Timing:
        """When a network answers, and how its waits were found."""
        return timing(self.networks[T])

    def conversion_seconds(self, T: int) -> float | None:
        """The time of a conversion for this T alone, if known."""
        return self.timings.alone().get(T)


def originals_of(sources: Sequence[Source]) -> list[int]:
    """A number for the source model of each source, starting with 0 for the first.

    Source models are the same if name, operations and, if both still have them, weights agree.
    """
    groups: list[list[Source]] = []
    found = []
    for source in sources:
        i = next((i for i, group in enumerate(groups) if all(_alike(source, other) for other in group)), len(groups))
        if i == len(groups):
            groups.append([])
        groups[i].append(source)
        found.append(i)
    return found


def _alike(one: Source, two: Source) -> bool:
    if one.card is not None and two.card is not None and one.card.name != two.card.name:
        return False
    if describe(one.first.graph) != describe(two.first.graph):  # one with a kept head is part of the other
        return one.kept != two.kept and one.card is not None and two.card is not None
    changed = any(source.optimised in (True, None) for source in (one, two))
    return changed or same_weights(one.first.graph, two.first.graph)


def from_result(name: str, result: Result) -> Source:
    """From the result of a conversion that has just ended."""
    return Source(
        name=name,
        networks=result.networks,
        records=result.records,
        histograms={layer: histogram.layer() for layer, histogram in result.histograms.items()},
        timings=result.timings,
        pipeline=result.pipeline,
        card=None if result.origin.card is None else Card.from_dict(result.origin.card),
        calibration_images=result.origin.images,
        measured=None if result.origin.measured is None else measured_of(result.origin.measured),
        distilled=result.origin.calibration == "distilled",
        detector=result.origin.detector is not None,
    )


def from_file(
    path: Path, steps: Collection[int] = (), neurons: Sequence[str] = (), device: str | None = None
) -> Source:
    """From a file, with all of its T or those in `steps`. A body is used without its head."""
    reader = Reader(path, neurons)
    there = reader.steps()
    for T in steps:
        if T not in there:
            raise FileError(f"{path} has no network for T={T}: choose from T={', '.join(map(str, there))}")
    home = device_of(device) or CPU
    networks = {T: reader.network(T, None).to(home) for T in sorted(steps or there)}
    origin = reader.origin()
    plans = list(origin.pipelines.values())
    try:
        for network in networks.values():
            timing(network)  # raises if its record of the search is invalid
        return Source(
            name=path.name,
            networks=networks,
            records=[_record(entry) for entry in origin.records],
            histograms=_histograms(reader.tensors),
            timings=Timings.beside(path),
            pipeline=Pipeline.from_dict(plans[-1]) if plans else None,
            card=None if origin.card is None else Card.from_dict(origin.card),
            calibration_images=_optional(_count, origin.images),
            measured=None if origin.measured is None else measured_of(origin.measured),
            headless=reader.spec["head"],
            distilled=origin.calibration == "distilled",
            detector=origin.detector is not None,
        )
    except (ConfigError, ValueError, OverflowError, TypeError, KeyError, AttributeError) as error:
        raise FileError(f"{path}: its record of how it was made is invalid: {error or type(error).__name__}") from error


def _optional(kind: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else kind(value)


def _record(entry: Mapping[str, Any]) -> StageRecord:
    """A record as written by `settings_of`, with every value checked for its type."""
    return StageRecord(
        T=int(entry["T"]),
        sweep=int(entry["sweep"]),
        stage=str(entry["stage"]),
        kind=str(entry["kind"]),
        threshold=_optional(float, entry["threshold"]),
        errors=[(str(label), float(error)) for label, error in entry["errors"]],
        rate=_share(entry["rate"]),
        saturated=_share(entry["saturated"]),
        dead=_share(entry["dead"]),
        seconds=math.nan,  # differs from run to run, and is not in files
        notes=[str(note) for note in entry["notes"]],
    )


def measured_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements as written by `Summary.measured` or `measured_precision`, likewise."""
    measure = entry.get("measure", ACCURACY.key)
    if measure not in MEASURES:
        raise ValueError(f"{str(measure)[:20]!r} is not a known measure")
    return {
        "measure": measure,
        "data": str(entry["data"]),
        "split": str(entry["split"]),
        "images": _count(entry["images"]),
        "ann": _share(entry["ann"]),
        "ann50": _share(entry.get("ann50")),
        "networks": {
            int(T): {
                "score": _share(of["score"]),
                "agreement": _share(of["agreement"]),
                "energy_ratio": _amount("ratio of energies", of["energy_ratio"]),
                "delayed": _amount("ratio of energies", of.get("delayed")),
                "spikes": _amount("number of spikes", of.get("spikes")),
                "map50": _share(of.get("map50")),
            }
            for T, of in ((T, from_stored(facts)) for T, facts in entry["networks"].items())
        },
    }


def _count(value: Any) -> int:
    if int(value) < 1:
        raise ValueError(f"a number of images is {value}")
    return int(value)


def _share(value: Any) -> float | None:
    if value is not None and not 0 <= float(value) <= 1:
        raise ValueError(f"a share is {value}, which is not in 0..1")
    return _optional(float, value)


def _amount(what: str, value: Any) -> float | None:
    if value is not None and not 0 <= float(value) < math.inf:
        raise ValueError(f"a {what} is {value}")
    return _optional(float, value)


def _histograms(tensors: Mapping[str, Tensor]) -> dict[str, Histogram]:
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        prefix, _, rest = key.partition(":")
        layer, _, part = rest.rpartition(":")
        if prefix == "extra" and part in PARTS:
            found.setdefault(layer, {})[part] = tensor
    return {layer: Histogram(**parts) for layer, parts in found.items() if _is_histogram(parts)}


def _is_histogram(parts: Mapping[str, Tensor]) -> bool:
    """Whether these histograms can be drawn: a file may hold anything under their names."""
    shapes = {"counts": (1, BINS + 1), "exponent": (1,), "maximum": (1,), "clipped": (1,)}
    if any(name not in parts or tuple(parts[name].shape) != shape for name, shape in shapes.items()):
        return False
    if not parts["maximum"].is_floating_point() or any(parts[name].dtype not in WHOLE for name in WHOLE_PARTS):
        return False
    counts, exponent, maximum = parts["counts"], int(parts["exponent"]), float(parts["maximum"])
    return bool((counts >= 0).all()) and abs(exponent) < 200 and 0 <= maximum < math.inf
