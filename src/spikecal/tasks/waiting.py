"""Show when networks answer: columns of tables, which layers wait, and what was tried to place waits."""

from collections.abc import Mapping, Sequence
from typing import Any

from spikecal.analysis.timing import Timing
from spikecal.tasks.outcome import Line, Table, table_of

TIMES = ("latency", "interval")
TIMES_CAPTION = "latency: steps to the answer; interval: steps between images"


def time_cells(found: Timing) -> dict[str, str]:
    """The columns `TIMES` of a network."""
    return {"latency": str(found.latency), "interval": str(found.interval)}


def waiting_lines(found: Sequence[Timing]) -> list[Line]:
    """One line per network whose waits were searched for: how it waits, and why."""
    return [Line(f"T = {one.T}: {one.words()}; {one.search.why()}") for one in found if one.search is not None]


def time_tables(found: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None) -> list[Table]:
    """The tables about time from `inspect`: one line per network, then where its layers wait, and what was tried.

    Spikes and energy are beside them, if the file holds measurements.
    """
    kept = {} if measured is None else measured["networks"]
    rows = [
        {
            "T": str(one["T"]),
            "latency": str(one["latency"]),
            "interval": str(one["interval"]),
            **_costs(kept.get(one["T"], {})),
            "waits": str(one["total_waits"]),
            "layers that wait": str(len(one["waits"])),
        }
        for one in found
    ]
    order = ("T", *TIMES, "spikes", "energy %", "delay lines %", "waits", "layers that wait")
    caption = f"{TIMES_CAPTION}; waits: steps summed over layers"
    if measured is not None:
        on = f"{measured['images']:,} {measured['split']} images of {measured['data']}"
        caption += f"; spikes per image, and energy relative to the ANN's: on {on}"
    tables = [table_of("Time and cost" if measured is not None else "Time", order, rows, caption)]
    for one in found:
        tables += [_layers(one)] if one["waits"] else []
        tables += [] if one["search"] is None else [_tried(one["T"], one["search"])]
    return tables


def _costs(kept: Mapping[str, Any]) -> dict[str, str]:
    """Costs that a file holds; those not counted are left out."""
    cells = {}
    if kept.get("spikes") is not None:
        cells["spikes"] = f"{kept['spikes']:,.0f}"
    for column, name in (("energy %", "energy_ratio"), ("delay lines %", "delayed")):
        if kept.get(name):
            cells[column] = f"{100 * kept[name]:.1f}"
    return cells


def _layers(found: Mapping[str, Any]) -> Table:
    """Layers grouped by how long they wait."""
    waits: Mapping[str, int] = found["waits"]
    by_wait: dict[int, list[str]] = {}
    for name, wait in waits.items():
        by_wait.setdefault(wait, []).append(name)
    rows = [(str(wait), ", ".join(by_wait[wait])) for wait in sorted(by_wait)]
    return Table(f"Layers that wait at T = {found['T']}", (">steps", "layers"), rows)


def _tried(T: int, search: Mapping[str, Any]) -> Table:
    rows = [
        (
            trial["name"],
            str(trial["T"]),
            str(trial["latency"]),
            str(sum(trial["waits"].values())),
            _number(trial["divergence"]),
            f"{_number(trial['gain'])} ± {_number(trial['error'])}" if trial["waits"] else "",
            trial["verdict"],
        )
        for trial in search["tried"]
    ]
    columns = ("placement", ">T", ">latency", ">waits", ">divergence", ">gain", "")
    said = "; ".join((search["why"], *search["warnings"]))
    caption = f"{said}; divergence from the ANN on {search['images']} held-out images, gain ± standard error"
    return Table(f"Placements tried for T = {T}", columns, rows, caption)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
