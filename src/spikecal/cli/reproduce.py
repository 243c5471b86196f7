"""`spikecal reproduce`: the paper's tables, each by its name."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show_json, show_markdown, show_table
from spikecal.errors import ConfigError, SpikecalError
from spikecal.tasks.outcome import duration

if TYPE_CHECKING:
    from spikecal.reproduce.sizes import Sizes
    from spikecal.reproduce.sources import Wanted
    from spikecal.reproduce.tables import Table


NOT_SHOWN = ("output", "data_root", "memory", "json")  # of a command, on the page it makes
FILES = ("weights", "others")


def reproduce(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The table; without it, they are listed.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Network to measure; may be repeated. (default the table's, where trained)"),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FILE", help="Checkpoint of a network; FILE alone if there is but one network."),
    ] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    steps: Annotated[
        list[int] | None,
        typer.Option("-T", min=1, metavar="N", help="Time steps; may be repeated. (default the table's)"),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Test images, always the same. (default 1,000; fakedata 2,000)"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Calibration samples to average over. (default 3)")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of weights calibration, a layer. (default 500)")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images an iteration of weights calibration. (default 16)")
    ] = None,
    weights_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images of weights calibration. (default 256)")
    ] = None,
    weights_to: Annotated[
        int | None, typer.Option(min=1, metavar="T", help="Rows with weights calibration up to this T. (default all)")
    ] = None,
    long_from: Annotated[
        int | None,
        typer.Option(min=1, metavar="T", help="Where the long sizes begin. (default the columns T≥512 and T≥2048)"),
    ] = None,
    long_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images from there on. (default 100)")
    ] = None,
    long_calibration: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images of each calibrator from there on. (default 32)")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="MODEL[=FILE]", help="Of fakedata: a further network to distil from; may be repeated."
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Option(metavar="DATA", help="Of fakedata: the other real images. (default what is there)")
    ] = None,
    distilled: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of fakedata: images to distil. (default 1,024)")
    ] = None,
    distill_iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of fakedata: iterations of distilling. (default 40)")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="As the paper: all T, all test images, 5 seeds, 5,000 iterations.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="For the tables and their finished cells.")
    ] = Path("spikecal-tables"),
    memory: options.Memory = None,
    strict: options.Strict = False,
    json: options.Json = False,
) -> None:
    """Measure one of the paper's tables; killed, the same command goes on where it was."""
    given = {
        "images": images,
        "seeds": seeds,
        "iterations": iterations,
        "batch": batch,
        "weights": weights_images,
        "weights_to": weights_to,
        "long_from": long_from,
        "long_images": long_images,
        "long_calibration": long_calibration,
    }
    if name is None:
        if model or weights or data or _wanted_flags(others, other, distilled, distill_iterations):
            raise ConfigError("say which table: without its NAME they are listed, with the networks they have here")
        _list(full, given, data_root, steps or [], json)
        return
    import json as json_text

    from spikecal.files import write_whole
    from spikecal.memory import parse_bytes
    from spikecal.reproduce.render import heading, markdown, measured, sections
    from spikecal.reproduce.run import make_plan, pending, run
    from spikecal.reproduce.summary import summarise
    from spikecal.reproduce.tables import find

    table = find(name)
    budget = None if memory is None else parse_bytes(memory)
    wanted = _wanted(table, others, other, distilled, distill_iterations)
    plan = make_plan(
        table,
        _sizes(full, table, given),
        models=model or [],
        weights=_weights(weights or [], model or []),
        data=data,
        root=data_root,
        T=steps or (table.T if full else table.default_T),
        wanted=wanted,
        strict=strict,
    )
    left = pending(plan, output)
    if left and not json:
        estimate = duration(plan.seconds(left) + plan.preparing(left))
        typer.echo(f"{len(left)} of {len(plan.cells)} cells to measure, about {estimate}", err=True)
    with bars(json) as progress:
        report = None if json or progress is not None else _say
        summary = {**summarise(plan, run(plan, output, progress, report, budget)), "command": _command(context)}
    files = output / f"{name}.json", output / f"{name}.md"
    write_whole(files[0], json_text.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    write_whole(files[1], markdown(summary))
    if json:
        show_json(summary)
        return
    for network in summary["networks"]:
        columns, rows = measured(summary, network)
        show_table(heading(network), (columns[0], *(f">{column}" for column in columns[1:])), rows)
    for title, text in sections(summary).items():
        show_markdown(title, text)
    typer.echo(f"{files[0]} and {files[1]}")


def _say(cell: str, seconds: float, left: float) -> None:
    typer.echo(f"{cell} ({duration(seconds)}), about {duration(left)} left", err=True)


def _sizes(full: bool, table: "Table", given: dict[str, int | None]) -> "Sizes":
    """The paper's sizes or this machine's, with what the flags change."""
    from dataclasses import replace

    from spikecal.reproduce.sizes import PAPER, Sizes

    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(PAPER if full else table.sizes or Sizes(), **changes)


def _wanted(
    table: "Table", others: list[str] | None, other: str | None, images: int | None, iterations: int | None
) -> "Wanted | None":
    """What the flags of `fakedata` say; they are refused for tables in which they would mean nothing."""
    if not table.sources:
        if given := _wanted_flags(others, other, images, iterations):
            raise ConfigError(f"{given[0]} is for the table fakedata, not for {table.name}")
        return None
    from spikecal.cli.distill import name_and_file
    from spikecal.reproduce.sources import Wanted

    numbers = {name: value for name, value in (("images", images), ("iterations", iterations)) if value is not None}
    return Wanted(partners=tuple(map(name_and_file, others or [])), other=other, **numbers)


def _wanted_flags(others: list[str] | None, other: str | None, images: int | None, iterations: int | None) -> list[str]:
    """Those of the flags of `fakedata` that were given."""
    flags = {"--with": others, "--other": other, "--distilled": images, "--distill-iterations": iterations}
    return [flag for flag, value in flags.items() if value]


def _command(context: typer.Context) -> str:
    """What was typed, for the page: without where things are on this machine."""
    words = ["spikecal", "reproduce"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in NOT_SHOWN:
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append(value)
        elif value is True:
            words.append(parameter.opts[0])
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [parameter.opts[0], _without_folder(str(one)) if name in FILES else str(one)]
    return shlex.join(words)


def _without_folder(entry: str) -> str:
    """`MODEL=FILE`, or a file alone, by its name."""
    model, equals, file = entry.partition("=")
    return f"{model}={Path(file).name}" if equals else Path(entry).name


def _weights(given: list[str], models: list[str]) -> dict[str, Path]:
    """Network -> checkpoint, from MODEL=FILE or, for a single network, FILE."""
    files: dict[str, Path] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        if not equals:
            if len(models) != 1:
                raise ConfigError(f"say which network {entry} is for: --weights MODEL={entry}")
            name, path = models[0], entry
        files[name] = Path(path)
    return files


def _list(full: bool, given: dict[str, int | None], root: Path | None, steps: list[int], json: bool) -> None:
    """The tables, and how long each would take here with its default networks."""
    from spikecal.reproduce.run import choose_models, make_plan
    from spikecal.reproduce.tables import TABLES

    facts: dict[str, dict[str, Any]] = {}
    loaded: dict[Any, Any] = {}
    for table in TABLES.values():
        T = steps or (table.T if full else table.default_T)
        fact: dict[str, Any] = {"title": table.title, "T": list(T), "about": table.about, "seconds": None}
        try:
            fact["models"] = choose_models(table, [], {})
            if table.kind != "space":  # which counts, in seconds
                plan = make_plan(table, _sizes(full, table, given), root=root, T=T, loaded=loaded)
                seconds = plan.seconds(plan.cells) + plan.preparing(plan.cells)
                fact |= {"cells": len(plan.cells), "seconds": seconds}
        except SpikecalError as error:
            fact |= {"models": [], "needs": str(error)}
        facts[table.name] = fact
    if json:
        show_json({"tables": facts})
        return
    rows = [
        (
            name,
            fact["title"],
            ", ".join(map(str, fact["T"])),
            ", ".join(fact["models"]) or _way_out(fact["needs"]),
            "" if fact["seconds"] is None else duration(fact["seconds"]),
        )
        for name, fact in facts.items()
    ]
    caption = "Estimates from one pass of the network on this machine; finished cells are not made again."
    show_table("Tables of the paper", ("name", "what it shows", "T", "networks", ">about"), rows, caption)


def _way_out(error: str) -> str:
    """What an error says to do, without what is wrong and without examples."""
    wrong, _, todo = error.partition(": ")
    return (todo or wrong).partition(", such as")[0]
