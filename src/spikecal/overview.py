"""What is known about the networks of a conversion without running them, as a table."""

from collections.abc import Mapping, Sequence

from spikecal.calibration.sweep import StageRecord
from spikecal.pipeline import Pipeline, title_of
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.origin import Origin, Timings
from spikecal.tables import Table

COLUMNS = (">T", ">latency", "pipeline", ">error of the output", ">fires %", ">accuracy %", ">energy %", ">s")


def overview(
    networks: Mapping[int, SpikingNetwork],
    pipelines: Mapping[int, Pipeline],
    records: Sequence[StageRecord],
    timings: Timings,
    origin: Origin,
) -> Table:
    """One line per T. Measurements appear if the origin holds them; unknown columns are left out."""
    measured = (origin.measured or {}).get("networks", {})
    rows = [
        _row(networks[T], pipelines[T], [r for r in records if r.T == T], measured.get(str(T), {}), timings)
        for T in sorted(networks)
    ]
    kept = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    first = networks[max(networks)]
    layers, stages = sum(stage.spiking for stage in first.stages), len(first.stages)
    images = "" if origin.images is None else f"; calibrated on up to {origin.images:,} images"
    return Table(
        "spiking network",
        [COLUMNS[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        f"{layers} layer{'' if layers == 1 else 's'} of neurons, {stages} stages{images}; "
        f"error: relative, of the last stage; s: seconds to convert",
    )


def _row(
    network: SpikingNetwork,
    pipeline: Pipeline,
    records: Sequence[StageRecord],
    measured: Mapping[str, float | None],
    timings: Timings,
) -> list[str]:
    last = [record for record in records if record.stage == network.stages[-1].name]
    rates = [record.rate for record in records if record.rate is not None]
    accuracy, energy = measured.get("accuracy"), measured.get("energy_ratio")
    seconds = timings.steps.get(network.T)
    return [
        str(network.T),
        str(network.latency),
        title_of(pipeline),
        f"{last[-1].errors[-1][1]:.4f}" if last else "",
        f"{100 * sum(rates) / len(rates):.1f}" if rates else "",
        "" if accuracy is None else f"{100 * accuracy:.2f}",
        "" if energy is None else f"{100 * energy:.1f}",
        "" if seconds is None else f"{seconds:.1f}",
    ]
