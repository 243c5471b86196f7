"""What a report measures of networks besides accuracy: errors of layers, and some images to follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikecal.analysis.energy import Energy, measure_energy
from spikecal.analysis.errors import IMAGES, NetworkErrors, ann_graph, measure_errors
from spikecal.analysis.evaluate import answering, check_weights, gives_classes
from spikecal.analysis.summary import Summary
from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable, none_readable
from spikecal.data.prepare import Prepared
from spikecal.errors import ConfigError, DataError
from spikecal.graph.graph import Graph
from spikecal.progress import Progress
from spikecal.report.source import Source
from spikecal.report.spikes import LADDER, choose_samples
from spikecal.snn.network import SpikingNetwork

if TYPE_CHECKING:
    from spikecal.report.detections import Detected

CANDIDATES = 64  # images from which those to follow are chosen
ENERGY_IMAGES = 16  # if the network gives no classes and is not evaluated


@dataclass(frozen=True)
class Samples:
    """Normalised images that the page follows; `labels` if known."""

    images: Tensor | Sequence[Tensor]  # one tensor if all are of one size
    labels: list[int] | None
    card: Card
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """Measurements of the networks of a source; any may be missing, and `notes` say why."""

    summary: Summary | None = None
    energy: Mapping[int, Energy] = field(default_factory=dict)
    errors: Mapping[int, NetworkErrors] = field(default_factory=dict)
    graph: Graph | None = None  # the ANN that errors are relative to; without it they mean nothing
    samples: Samples | None = None
    answers: list[int] | None = None  # the ANN's to the samples
    classifies: bool = False
    detected: "Detected | None" = None  # of a detector, instead of the summary
    notes: tuple[str, ...] = ()

    @property
    def against_ann(self) -> bool:
        return self.graph is not None


def first_images(data: Data, card: Card, strict: bool = False) -> tuple[Tensor, list[int] | None]:
    """The first readable images of a dataset, normalised, and their labels."""
    unreadable: Unreadable = {}
    for images, indices in Prepared(data, card).batches(IMAGES, None if strict else unreadable):
        return images, None if data.labels is None else data.labels[indices].tolist()
    raise none_readable(data.name, unreadable)


def look(
    source: Source,
    ann: nn.Module | Graph | None,
    data: Data,
    card: Card,
    summary: Summary | None,
    *,
    strict: bool = False,
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Run the networks of `source` on some images; follow `samples` if they are of the same dataset."""
    images, labels = first_images(data, card, strict)
    images = _at_home(source.first, images)
    classifies = gives_classes(source.first, images)
    graph = ann_of(source, ann, images)
    notes = []
    if source.headless:
        notes.append(f"{source.name} holds a spiking body without its analog head, so it gives no answers")
    elif not classifies:
        notes.append(f"{source.name} does not give one row of classes: accuracy and answers are left out")
    if graph is None:
        notes.append(
            f"{source.name} no longer holds its ANN (give it with --model): errors are those of its calibration"
        )
    errors = {
        T: measure_errors(network.graph if graph is None else graph, network, images, count=IMAGES, progress=progress)
        for T, network in source.networks.items()
    }
    energy = {} if summary is None else {e.T: e.energy for e in summary.found if e.energy is not None}
    if summary is None:
        energy = {T: measure_energy(network, images[:ENERGY_IMAGES]) for T, network in source.networks.items()}
    if samples is None:
        samples = _samples(source, images, labels, card, data.classes or card.classes, classifies)
    teacher = graph if ann is None else ann
    answers = None
    if classifies and teacher is not None:
        answers = answering(teacher)(torch.stack([*samples.images])).tolist()
    return Measured(
        summary=summary,
        energy=energy,
        errors=errors,
        graph=graph,
        samples=samples,
        answers=answers,
        classifies=classifies,
        notes=tuple(notes),
    )


def ann_of(source: Source, ann: nn.Module | Graph | None, images: Tensor) -> Graph | None:
    """The ANN with the stages of the networks; None if it is neither given nor left in the file."""
    head = source.headless or source.first.head is not None
    if ann is None or (head and isinstance(ann, nn.Module) and not source.first.origin.keep):
        return source.ann
    try:
        graph = ann_graph(ann, source.first, (images[:1],))
    except ConfigError as error:
        raise ConfigError(f"{source.name}: {error}") from error
    check_weights(source.name, graph, source.ann)
    return graph


def _samples(
    source: Source, images: Tensor, labels: list[int] | None, card: Card, classes: tuple[str, ...], classifies: bool
) -> Samples:
    candidates, most = images[:CANDIDATES], LADDER[0].images
    chosen = list(range(min(most, len(candidates))))
    if classifies:
        best = source.networks[max(source.networks)]
        answers = best(candidates).argmax(-1).tolist()
        chosen = choose_samples(answers, None if labels is None else labels[:CANDIDATES], most)
    return Samples(images[chosen], None if labels is None else [labels[i] for i in chosen], card, classes)


def _at_home(network: SpikingNetwork, images: Tensor) -> Tensor:
    home: Any = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    return images.to(home.device, home.dtype)


def check_inputs(source: Source) -> None:
    """Raise if the network needs more inputs than images."""
    count = len(source.first.graph.inputs())
    if count != 1:
        raise DataError(f"{source.name} takes {count} inputs, but images are only one")
