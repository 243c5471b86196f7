"""Run a network of a file on images, and write its spikes as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spikecal.devices import CPU, device_of
from spikecal.errors import ConfigError
from spikecal.export.export import make_netlist
from spikecal.export.spikes import SUFFIXES, spikes_of, without_own_potentials, write_spikes
from spikecal.files import check_output
from spikecal.tasks.exporting import images_for, load_network
from spikecal.tasks.outcome import Line, Outcome, size


@dataclass(frozen=True, kw_only=True)
class Running:
    """A network of a file, the images it runs on, and the file for its spikes."""

    file: Path
    output: Path
    steps: int | None
    data: str | None
    data_root: Path | None
    images: int
    seed: int
    neurons: Sequence[str] = ()  # classes of the file's own neurons
    device: str | None = None


def run_file(asked: Running) -> Outcome:
    """Write the input currents of the first layers and every spike."""
    check_output(asked.output, [asked.file])
    if asked.output.suffix not in SUFFIXES:
        raise ConfigError(f"{asked.output}: spikes are written as {' or '.join(SUFFIXES)}")
    home = device_of(asked.device) or CPU
    snn = load_network(asked.file, asked.steps, asked.neurons)
    images, _ = images_for(asked.file, snn, asked.data, asked.data_root, asked.images, asked.seed)
    netlist = make_netlist(without_own_potentials(snn), images).to(images.dtype)
    found = spikes_of(snn.to(home), netlist, images)
    write_spikes(asked.output, found)
    facts = {
        "file": str(asked.output), "T": found.T, "latency": found.latency, "images": len(images),
        "spikes": found.count, "layers": {name: list(shape) for name, shape in found.shapes.items()},
        "inputs": list(found.currents),
    }  # fmt: skip
    said = f"{found.count:,} spikes; layers: {len(found.shapes)}, images: {len(images):,}, steps: {found.latency}"
    return Outcome(facts, [Line(f"{asked.output} {size(asked.output.stat().st_size)}: {said}")])
