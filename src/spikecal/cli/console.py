"""What all verbs share in talking to the user: tables, JSON and progress bars."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

from spikecal.tasks.outcome import Line, Outcome, Table, duration

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140  # of what goes to a file or another program: the summary has all of its columns in one line


def show_json(value: Any) -> None:
    """Plain JSON on standard output, and nothing else there."""
    typer.echo(json.dumps(value, indent=2, default=str, allow_nan=False))


def show(outcome: Outcome, machine: bool) -> None:
    """What came of a command, for machines or for people; then what is wrong with it, if something is."""
    if machine:
        show_json(outcome.facts)
    for part in () if machine else outcome.parts:
        if isinstance(part, Table):
            show_table(part.title, part.columns, part.rows, part.caption)
        elif isinstance(part, Line):
            typer.echo(part.text, err=part.aside)
        else:
            show_markdown(part.title, part.text)
    if outcome.error is not None:
        raise outcome.error


def aside(text: str) -> None:
    """A line on standard error, at once."""
    typer.echo(text, err=True)


def silent(text: str) -> None:
    """In place of `aside` where nobody reads it."""


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """A table; a column whose name begins with `>` is set flush right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = _console()
    if title:
        console.print(title, style="bold")
    console.print(table)
    if caption:
        console.print(caption, style="dim")


def show_markdown(title: str, text: str) -> None:
    """A part of a page, its lists and tables drawn."""
    from rich.markdown import Markdown

    console = _console()
    console.print(title, style="bold")
    console.print(Markdown(text))
    console.print()


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


class Bars:
    """Progress bars for the library's long runs: one bar a phase, with its estimate before it starts."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task: Any = None

    def phase(self, name: str, total: int, seconds: float | None = None) -> None:
        estimate = f" (about {duration(seconds)})" if seconds is not None and seconds >= 2 else ""
        self._finish()
        self._task = self._progress.add_task(f"{name}{estimate}", total=total, note="")

    def advance(self, note: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=1, note=note)

    def close(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


@contextmanager
def bars(machine: bool = False) -> Iterator[Bars | None]:
    """Bars on standard error while in here; None where nobody sees them.

    For machines standard output is that of the answer: what a user's own code prints goes to standard error.
    """
    if machine:
        with redirect_stdout(sys.stderr):
            yield None
        return
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress)
