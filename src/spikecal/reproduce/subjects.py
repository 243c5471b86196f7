"""What a table is measured on: a network with its calibration and test images, and hashes that tell them apart."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spikecal.clock import fastest
from spikecal.data.card import Card
from spikecal.data.images import Unreadable, data_fingerprint, readable
from spikecal.data.prepare import Prepared
from spikecal.data.sets.known import KNOWN, WHOLE
from spikecal.data.sources import Data, data_root, load_data
from spikecal.errors import ConfigError, refuse_unreadable
from spikecal.graph.graph import Graph, describe
from spikecal.graph.lowering.lower import lower
from spikecal.graph.stages import with_joints
from spikecal.workdir import fingerprint
from spikecal.zoo.detectors import DETECTORS
from spikecal.zoo.models import EMBEDDED, ZOO, build_model, has_bn, load_model, random_images
from spikecal.zoo.packages import PACKAGES

if TYPE_CHECKING:
    from spikecal.reproduce.sources import Source

TIMED = 64  # images of the pass that estimates are made from


@dataclass
class Subject:
    """A network by name, what it expects of images, and the images; hashes are made when they are first asked for."""

    spec: str
    network: nn.Module
    card: Card
    trained: bool
    data: str = ""  # the set's name
    train: Data | None = None
    test: Data | None = None
    sources: "dict[str, Source]" = field(default_factory=dict)  # of calibration images, beside its own
    absent: list[str] = field(default_factory=list)  # what is said of sources that are not there
    made: dict[str, Data] = field(default_factory=dict)  # images of sources
    strict: bool = False  # images that cannot be read are an error

    @property
    def bn(self) -> bool:
        return has_bn(self.network)

    def calibration(self, count: int, seed: int, source: str = "") -> tuple[Prepared, Unreadable]:
        """Its own training images, or those of a source that were made; of files `count`, and those left out."""
        images = self.made[source] if source else self.train
        assert images is not None
        chosen, unreadable = readable(images, count, seed)
        if self.strict:
            refuse_unreadable(images.name, unreadable)
        return Prepared(chosen, self.card), unreadable

    def calibration_print(self, source: str) -> str:
        return self.sources[source].print if source else self.train_print

    @cached_property
    def graph(self) -> Graph:
        """The network as it is converted."""
        return with_joints(lower(self.network, (self.example(2),)))

    @cached_property
    def model_print(self) -> str:
        """A hash of the network: what it computes, with which weights, from images prepared in which way."""
        card = {key: value for key, value in self.card.to_dict().items() if key not in ("name", "classes", "data")}
        return fingerprint(self.network.state_dict().values(), [describe(self.graph), card])

    @cached_property
    def train_print(self) -> str:
        assert self.train is not None
        return data_fingerprint(self.train)

    @cached_property
    def test_print(self) -> str:
        assert self.test is not None
        return data_fingerprint(self.test)

    def example(self, count: int) -> Tensor:
        """Some images as the network takes them; where there are none, noise of the right size."""
        if self.train is not None:
            images, _ = self.calibration(count, seed=0)
            chosen = [images[i % len(images)] for i in range(count)]
            if len({image.shape for image in chosen}) == 1:
                return torch.stack(chosen)
            return torch.stack([chosen[0]] * count)
        if self.card.size is None:
            raise ConfigError(f"{self.spec} does not say its input size: give --data")
        return random_images(self.network, self.card, count, self.card.size)

    @cached_property
    def seconds_a_pass(self) -> float:
        """Of the ANN for one image, roughly: what estimates are made from."""
        images = self.example(TIMED)
        home = next((p for p in self.network.parameters() if p.is_floating_point()), images)
        images = images.to(home.device, home.dtype)
        return fastest(lambda: self.network(images)) / TIMED


def load_subject(
    spec: str,
    weights: Path | None,
    data: str | None,
    root: Path | None,
    *,
    images: bool = True,
    whole: bool = False,
    trained: bool = True,
    strict: bool = False,
) -> Subject:
    """The network of `spec` and, with `images`, both splits of `data` or of the set on its card.

    With `whole` it is the set that the card's is a part of, where that is here. Without `trained` a network may come
    without weights: its time and memory can still be measured.
    """
    if trained or available(spec, weights):
        network, card = load_model(spec, weights)
        subject = Subject(spec, network, card, True, strict=strict)
    else:
        network, card = build_model(spec)
        subject = Subject(spec, network, card, False, strict=strict)
    if images:
        name = data or (_whole(card.data, root) if whole else card.data)
        if name is None:
            raise ConfigError(f"{spec} comes with no images: give --data")
        subject.data = name
        subject.train, subject.test = load_data(name, "train", root), load_data(name, "test", root)
    return subject


def _whole(name: str | None, root: Path | None) -> str | None:
    more = WHOLE.get(name or "")
    return more if more is not None and KNOWN[more].find(data_root() if root is None else root) is not None else name


def available(spec: str, weights: Path | None) -> bool:
    """Whether the trained network can be had: from a file, from the package, or from the function that makes it."""
    if spec in DETECTORS:
        return weights is not None or spec in EMBEDDED
    entry = ZOO.get(spec)
    if weights is not None or (entry is not None and entry.card.weights is not None):
        return True
    return entry is None and spec.partition(":")[0] not in PACKAGES
