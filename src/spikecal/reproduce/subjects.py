"""What a table is measured on: a network with its images, and hashes that tell them apart. Each task has its class."""

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

    With `whole` the images are the set that the card's is a part of, where that is here. Without `trained` a network
    may come without weights: its time and memory can still be measured. With `strict` images that cannot be read are an
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
    """A network by name, and its images; hashes are made when they are first asked for."""

    score: ClassVar[Measure]
    beside: ClassVar[Mapping[str, str]] = {}  # further figures of a cell, and what makes them others than the score
    most_images: ClassVar[int | None] = None  # that the paper calibrates on, in all parts of a pipeline

    spec: str
    network: nn.Module
    data: str = ""  # the set's name
    trained: bool = True
    strict: bool = False
    sources: "dict[str, Source]" = field(default_factory=dict)  # of calibration images, beside its own
    absent: list[str] = field(default_factory=list)  # what is said of sources that are not there
    made: dict[str, Data] = field(default_factory=dict)  # images of sources

    @classmethod
    @abstractmethod
    def load(cls, spec: str, weights: Path | None, wish: Wish) -> Self:
        """The network of that name, with its images."""

    @classmethod
    @abstractmethod
    def has(cls, spec: str) -> bool:
        """Whether the package has a network of that name, trained."""

    @property
    @abstractmethod
    def bn(self) -> bool: ...

    @property
    @abstractmethod
    def images(self) -> tuple[Sized, Sized]:
        """Those to calibrate on, and those to test on."""

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
        """Of the ANN for one image, roughly: what estimates are made from."""

    @abstractmethod
    def measure(
        self, cell: "Cell", work: Path | None = None, progress: Progress | None = None, memory: int | None = None
    ) -> dict[str, Any]:
        """The numbers of a cell. In `work` a long one keeps what it has, so that it can be killed.

        `memory` are the bytes that a conversion may use.
        """

    def depends(self, cell: "Cell") -> dict[str, Any]:
        """What a number depends on here, beside what those of every task do."""
        return {}

    def differences(self) -> list[str]:
        """What is not as in the paper, in sentences."""
        return []

    @property
    def about(self) -> str:
        """The test images, where something is to be said of them."""
        return ""

    def find_sources(self, wanted: "Wanted", root: Path | None) -> "tuple[dict[str, Source], list[str]]":
        """Calibration images from elsewhere, and a sentence for each kind that is not there. Not all tasks have any."""
        return {}, []

    def make_source(self, name: str, folder: Path, progress: Progress) -> None:
        """Make its images, if they are not there yet."""
        if name not in self.made:
            self.made[name] = self.sources[name].make(folder, progress)

    def calibration_print(self, source: str) -> str:
        return self.sources[source].print if source else self.train_print
