"""The result of a conversion: networks for every T, and a record of how they were made."""

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from spikecal.calibration.histogram import PARTS, Histogram
from spikecal.calibration.sweep import StageRecord, settings_of
from spikecal.devices import whatever_the_default
from spikecal.errors import ConfigError
from spikecal.files import is_special, write_whole
from spikecal.overview import overview
from spikecal.pipeline import Pipeline, title_of
from spikecal.progress import Watching
from spikecal.ranks import writes
from spikecal.settings import whole
from spikecal.snn.file import write
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.origin import Origin, Timings
from spikecal.tables import Table


@dataclass(repr=False)
class Result:
    """Networks for every requested T, and a record of how they were made.

    Attributes:
        networks: The network for each T.
        records: One entry per T, sweep and stage: thresholds, errors before and after, firing rates, seconds.
        pipelines: The pipeline used for each T.
        histograms: The ANN's activations on the calibration images, by layer.
        timings: Seconds by phase.
        origin: How the networks were made, as a file stores it. Measurements of the networks are added to it.
    """

    networks: dict[int, SpikingNetwork]
    records: list[StageRecord]
    pipelines: dict[int, Pipeline]
    histograms: dict[str, Histogram]
    timings: Timings = field(default_factory=Timings)
    origin: Origin = field(default_factory=Origin)

    @property
    def snn(self) -> SpikingNetwork:
        """The network for the largest T."""
        return self.networks[max(self.networks)]

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the largest T; AUTO may choose a different one for each T."""
        return self.pipelines[max(self.pipelines)]

    def at(self, T: int) -> SpikingNetwork:
        """The network for this T."""
        if whole(T) not in self.networks:
            raise ConfigError(f"there is no network for T={T}: choose from T={sorted(self.networks)}")
        return self.networks[T]

    def __repr__(self) -> str:
        layers = sum(stage.spiking for stage in self.snn.stages)
        steps = ", ".join(f"T={T} {title_of(self.pipelines[T])}" for T in sorted(self.networks))
        return f"<spikecal.Result: {steps}; {layers} layer{'' if layers == 1 else 's'} of neurons>"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        return self.summary()._repr_html_()

    @whatever_the_default
    def summary(self, data: Any = None, ann: nn.Module | None = None, *, progress: Watching = None) -> Table:
        """One line per T: latency, pipeline, remaining error, firing rate, seconds.

        With `data`, as `evaluate` takes it, the networks are also run, which adds accuracy, spikes and energy.
        """
        if data is not None:
            table: Table = _above("tasks.results").measured(self, data, ann, progress)
            return table
        return overview(self.networks, self.pipelines, self.records, self.timings, self.origin)

    @whatever_the_default
    def report(
        self, path: str | Path, data: Any = None, ann: nn.Module | None = None, *, progress: Watching = None
    ) -> None:
        """Write one HTML page, as `spikecal report` does.

        With `data`, normalised images or (images, labels), the networks are run on it; without it, the page shows what
        the conversion recorded. `ann` is the source model; it is needed if calibration changed the weights.
        """
        _above("tasks.results").write_page(self, Path(path), data, ann, progress)

    def describe(self, **facts: Any) -> None:
        """Add facts to the origin: a card, measurements."""
        self.origin = self.origin.changed(**facts)

    @whatever_the_default
    def save(self, path: str | Path) -> None:
        """Write all networks to one file, and the timings to `path + ".json"`. Of several ranks, only one writes."""
        if not writes():
            return
        layers = {name: histogram.layer() for name, histogram in self.histograms.items()}
        extra = {f"{name}:{part}": getattr(h, part) for name, h in layers.items() for part in PARTS}
        plans = {T: pipeline.to_dict() for T, pipeline in self.pipelines.items()}
        records = tuple(settings_of(record) for record in self.records)
        origin = self.origin.changed(pipelines=plans, records=records)
        write(path, self.networks, origin, extra)
        stages = [[r.T, r.sweep, r.stage, r.seconds] for r in self.records]
        if not is_special(Path(path)):
            timings = {"seconds": self.timings.to_dict(), "stages": stages}
            write_whole(Path(f"{path}.json"), json.dumps(timings, indent=1))


def _above(module: str) -> Any:
    """A module that builds on results, imported late by methods of a result."""
    return import_module(f"spikecal.{module}")
