"""Classifiers of the tables: their images, and how each cell is measured."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from spikecal.analysis.measures import ACCURACY
from spikecal.clock import fastest
from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable, data_fingerprint, readable
from spikecal.data.prepare import Prepared
from spikecal.data.sets.known import KNOWN, WHOLE
from spikecal.data.sources import data_root, load_data
from spikecal.errors import ConfigError, DataError, refuse_unreadable
from spikecal.graph.graph import Graph, describe
from spikecal.graph.joints import staged
from spikecal.progress import Progress, Silent
from spikecal.reproduce.accuracy import ann_accuracy, snn_accuracy
from spikecal.reproduce.costs import space, timing
from spikecal.reproduce.sources import Source, Wanted, make_sources
from spikecal.reproduce.subjects import Subject, Wish
from spikecal.reproduce.ways import PAPERS_JOINTS
from spikecal.workdir import fingerprint
from spikecal.zoo.models import ZOO, build_model, has_bn, load_model, random_images
from spikecal.zoo.packages import PACKAGES

if TYPE_CHECKING:
    from spikecal.reproduce.cells import Cell

TIMED = 64  # images of the timed pass that estimates come from


@dataclass(kw_only=True)
class Classifier(Subject):
    """A classifier, its card, and its images."""

    score = ACCURACY

    card: Card
    train: Data | None = None
    test: Data | None = None

    @classmethod
    def load(cls, spec: str, weights: Path | None, wish: Wish) -> Self:
        """With both splits of the requested dataset, or of that on its card."""
        trained = wish.trained or available(spec, weights)
        network, card = load_model(spec, weights, device=wish.device) if trained else build_model(spec)
        subject = cls(spec=spec, network=network, card=card, trained=trained, strict=wish.strict)
        if wish.images:
            name = wish.data or (_whole(card.data, wish.root) if wish.whole else card.data)
            if name is None:
                raise ConfigError(f"{spec} comes with no images: give --data")
            subject.data = name
            subject.train, subject.test = (load_data(name, split, wish.root) for split in ("train", "test"))
        return subject

    @classmethod
    def has(cls, spec: str) -> bool:
        return spec in ZOO and ZOO[spec].card.weights is not None

    @property
    def bn(self) -> bool:
        return has_bn(self.network)

    @property
    def images(self) -> tuple[Data, Data]:
        if self.train is None or self.test is None:
            raise DataError(f"{self.spec}: there are no images: give --data")
        return self.train, self.test

    @property
    def about(self) -> str:
        return self.images[1].about

    def measure(
        self, cell: "Cell", work: Path | None = None, progress: Progress | None = None, memory: int | None = None
    ) -> dict[str, Any]:
        progress = progress or Silent()
        if cell.kind == "ann":
            return ann_accuracy(cell, self, progress)
        if cell.kind == "space":
            return space(self)
        if cell.kind == "time":
            return timing(cell, self, progress, memory)
        return snn_accuracy(cell, self, work, progress, memory)

    def depends(self, cell: "Cell") -> dict[str, Any]:
        return {"shape": list(self.example(1).shape)} if cell.kind == "space" else {}

    def find_sources(self, wanted: Wanted, root: Path | None) -> tuple[dict[str, Source], list[str]]:
        return make_sources(self, wanted, root)

    def calibration(self, count: int, seed: int, source: str = "") -> tuple[Prepared, Unreadable]:
        """Its own training images, or those made by a source; `count` of files, and those left out."""
        images = self.made[source] if source else self.images[0]
        chosen, unreadable = readable(images, count, seed)
        if self.strict:
            refuse_unreadable(images.name, unreadable)
        return Prepared(chosen, self.card), unreadable

    @cached_property
    def graph(self) -> Graph:
        """The network to convert."""
        return staged(self.network, (self.example(2),), joints=PAPERS_JOINTS)

    @cached_property
    def model_print(self) -> str:
        """A hash of the network: its operations, its weights, and how images are prepared for it."""
        card = {key: value for key, value in self.card.to_dict().items() if key not in ("name", "classes", "data")}
        return fingerprint(self.network.state_dict().values(), [describe(self.graph), card])

    @cached_property
    def train_print(self) -> str:
        return data_fingerprint(self.images[0])

    @cached_property
    def test_print(self) -> str:
        return data_fingerprint(self.images[1])

    def example(self, count: int) -> Tensor:
        """Some normalised images; without any, noise of the right size."""
        if self.train is not None:
            images, _ = self.calibration(count, seed=0)
            chosen = [images[i % len(images)] for i in range(count)]
            if len({image.shape for image in chosen}) == 1:
                return torch.stack(chosen)
            return torch.stack([chosen[0]] * count)
        if self.card.size is None:
            raise ConfigError(f"{self.spec} does not state its input size: give --data")
        return random_images(self.network, self.card, count, self.card.size)

    @cached_property
    def seconds_a_pass(self) -> float:
        images = self.example(TIMED)
        home = next((p for p in self.network.parameters() if p.is_floating_point()), images)
        images = images.to(home.device, home.dtype)
        return fastest(lambda: self.network(images)) / TIMED


def _whole(name: str | None, root: Path | None) -> str | None:
    more = WHOLE.get(name or "")
    return more if more is not None and KNOWN[more].find(data_root() if root is None else root) is not None else name


def available(spec: str, weights: Path | None) -> bool:
    """Whether the trained network is available: from a file, the package, or the function that makes it."""
    if weights is not None or Classifier.has(spec):
        return True
    return spec not in ZOO and spec.partition(":")[0] not in PACKAGES
