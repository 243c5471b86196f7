"""The subject of a table: a network with its images, and hashes that identify them. Each task has its class."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from spikecal.analysis.measures import Measure
from spikecal.data.images import Data
from spikecal.progress import Progress

if TYPE_CHECKING:
    from spikecal.reproduce.cells import Cell
    from spikecal.reproduce.sources import Source, Wanted


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How networks and their images are loaded.

    With `whole`, images come from the whole of the card's dataset, if available. Without `trained`, a network
    may come without weights: its time and memory can still be measured. With `strict`, unreadable images are an
    error.
    """

    data: str | None = None
    root: Path | None = None
    images: bool = True
    whole: bool = False
    trained: bool = True
    strict: bool = False
    device: str | None = None


@dataclass(kw_only=True)
class Subject(ABC):
    """A network by name, and its images; hashes are computed on first use."""

    score: ClassVar[Measure]
    beside: ClassVar[Mapping[str, str]] = {}  # further figures of a cell, and how they differ from the score
    most_images: ClassVar[int | None] = None  # calibration images in the paper, for all parts of a pipeline

    spec: str
    network: nn.Module
    data: str = ""  # the dataset's name
    trained: bool = True
    strict: bool = False
    sources: "dict[str, Source]" = field(default_factory=dict)  # of calibration images, besides its own
    absent: list[str] = field(default_factory=list)  # sentences about missing sources
    made: dict[str, Data] = field(default_factory=dict)  # images of sources

    @classmethod
    @abstractmethod
    def load(cls, spec: str, weights: Path | None, wish: Wish) -> Self:
        """The network of that name, with its images."""

    @classmethod
    @abstractmethod
    def has(cls, spec: str) -> bool:
        """Whether the package has a trained network of that name."""

    @property
    @abstractmethod
    def bn(self) -> bool: ...

    @property
    @abstractmethod
    def images(self) -> tuple[Sized, Sized]:
        """The images for calibration, and those for testing."""

    @property
    @abstractmethod
    def model_print(self) -> str: ...

    @property
    @abstractmethod
    def train_print(self) -> str: ...

    @property
    @abstractmethod
    def test_print(self) -> str: ...

    @property
    @abstractmethod
    def seconds_a_pass(self) -> float:
        """Approximate seconds of the ANN for one image, for estimates."""

    @abstractmethod
    def measure(
        self, cell: "Cell", work: Path | None = None, progress: Progress | None = None, memory: int | None = None
    ) -> dict[str, Any]:
        """The figures of a cell. A long one keeps its progress in `work`, to resume from.

        `memory` is the bytes that a conversion may use.
        """

    def depends(self, cell: "Cell") -> dict[str, Any]:
        """What a figure depends on here, besides what is common to all tasks."""
        return {}

    def differences(self) -> list[str]:
        """Sentences about differences from the paper."""
        return []

    @property
    def about(self) -> str:
        """The test images, if there is something to note about them."""
        return ""

    def find_sources(self, wanted: "Wanted", root: Path | None) -> "tuple[dict[str, Source], list[str]]":
        """Calibration images from elsewhere, and a sentence for each missing kind. Not all tasks have any."""
        return {}, []

    def make_source(self, name: str, folder: Path, progress: Progress) -> None:
        """Make its images, if they are missing."""
        if name not in self.made:
            self.made[name] = self.sources[name].make(folder, progress)

    def calibration_print(self, source: str) -> str:
        return self.sources[source].print if source else self.train_print
