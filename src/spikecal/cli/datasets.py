"""`spikecal datasets`: list the named datasets, fetch one, or check one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spikecal.cli.console import bars, show
from spikecal.cli.options import DataRoot, Json, Strict

if TYPE_CHECKING:
    from spikecal.data.download import Report

app = typer.Typer(help="List the named datasets, fetch one, or check one.", invoke_without_command=True)


@app.callback()
def datasets(context: typer.Context, data_root: DataRoot = None, json: Json = False) -> None:
    """List the named datasets, fetch one, or check one."""
    if context.invoked_subcommand is not None:
        context.obj = data_root
        return
    from spikecal.tasks.catalogue import list_sets

    show(list_sets(data_root), json)


@app.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a dataset.")],
    data_root: DataRoot = None,
) -> None:
    """Fetch a dataset; it appears complete and verified, or not at all. Rerun to resume."""
    from spikecal.tasks.catalogue import fetch_set

    with _download_bar(name) as report:
        outcome = fetch_set(name, data_root or context.obj, report)
    show(outcome, machine=False)


@app.command()
def check(
    context: typer.Context,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Name of a dataset, or KIND:PATH as in --data.")],
    split: Annotated[Literal["train", "test"], typer.Option(help="Which images to check.")] = "test",
    data_root: DataRoot = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Read every image of a dataset; count the classes and list the unreadable files."""
    from spikecal.tasks.check import check_data

    with bars(json) as progress:
        outcome = check_data(data, split, data_root or context.obj, strict, progress)
    show(outcome, json)


@contextmanager
def _download_bar(what: str) -> "Iterator[Report | None]":
    """A bar for bytes on standard error; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        waiting = progress.add_task(f"fetching {what}", total=None)  # also while npm or apt runs
        tasks: dict[str, Any] = {}

        def report(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
                progress.update(waiting, visible=False)
            progress.update(tasks[name], completed=have, total=total)

        yield report
