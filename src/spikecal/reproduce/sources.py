"""Sources of a row's calibration images other than the network's training images."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from spikecal.data.images import data_fingerprint
from spikecal.data.sets.known import KNOWN
from spikecal.data.sources import Data, data_root, load_data
from spikecal.distillation.distill import IMAGES, distill
from spikecal.distillation.inversion import Inversion, noise
from spikecal.errors import ConfigError
from spikecal.progress import Progress
from spikecal.reproduce.subjects import Wish
from spikecal.workdir import fingerprint
from spikecal.zoo.models import ZOO

if TYPE_CHECKING:
    from spikecal.reproduce.classifiers import Classifier

DISTILLED, SEVERAL, OTHER, NOISE = "distilled", "several", "other", "noise"
OTHERS = ("cifar100", "fashion-mnist")  # real images of something else, for a network of CIFAR-10
PARTNERS = ("vgg16-half", "resnet20-nobn")  # a second network; one with BN contributes more
PASSES = 3  # approximate cost of an iteration of distilling


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The requested sources: further networks (name, checkpoint), other images, and how much to distil."""

    partners: tuple[tuple[str, Path | None], ...] = ()
    other: str | None = None
    images: int = IMAGES
    iterations: int = Inversion.iterations


class Source(Protocol):
    """Images with a name; `print` identifies them before they are made."""

    @property
    def print(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def passes(self) -> float: ...

    def make(self, folder: Path, progress: Progress) -> Data: ...


@dataclass
class Inverted:
    """Images distilled from networks; finished batches are in `folder`, for all cells and for resuming."""

    networks: "Sequence[Classifier]"
    images: int
    settings: Inversion

    @cached_property
    def print(self) -> str:
        return fingerprint([], [[n.model_print for n in self.networks], self.images, asdict(self.settings)])

    @property
    def about(self) -> str:
        names = " and ".join(network.spec for network in self.networks)
        return f"{self.images:,} images, once, from {names}, {self.settings.iterations:,} iterations"

    @property
    def passes(self) -> float:
        return PASSES * self.images * self.settings.iterations * len(self.networks)

    def make(self, folder: Path, progress: Progress) -> Data:
        return distill(
            [network.network for network in self.networks],
            self.images,
            card=[network.card for network in self.networks],
            inversion=self.settings,
            workdir=folder / f"distilled-{self.print[:16]}",
            progress=progress,
        ).data()


@dataclass
class Others:
    """Real images of another dataset."""

    name: str
    data: Data
    passes: float = field(default=0.0, init=False)

    @cached_property
    def print(self) -> str:
        return data_fingerprint(self.data)

    @property
    def about(self) -> str:
        return f"the {len(self.data):,} training images of {self.name}, in the network's size"

    def make(self, folder: Path, progress: Progress) -> Data:
        return self.data


@dataclass
class Noise:
    """Gaussian noise with the card's mean and deviation of real images, clipped at black and white."""

    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    passes: float = field(default=0.0, init=False)

    @property
    def print(self) -> str:
        return fingerprint([], ["noise", list(self.shape), self.mean, self.std])

    @property
    def about(self) -> str:
        return f"{self.shape[0]:,} images, once, all values independent, with the card's mean and deviation"

    def make(self, folder: Path, progress: Progress) -> Data:
        images = noise(self.shape, "white", torch.Generator().manual_seed(0))
        if self.mean is not None and self.std is not None:
            mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
            images = (255 * (images * std + mean)).round().clamp(0, 255).to(torch.uint8)
        return Data(name="noise", images=images)


def make_sources(subject: "Classifier", wanted: Wanted, root: Path | None) -> tuple[dict[str, Source], list[str]]:
    """All sources available for this network, and a sentence for each that is not."""
    if subject.card.size is None:
        raise ConfigError(f"{subject.spec} does not state its input size, so images cannot be made for it: give --data")
    settings = Inversion(iterations=wanted.iterations)
    shape = (wanted.images, *subject.example(1).shape[1:])
    sources: dict[str, Source] = {
        DISTILLED: Inverted([subject], wanted.images, settings),
        NOISE: Noise(shape, subject.card.mean, subject.card.std),
    }
    missing = []
    partners = wanted.partners or _partners(subject)
    if partners:
        loaded = [subject.load(name, weights, Wish(images=False)) for name, weights in partners]
        sources[SEVERAL] = Inverted([subject, *loaded], wanted.images, settings)
    else:
        missing.append("Not measured: images distilled from two networks; name the second with --with.")
    other = _other(wanted.other, root)
    if other is not None:
        sources[OTHER] = other
    else:
        missing.append(f"Not measured: other real images; neither {' nor '.join(OTHERS)} is here, and no --other.")
    return sources, missing


def _partners(subject: "Classifier") -> tuple[tuple[str, Path | None], ...]:
    """The first embedded network trained on the same images."""
    if subject.spec not in ZOO:
        return ()
    alike = [name for name in PARTNERS if ZOO[name].card.data == ZOO[subject.spec].card.data]
    return tuple((name, None) for name in alike if name != subject.spec and subject.has(name))[:1]


def _other(name: str | None, root: Path | None) -> Others | None:
    place = data_root() if root is None else root
    name = name or next((known for known in OTHERS if KNOWN[known].find(place) is not None), None)
    return None if name is None else Others(name, load_data(name, "train", root))
