"""Bars, sizes and durations."""

import io
import time
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from spikecal.cli.console import bars
from spikecal.progress import Bars, Lines
from spikecal.tasks.outcome import duration, size


@pytest.fixture
def progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(file=io.StringIO())) as made:
        yield made


def test_one_bar_per_phase(progress: Progress) -> None:
    shown = Bars(progress)
    shown.advance("before any phase")
    shown.phase("thresholds", 3, None)
    shown.advance("first")
    assert [(t.description, t.total, t.completed) for t in progress.tasks] == [("thresholds", 3, 1)]
    shown.phase("T=8", 20, 125.0)
    assert [t.description for t in progress.tasks] == ["T=8 (about 2 min)"]
    shown.close()
    assert progress.tasks == []


def test_lines_where_there_is_no_terminal_and_nothing_for_machines(capfd: pytest.CaptureFixture[str]) -> None:
    with bars() as shown:  # pytest's output is no terminal
        assert isinstance(shown, Lines)
        shown.phase("quick", 2, 0.1)
        shown.advance()
    with bars(machine=True) as shown:
        assert shown is None
    assert capfd.readouterr() == ("", "")


def test_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream, every=5)
    lines.phase("T=8", 20, 125.0)
    for _ in range(12):
        now[0] += 1
        lines.advance("relu  error 0.01")
    assert stream.getvalue().splitlines() == [
        "T=8: about 2 min", "T=8: 5 of 20, relu  error 0.01", "T=8: 10 of 20, relu  error 0.01",
    ]  # fmt: skip


def test_words_for_numbers() -> None:
    assert [duration(s) for s in (0.4, 89, 91, 7200)] == ["0 s", "89 s", "2 min", "2.0 h"]
    assert [size(b) for b in (999, 1000, 5.5e6, 2e12)] == ["999 B", "1.0 kB", "5.5 MB", "2000.0 GB"]
