"""Load classifiers from files, with what the files lack, and measure them for a page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import Dataset

from spikecal.analysis.evaluate import check_weights, gives_classes, original
from spikecal.analysis.inspection import inspect
from spikecal.analysis.summary import Summary
from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable
from spikecal.data.prepare import Prepared
from spikecal.data.sources import chosen_data, subset
from spikecal.errors import ConfigError, DataError
from spikecal.graph.graph import Graph, describe
from spikecal.graph.joints import staged
from spikecal.progress import Progress
from spikecal.report.measure import Measured, ann_of, check_inputs, first_images, look
from spikecal.report.source import Source
from spikecal.snn.file import load
from spikecal.snn.network import SpikingNetwork
from spikecal.tasks.requests import Reporting
from spikecal.tasks.summary import measure
from spikecal.tasks.task import Looked
from spikecal.zoo.models import load_model


def load_networks(
    file: Path,
    steps: Sequence[int],
    model: nn.Module | None,
    images: Dataset[Tensor],
    neurons: Sequence[str] = (),
    device: str | None = None,
) -> list[SpikingNetwork]:
    """Load the networks of a file. A given model must be their source; with `--keep`, it provides the analog end."""
    info = inspect(file)
    if model is None:
        if info["head"]:
            raise ConfigError(
                f"{file} was made with --keep and lacks its analog end: give the source model with --model"
            )
        return [load(file, T=T, neurons=neurons, device=device) for T in steps]
    graph = staged(model, (images[0][None],), info.get("keep", ()), info.get("joints", "analog"))
    networks = [load(file, T=T, head=graph.head, neurons=neurons, device=device) for T in steps]
    if describe(graph) != describe(networks[0].graph):
        raise ConfigError(f"{file} was made from a different source model: their operations differ")
    check_weights(str(file), graph, original(networks[0]))
    return networks


def with_images_of(card: Card | None, kept: Card | None) -> Card | None:
    """The card of the given model, else that of the file; but the file's own images come first."""
    if card is None or kept is None or kept.data is None:
        return card or kept
    return replace(card, data=kept.data)


def look_at_classifiers(
    files: Sequence[tuple[Path, Source]], asked: Reporting, progress: Progress | None
) -> list[Looked]:
    """The content of a page, source by source; files that take the same images follow the same ones."""
    network, card = (None, None) if asked.model is None else load_model(asked.model, asked.weights, device=asked.device)
    seen: list[Looked] = []
    known: dict[tuple[str, Card], Measured] = {}
    for file, source in files:
        own = with_images_of(card, source.card)
        tested, why = _images(source, own, source.card is not None, asked)
        if own is None or tested is None:
            seen.append(Looked(source, why=why))
            continue
        if source.headless and network is not None:
            networks = load_networks(
                file, list(source.networks), network, Prepared(tested, own), asked.neurons, asked.device
            )
            source = replace(source, networks={n.T: n for n in networks}, headless=False)
        before = known.get((tested.name, own))
        found, unreadable = _measured(source, network, tested, own, asked.strict, before, progress)
        known.setdefault((tested.name, own), found)
        seen.append(Looked(source, found, unreadable))
    return seen


def _images(source: Source, card: Card | None, from_file: bool, asked: Reporting) -> tuple[Data | None, str]:
    """The test images, or why there are none; missing images are an error if they were asked for by name."""
    if asked.images == 0:
        return None, "--images 0"
    try:
        if card is None:
            raise ConfigError(f"{source.name} does not state what images it takes: give the source model with --model")
        check_inputs(source)
        held_out = chosen_data(asked.data, card, "test", asked.data_root, from_file=from_file)
        return subset(held_out, asked.images, asked.seed), ""
    except (ConfigError, DataError) as error:
        if asked.data is not None:
            raise
        return None, str(error)


def _measured(
    source: Source,
    network: nn.Module | None,
    data: Data,
    card: Card,
    strict: bool,
    before: Measured | None,
    progress: Progress | None,
) -> tuple[Measured, Unreadable]:
    """Measure accuracy if there are labels, then everything else; the images followed are those of `before`."""
    first = first_images(data, card, strict)[0]
    graph = ann_of(source, network, first)  # before anything long, as this refuses a different model
    ann: nn.Module | Graph | None = original(source.first) if network is None else network
    summary: Summary | None = None
    unreadable: Unreadable = {}
    notes: tuple[str, ...] = ()
    if not source.headless and gives_classes(source.first, first):
        if data.labels is None and ann is None:
            notes = (
                f"{data.name} has no labels and {source.name} holds no ANN to compare with: give --model to compare.",
            )
        else:
            networks = [source.networks[T] for T in sorted(source.networks)]
            seconds = source.timings.alone()
            summary, unreadable = measure(
                networks, ann, data, card, _split(source, data), strict=strict, seconds=seconds, progress=progress
            )
            if network is not None and summary.by_chance:
                notes = (f"{summary.doubt(source.name)}",)
    samples = None if before is None else before.samples
    found = look(source, graph, data, card, summary, strict=strict, samples=samples, progress=progress)
    return replace(found, notes=(*notes, *found.notes)), unreadable


def _split(source: Source, data: Data) -> str:
    """The name of the images, stating whether calibration saw them: some datasets have no others."""
    kept = source.measured
    return kept["split"] if kept is not None and kept["data"] == data.name else "test"
