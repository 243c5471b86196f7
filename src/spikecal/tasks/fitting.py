"""Whether the network of a file fits a chip, layer by layer."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from spikecal.errors import SpikecalError
from spikecal.export.chips import Chip, Fit, chip_called, fits
from spikecal.export.export import make_netlist
from spikecal.tasks.exporting import exported_network
from spikecal.tasks.outcome import Line, Outcome, Table


def check_target(path: Path, target: str, steps: int | None = None) -> Outcome:
    """Show how a network fits a chip; if it does not, that is an error after the table."""
    chip = chip_called(target)
    found = fits(make_netlist(exported_network(path, steps)), chip)
    bad = sum(len(fit.problems) for fit in found)
    facts = {
        "file": str(path), "target": target, "fits": bad == 0, "layers": [asdict(fit) for fit in found],
        "limits": {name: {"value": getattr(chip, name), "source": source} for name, source in chip.sources},
    }  # fmt: skip
    failure = (
        SpikecalError(f"{path} does not fit {chip.title}: {bad} limit{'s' if bad > 1 else ''} exceeded")
        if bad
        else None
    )
    return Outcome(facts, [_table(path, chip, found), *_sources(chip)], failure)


def _table(path: Path, chip: Chip, found: Sequence[Fit]) -> Table:
    rows = [
        (
            fit.layer, f"{fit.neurons:,}", f"{fit.weights:,}", f"{fit.fan_in:,}", f"{fit.cores:,}",
            "; ".join(fit.problems) or "fits",
        )
        for fit in found
    ]  # fmt: skip
    columns = ("layer", ">neurons", ">weights", ">fan-in", ">cores", "")
    return Table(f"{path} on {chip.title}", columns, rows)


def _sources(chip: Chip) -> list[Line]:
    by_source: dict[str, list[str]] = {}
    for name, source in chip.sources:
        by_source.setdefault(source, []).append(f"{name} {getattr(chip, name)}")
    return [Line(f"{', '.join(figures)}: {source}") for source, figures in by_source.items()]
