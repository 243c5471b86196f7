"""`spikecal datasets`: the sets that have a name, where they are, fetching and checking them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spikecal.cli.console import bars, show_json, show_parts, show_table
from spikecal.cli.options import DataRoot, Json, Strict
from spikecal.errors import DataError, refuse_unreadable
from spikecal.tasks.outcome import asides, unreadable_facts, unreadable_lines

if TYPE_CHECKING:
    from pathlib import Path

    from spikecal.data.download import Report
    from spikecal.data.images import Images
    from spikecal.data.sets.known import KnownSet

BATCH = 64

app = typer.Typer(
    help="List the sets of images that have a name, fetch one, or check one.", invoke_without_command=True
)


@app.callback()
def datasets(context: typer.Context, data_root: DataRoot = None, json: Json = False) -> None:
    """List the sets of images that have a name, fetch one, or check one."""
    if context.invoked_subcommand is not None:
        context.obj = data_root
        return
    from spikecal.data.sets.known import KNOWN
    from spikecal.data.sources import data_root as default_root

    root = data_root or default_root()
    found = {name: _facts(known, root) for name, known in KNOWN.items()}
    if json:
        show_json(found)
        return
    columns = ("name", ">train", ">test", "verified", "where, or how to get it", "about")
    show_table(
        f"Data in {root}",
        columns,
        [_row(name, facts, root) for name, facts in found.items()],
        "Also folder:PATH (class folders), npz:PATH, imagenet:PATH and file.py:function.",
    )


def _facts(known: "KnownSet", root: "Path") -> dict[str, Any]:
    copy = known.find(root)
    return {
        "about": known.about,
        "present": copy is not None,
        "where": str(root if copy is None else copy.where or "the package"),
        "images": None if copy is None or copy.images is None else dict(copy.images),
        "verified": None if copy is None else copy.verified,
        "get": known.how,
    }


def _row(name: str, facts: dict[str, Any], root: "Path") -> tuple[str, ...]:
    if not facts["present"]:
        return name, "–", "–", "", facts["get"], facts["about"]
    counts = facts["images"] or {}
    train, test = (f"{counts[split]:,}" if split in counts else "?" for split in ("train", "test"))
    verified = {True: "yes", False: "no: altered", None: ""}[facts["verified"]]
    return name, train, test, verified, facts["where"].removeprefix(f"{root}/"), facts["about"]


@app.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A set's name.")],
    data_root: DataRoot = None,
) -> None:
    """Fetch a set; it appears whole and verified, or not at all. Killed, the same command goes on."""
    from spikecal.data.sets.known import KNOWN
    from spikecal.data.sources import data_root as default_root

    root = data_root or context.obj or default_root()
    if name not in KNOWN:
        raise DataError(f"there is no set {name!r}; there are {', '.join(KNOWN)}")
    known = KNOWN[name]
    there = known.find(root)
    if there is not None and there.verified is False:
        raise DataError(f"{there.where} is not {name} as published, by its checksum: delete it and run this again")
    if there is not None:
        typer.echo(f"{name} is there already, in {there.where or 'the package'}")
        return
    if known.fetch is None:
        raise DataError(f"{name} is not in {root} and cannot be fetched: {known.how}")
    new = not root.exists()
    try:
        with _download_bar(name) as report:
            known.fetch(root, report)
    except DataError:
        if new:
            with suppress(OSError):  # there is something in it to go on with
                root.rmdir()
        raise
    copy = known.find(root)
    if copy is None or copy.images is None:
        raise DataError(f"{name} was fetched and is not in {root}: another program removed it")
    typer.echo(f"{name} is in {copy.where}: {' + '.join(f'{n:,}' for n in copy.images.values())} images, verified")


@app.command()
def check(
    context: typer.Context,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A set's name, or KIND:PATH as in --data.")],
    split: Annotated[Literal["train", "test"], typer.Option(help="Which of its images.")] = "test",
    data_root: DataRoot = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Read every image of a set; count the classes, and list what cannot be read."""
    from spikecal.data.images import none_readable, unreadable_files
    from spikecal.tasks.choose import task_of_data

    read = task_of_data(data).labelled(data, split, data_root or context.obj)
    found = read.images
    unreadable: dict[str, str] = {}
    with bars(json) as progress:
        if progress is not None:
            progress.phase(f"reading {data}", -(-len(found) // BATCH))
        for start in range(0, len(found), BATCH):
            unreadable |= unreadable_files(found, range(start, min(start + BATCH, len(found))))
            if progress is not None:
                progress.advance()
    if len(unreadable) == len(found):
        raise none_readable(data, unreadable)
    classes, reach = read.classes, _reach(found.images)
    if json:
        facts = {"data": data, "split": split, "images": len(found) - len(unreadable), "classes": classes}
        show_json({**facts, **read.facts, "range": reach, "unreadable": unreadable_facts(unreadable)})
    else:
        of = "no labels" if classes is None else f"{classes:,} class{'es' if classes > 1 else ''}"
        floating = "" if reach is None else f", floats from {reach[0]:g} to {reach[1]:g}"
        typer.echo(f"{data}, {split}: {len(found) - len(unreadable):,} images, {of}{floating}")
        show_parts([*asides(read.faults), *unreadable_lines(unreadable, and_so="")])
    if strict:
        refuse_unreadable(data, {**read.left_out, **unreadable})


def _reach(images: "Images") -> list[float] | None:
    """Least and greatest value of floats: whether they are normalised decides what a network makes of them."""
    from torch import Tensor

    if not isinstance(images, Tensor) or not images.is_floating_point():
        return None
    return [round(float(value), 4) for value in images.aminmax()]


@contextmanager
def _download_bar(what: str) -> "Iterator[Report | None]":
    """A bar for bytes on standard error; None where nobody sees it."""
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
        waiting = progress.add_task(f"fetching {what}", total=None)  # also while npm or apt is at work
        tasks: dict[str, Any] = {}

        def report(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
                progress.update(waiting, visible=False)
            progress.update(tasks[name], completed=have, total=total)

        yield report
