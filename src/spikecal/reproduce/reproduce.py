"""Make a table of the paper, from the request to its files; or list the tables."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikecal.errors import ConfigError, SpikecalError
from spikecal.files import check_folder, write_whole
from spikecal.pipeline import Effort
from spikecal.progress import Progress, has_bars
from spikecal.ranks import current
from spikecal.reproduce.picture import draw
from spikecal.reproduce.render import heading, markdown, measured, sections
from spikecal.reproduce.run import choose_models, make_plan, pending, run
from spikecal.reproduce.sources import Wanted
from spikecal.reproduce.summary import summarise
from spikecal.reproduce.tables import OURS, TABLES, find, with_rows
from spikecal.tasks.outcome import Line, Outcome, Table, Text, duration
from spikecal.tasks.task import Say


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A table to measure, the folder for it, and how much to run."""

    table: str
    models: Sequence[str]
    weights: dict[str, Path]
    data: str | None
    data_root: Path | None
    steps: Sequence[int]
    full: bool  # as in the paper
    sizes: Mapping[str, int | None]  # values of `Sizes` other than the defaults
    waits: int | None  # of the frontier, as is the effort
    effort: Effort | None
    rivals: bool  # whether methods of others are measured too
    wanted: Wanted
    for_sources: Sequence[str]  # the given flags about sources
    rows: Sequence[str]  # by default all of the table
    strict: bool
    output: Path
    memory: int | None
    command: str  # for the page
    device: str | None = None


def reproduce_table(asked: Reproduction, progress: Progress | None, say: Say) -> Outcome:
    """Measure the missing cells, and write the table as JSON and as Markdown."""
    table = find(asked.table, asked.waits, asked.effort, asked.rivals)
    table = with_rows(table, asked.rows) if asked.rows else table
    if asked.for_sources and not table.sources:
        raise ConfigError(f"{asked.for_sources[0]} is for the table fakedata, not for {table.name}")
    plan = make_plan(
        table,
        table.sized(asked.full, asked.sizes),
        models=asked.models,
        weights=asked.weights,
        data=asked.data,
        root=asked.data_root,
        T=asked.steps or table.steps(asked.full),
        wanted=asked.wanted,
        strict=asked.strict,
        device=asked.device,
    )
    check_folder(asked.output)
    left = pending(plan, asked.output)
    if left:
        estimate = duration(plan.seconds(left) + plan.preparing(left))
        say(f"{len(left)} of {len(plan.cells)} cells to measure, about {estimate}")

    def tell(cell: str, seconds: float, left: float) -> None:
        say(f"{cell} ({duration(seconds)}), about {duration(left)} left")

    found = run(plan, asked.output, progress, None if has_bars(progress) else tell, asked.memory)
    summary = {**summarise(plan, found), "command": asked.command}
    files: tuple[Path, ...] = asked.output / f"{table.name}.json", asked.output / f"{table.name}.md"
    contents: list[bytes | str] = [json.dumps(summary, indent=1, ensure_ascii=False) + "\n", markdown(summary)]
    if table.kind == "frontier":
        files = *files, asked.output / f"{table.name}.png"
        picture = io.BytesIO()
        draw(summary).savefig(picture, format="png")
        contents.append(picture.getvalue())
    for file, content in zip(files, contents, strict=True) if current().first else ():
        write_whole(file, content)
    grids = [(heading(network), *measured(summary, network)) for network in summary["networks"]]
    tables = [Table(title, (first, *(f">{name}" for name in names)), rows) for title, (first, *names), rows in grids]
    texts = [Text(title, text) for title, text in sections(summary).items()]
    return Outcome(summary, [*tables, *texts, Line(f"{', '.join(map(str, files[:-1]))} and {files[-1]}")])


def list_tables(full: bool, sizes: Mapping[str, int | None], root: Path | None, steps: Sequence[int]) -> Outcome:
    """List the tables, and how long each would take here with its default networks."""
    facts: dict[str, dict[str, Any]] = {}
    loaded: dict[Any, Any] = {}
    for table in (*TABLES.values(), *OURS.values()):
        T = steps or table.steps(full)
        fact: dict[str, Any] = {"title": table.title, "T": list(T), "about": table.about, "seconds": None}
        try:
            fact["models"] = choose_models(table, [], {})
            if table.kind != "space":  # which only counts, in seconds
                plan = make_plan(table, table.sized(full, sizes), root=root, T=T, loaded=loaded)
                seconds = plan.seconds(plan.cells) + plan.preparing(plan.cells)
                fact |= {"cells": len(plan.cells), "seconds": seconds}
        except SpikecalError as error:
            fact |= {"models": [], "needs": str(error)}
        facts[table.name] = fact
    rows = [
        (
            name,
            fact["title"],
            ", ".join(map(str, fact["T"])),
            ", ".join(fact["models"]) or way_out(fact["needs"]),
            "" if fact["seconds"] is None else duration(fact["seconds"]),
        )
        for name, fact in facts.items()
    ]
    caption = "Estimates from one pass of the network on this machine; finished cells are not measured again."
    columns = ("name", "what it shows", "T", "networks", ">about")
    return Outcome({"tables": facts}, [Table("Tables of the paper, and our own", columns, rows, caption)])


def way_out(error: str) -> str:
    """The way out of an error message, without examples."""
    wrong, _, todo = error.partition(": ")
    return (todo or wrong).partition(", such as")[0]
