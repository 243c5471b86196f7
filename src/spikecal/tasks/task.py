"""The interface of every task. The command line chooses one; nothing else depends on which."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn

from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable
from spikecal.pipeline import Plan
from spikecal.progress import Progress
from spikecal.report.content import NOTHING
from spikecal.report.measure import Measured
from spikecal.report.source import Source
from spikecal.tasks.outcome import Outcome
from spikecal.tasks.requests import Conversion, Evaluation, Reporting, Training

Say = Callable[[str], None]  # receives lines that cannot wait for the end


@dataclass(frozen=True)
class Looked:
    """The content of a page for one source; `why` no images were run, if none were."""

    source: Source
    measured: Measured = NOTHING
    unreadable: Unreadable = field(default_factory=dict)
    why: str = ""


class Part(NamedTuple):
    """What is converted of a model, its input shape, its pipeline, and how many images a timed pass has."""

    network: nn.Module
    card: Card
    pipeline: Plan
    timed: int


@dataclass(frozen=True)
class Labelled:
    """Images of a dataset, and its labels. `faults` are reported; `left_out` are the files that have some."""

    images: Data
    classes: int | None
    facts: dict[str, Any] = field(default_factory=dict)
    faults: Sequence[str] = ()
    left_out: Unreadable = field(default_factory=dict)


class Task(Protocol):
    """What a network does: classification or detection."""

    def labelled(self, data: str, split: str, root: Path | None) -> Labelled:
        """A dataset for this task."""

    def part(self, model: str, pipeline: Plan) -> Part:
        """What would be converted of a model, built without trained weights."""

    def convert(self, asked: Conversion, progress: Progress | None, say: Say) -> Outcome:
        """Convert a network, write it, and measure it on test images."""

    def evaluate(self, asked: Evaluation, progress: Progress | None) -> Outcome:
        """Measure the networks in a file."""

    def look(
        self, files: Sequence[tuple[Path, Source]], asked: Reporting, progress: Progress | None, say: Say
    ) -> list[Looked]:
        """Measure what a page shows of files of this task; missing data is an error if it was asked for by name."""

    def train(self, asked: Training, progress: Progress | None, say: Say) -> Outcome:
        """Train a network, measure it on test images, write its weights and its card."""
