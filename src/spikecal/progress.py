"""Progress of long work: the interface for showing it, and ways to show it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol, runtime_checkable

from spikecal.errors import ConfigError, visible

EVERY = 5.0  # seconds between lines, without a terminal for bars


@runtime_checkable
class Progress(Protocol):
    """`phase` starts a part of the work: its name, its number of steps, and its estimated seconds, if known."""

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None: ...


Watching = Progress | Callable[[str, int, int], Any] | bool | None  # what functions take as `progress`


def tell(progress: Progress, line: Callable[[], str | None]) -> None:
    """Show a line, if anybody reads it: watchers may also have a method `say`."""
    say = getattr(progress, "say", None)
    if say is not None and (text := line()):
        say(text)


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None: ...


class Called:
    """Progress for a user's function, called with phase, done and total at the start and after each step."""

    def __init__(self, function: Callable[[str, int, int], Any]) -> None:
        self._function, self._name, self._done, self._total = function, "", 0, 0

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self._name, self._done, self._total = name, 0, total
        self._function(name, 0, total)

    def advance(self, note: str = "") -> None:
        self._done += 1
        self._function(self._name, self._done, self._total)


class Lines:
    """Progress as lines for logs: one every few seconds, and none for shorter work."""

    def __init__(self, stream: IO[str], every: float | None = None) -> None:
        self._stream, self._every, self._last = stream, EVERY if every is None else every, time.monotonic()
        self._name, self._done, self._total = "", 0, 0

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self._name, self._done, self._total = name, 0, total
        if seconds is not None and seconds >= self._every:
            self.say(f"{name}: about {duration(seconds)}")

    def advance(self, note: str = "") -> None:
        self._done += 1
        if time.monotonic() - self._last >= self._every:
            of = f" of {self._total:,}" if self._total else ""
            self.say(f"{self._name}: {self._done:,}{of}" + (f", {note}" if note else ""))

    def say(self, line: str) -> None:
        self._stream.write(visible(line) + "\n")
        self._stream.flush()
        self._last = time.monotonic()


class Bars:
    """Progress bars for the library's long runs: one bar per phase, with its estimate before it starts."""

    def __init__(self, progress: Any) -> None:
        """`progress` is rich's own."""
        self._progress = progress
        self._task: Any = None

    def phase(self, name: str, total: int, seconds: float | None = None) -> None:
        estimate = f" (about {duration(seconds)})" if seconds is not None and seconds >= 2 else ""
        self.close()
        self._task = self._progress.add_task(visible(f"{name}{estimate}"), total=total, note="")

    def advance(self, note: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=1, note=visible(note))

    def say(self, line: str) -> None:
        self._progress.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def has_bars(progress: Progress | None) -> bool:
    """Whether other lines would disturb the bars."""
    return isinstance(progress, Bars)


@contextmanager
def shown() -> Iterator[Bars | Lines]:
    """Show bars on standard error, or lines every few seconds if that is not a terminal."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Rich(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress)


@contextmanager
def watched(progress: Watching) -> Iterator[Progress]:
    """Progress from the argument `progress`: None, True for a bar, a function, or an object with the two methods."""
    if progress is True:
        with shown() as made:
            yield made
    elif progress is None or progress is False:
        yield Silent()
    elif isinstance(progress, Progress):
        yield progress
    elif callable(progress):
        yield Called(progress)
    else:
        raise ConfigError(f"progress must be True or a function of phase, done and total, not {progress!r}")


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
