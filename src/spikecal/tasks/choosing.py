"""Show what AUTO tried and kept."""

from collections.abc import Mapping
from typing import Any

from spikecal.errors import FileError
from spikecal.tasks.outcome import Line, Table


def choice_lines(choices: Mapping[int, Mapping[str, Any]]) -> list[Line]:
    """One line per network whose pipeline was chosen: which, and why."""
    return [Line(f"T = {T}: {found['why']}") for T, found in choices.items()]


def choice_tables(choices: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """A table of what was tried, for each network of a file."""
    try:
        return [_tried(T, found) for T, found in choices.items()]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(f"the file's record of how its pipeline was chosen is invalid: {error}") from error


def _tried(T: str, found: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["name"],
            str(one["T"]),
            str(one["latency"]),
            "–" if one["divergence"] is None else f"{one['divergence']:.3g}",
            f"{one['gain']:.3g} ± {one['error']:.2g}" if i else "",
            f"{one['cost']:.1f}",
        )
        for i, one in enumerate(found["tried"])
    ]
    columns = ("pipeline", ">T", ">latency", ">divergence", ">gain over LCP", ">cost, × LCP")
    caption = f"{found['why']} (effort: {found['effort']})"
    return Table(f"Pipelines tried for T = {T}", columns, rows, caption)
