"""How all verbs talk to the user: tables, JSON and progress bars."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import IO, TYPE_CHECKING, Any

import typer

from spikecal.errors import visible
from spikecal.progress import Bars, Lines, shown
from spikecal.tasks.outcome import Line, Outcome, Table

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140  # of output to a file or another program: all columns of the summary fit on one line


def show_json(value: Any) -> None:
    """Plain JSON on standard output, and nothing else there."""
    output = sys.stdout.machine if isinstance(sys.stdout, Aside) else sys.stdout
    typer.echo(json.dumps(value, indent=2, default=str, allow_nan=False), file=output)


class Aside(io.TextIOBase):
    """Stands in for standard output while that is reserved for JSON: anything printed goes to standard error."""

    def __init__(self, machine: IO[str]) -> None:
        self.machine = machine

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def printing_aside() -> Iterator[None]:
    """Keep standard output for `show_json`: the user's own code and its subprocesses may print."""
    kept = sys.stdout
    if not isinstance(kept, io.TextIOWrapper) or kept is not sys.__stdout__:  # replaced, as by a test
        with redirect_stdout(Aside(kept)):
            yield
        return
    kept.flush()
    number = os.dup(kept.fileno())
    with os.fdopen(number, "w", encoding=kept.encoding) as machine, redirect_stdout(Aside(machine)):
        os.dup2(sys.stderr.fileno(), kept.fileno())
        try:
            yield
        finally:
            machine.flush()
            os.dup2(number, kept.fileno())


def show(outcome: Outcome, machine: bool) -> None:
    """Show the outcome of a command, for machines or for people; then raise its error, if there is one."""
    if machine:
        show_json(outcome.facts)
    for part in () if machine else outcome.parts:
        if isinstance(part, Table):
            show_table(part.title, part.columns, part.rows, part.caption)
        elif isinstance(part, Line):
            typer.echo(visible(part.text), err=part.aside)
        else:
            show_markdown(part.title, part.text)
    if outcome.error is not None:
        raise outcome.error


def aside(text: str) -> None:
    """A line on standard error, at once."""
    typer.echo(visible(text), err=True)


class Visible(logging.StreamHandler[IO[str]]):
    """Prints what the library logs to the current standard error, one line per record."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._seen = set[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let each message through once: a table converts a network many times."""
        text = record.getMessage()
        seen = text in self._seen
        self._seen.add(text)
        return not seen and bool(super().filter(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


@contextmanager
def logging_visibly() -> Iterator[None]:
    """Show the library's warnings inside this context; names in them are escaped as everywhere."""
    handler, library = Visible(), logging.getLogger("spikecal")
    library.addHandler(handler)
    try:
        yield
    finally:
        library.removeHandler(handler)


def silent(text: str) -> None:
    """Stands in for `aside` where nobody reads it."""


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """Print a table; a column whose name begins with `>` is right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = _console()
    if title:
        console.print(visible(title), style="bold")
    console.print(table)
    if caption:
        console.print(visible(caption), style="dim")


def show_markdown(title: str, text: str) -> None:
    """Print Markdown with its lists and tables drawn."""
    from rich.markdown import Markdown

    console = _console()
    console.print(visible(title), style="bold")
    console.print(Markdown(visible(text)))
    console.print()


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


@contextmanager
def bars(machine: bool = False) -> Iterator[Bars | Lines | None]:
    """Show progress on standard error: bars, or lines where that or standard output is not a terminal."""
    if machine:
        yield None
    elif not sys.stdout.isatty():
        yield Lines(sys.stderr)
    else:
        with shown() as progress:
            yield progress
