"""When networks answer, for people: columns of tables, which layers wait, and what was tried to place waits."""

from collections.abc import Mapping, Sequence
from typing import Any

from spikecal.analysis.timing import Timing
from spikecal.tasks.outcome import Line, Table, asides

TIMES = ("latency", "interval")
TIMES_CAPTION = "latency: steps to the answer; interval: one image every so many steps"


def time_cells(found: Timing) -> dict[str, str]:
    """What the columns `TIMES` say of a network."""
    return {"latency": str(found.latency), "interval": str(found.interval)}


def waiting_lines(found: Sequence[Timing]) -> list[Line]:
    """A line for each network whose waits were searched for: how it waits, and why so; then what to be wary of."""
    lines = []
    for one in found:
        if one.search is not None:
            lines.append(Line(f"T = {one.T}: {one.words()}; {one.search.why()}"))
            lines += asides([f"warning: T = {one.T}: {warning}" for warning in one.search.warnings()])
    return lines


def time_tables(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    """What `inspect` tells of time: a line a network, then where its layers wait, and what was tried."""
    rows = [
        (str(one["T"]), str(one["latency"]), str(one["interval"]), str(one["total_waits"]), str(len(one["waits"])))
        for one in found
    ]
    columns = (">T", *(f">{name}" for name in TIMES), ">waits", ">layers that wait")
    tables = [Table("Time", columns, rows, f"{TIMES_CAPTION}; waits: steps of all layers")]
    for one in found:
        tables += [_layers(one)] if one["waits"] else []
        tables += [] if one["search"] is None else [_tried(one["T"], one["search"])]
    return tables


def _layers(found: Mapping[str, Any]) -> Table:
    """Layers by how long they wait."""
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
