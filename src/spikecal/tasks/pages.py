"""What `report`, `convert --report` and `demo --report` share: the page, and the lines about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from spikecal.analysis.evaluate import Evaluation
from spikecal.analysis.summary import Summary
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.files import write_whole
from spikecal.progress import Progress
from spikecal.report.content import NOTHING, Seen, build
from spikecal.report.measure import look
from spikecal.report.page import render
from spikecal.report.source import from_result
from spikecal.result import Result
from spikecal.tasks.outcome import Line, size

NETWORK_FACTS = (
    "label", "T", "latency", "interval", "waiting", "spikes", "score", "agreement", "ann", "first", "energy",
    "energy_all", "delayed", "break_even", "rate", "seconds",
    "images", "data", "split", "origin", "measure", "map50", "ann50",
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A page on disk, and its content."""

    path: Path
    bytes: int
    content: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """For machines: the file, its headline figures and its warnings."""
        networks = [{name: network[name] for name in NETWORK_FACTS} for network in self.content["networks"]]
        return {
            "file": str(self.path),
            "bytes": self.bytes,
            "summary": " ".join(self.content["lead"]),
            "networks": networks,
            "findings": self.content["findings"],
            "notes": self.content["notes"],
        }

    def lines(self) -> list[Line]:
        """For people: one line per warning, and one for the file."""
        findings = [f"{one['level']}: {one['title']}. {one['todo']}" for one in self.content["findings"]]
        last = f"{self.path}: {size(self.bytes)}, {' '.join(self.content['lead'])}"
        return [Line(text) for text in (*self.content["notes"], *findings, last)]


def write_report(path: Path, seen: Sequence[Seen], notes: Sequence[str] = ()) -> Written:
    """Write the page about these sources, whole or not at all."""
    content = build(seen, notes)
    page = render(content).encode(errors="backslashreplace")  # names of files may not be valid text
    write_whole(path, page)
    return Written(path, len(page), content)


def report_result(
    path: Path,
    name: str,
    result: Result,
    ann: nn.Module,
    data: Data | None,
    card: Card,
    summary: Summary | None,
    why: str,
    progress: Progress | None,
) -> Written:
    """Write the page about a conversion that has just ended; `why` it has no summary, if it has none."""
    source = from_result(name, result)
    if data is None:
        return write_report(path, [(source, NOTHING)], [carried(name, why)])
    return write_report(path, [(source, look(source, ann, data, card, summary, progress=progress))])


def report_results(
    path: Path,
    made: Mapping[str, tuple[Result, Mapping[int, Evaluation]]],
    ann: nn.Module,
    data: Data,
    card: Card,
    progress: Progress | None,
) -> Written:
    """Write the page about several conversions of one network, already measured, side by side."""
    seen: list[Seen] = []
    for name, (result, runs) in made.items():
        result.describe(card=card.to_dict())
        source = from_result(name, result)
        seconds = result.timings.alone()
        summary = Summary(data.name, "test", [runs[T] for T in sorted(runs)], seconds=seconds)
        first = seen[0][1] if seen else NOTHING
        teacher = first.graph or ann  # lowering once is enough
        seen.append((source, look(source, teacher, data, card, summary, samples=first.samples, progress=progress)))
    return write_report(path, seen)


def carried(name: str, why: str) -> str:
    """The note on a page for which no image was run."""
    return f"{name}: no images were run ({why}); the page shows what the conversion recorded."
