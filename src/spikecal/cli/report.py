"""`spikecal report`: one HTML page on the networks of one or several files."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show_json
from spikecal.cli.evaluate import holds_detector, load_networks, named_detector
from spikecal.cli.reporting import carried, write_report
from spikecal.cli.summary import measure, show_summary
from spikecal.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import nn

    from spikecal.analysis.summary import Summary
    from spikecal.data.card import Card
    from spikecal.data.images import Data, Unreadable
    from spikecal.graph.graph import Graph
    from spikecal.progress import Progress
    from spikecal.report.content import Seen
    from spikecal.report.measure import Measured
    from spikecal.report.source import Source

TESTED = 1000


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What `spikecal convert` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    task: options.Task = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int, typer.Option(min=0, metavar="N", help="Test images, drawn by the seed; 0: what the files carry.")
    ] = TESTED,
    steps: Annotated[
        list[int] | None, typer.Option("-T", min=1, metavar="N", help="Which networks of the files. (default all)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The network they came from. (default what is left of it inside)"),
    ] = None,
    weights: options.Weights = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Write one HTML page that shows what a conversion did; several files and T are compared side by side."""
    options.check_output(output, files)
    from spikecal.data.prepare import Prepared
    from spikecal.report.content import NOTHING
    from spikecal.report.source import from_file
    from spikecal.zoo.models import load_model

    sources = [from_file(file, sorted(set(steps or ()))) for file in files]
    detectors = {i: named for i, source in enumerate(sources) if (named := _detector(source, model, task)) is not None}
    classifier = model is not None and len(detectors) < len(sources)
    network, card = load_model(model, weights) if classifier and model is not None else (None, None)
    seen: list[Seen] = []
    notes: list[str] = []
    unreadable: Unreadable = {}
    known: dict[tuple[str, Card], Measured] = {}
    with bars(json) as progress:
        for i, (file, source) in enumerate(zip(files, sources, strict=True)):
            if i in detectors:
                found, more, why = _detected(
                    source, file, detectors[i], weights, data, images, seed, strict, model is not None, progress
                )
                seen.append((source, found))
                notes += [carried(source.name, why)] if why else []
                unreadable |= more
                continue
            own = card or source.card
            tested, why = _images(source, own, card is None, data, data_root, images, seed)
            if own is None or tested is None:
                seen.append((source, NOTHING))
                notes.append(carried(source.name, why))
                continue
            if source.headless and network is not None:
                networks = load_networks(file, list(source.networks), network, Prepared(tested, own))
                source = replace(source, networks={n.T: n for n in networks}, headless=False)
            found, more = _measured(source, network, tested, own, strict, known.get((tested.name, own)), progress)
            known.setdefault((tested.name, own), found)
            seen.append((source, found))
            unreadable |= more
        written = write_report(output, seen, notes)
    if json:
        show_json({**written.facts(), "unreadable": options.unreadable_facts(unreadable)})
        return
    for source, found in seen:
        if found.summary is not None:
            show_summary(source.name, found.summary)
    options.tell_unreadable(unreadable)
    written.show()


def _detector(source: "Source", model: str | None, task: str | None) -> str | None:
    """The name of the detector that a file holds the body of; "" where only that it is one is known."""
    named, _ = named_detector(source.first.origin.card, model)
    return (named or "") if holds_detector(source.name, source.detector, named, task) else None


def _detected(
    source: "Source",
    file: Path,
    model: str,
    weights: Path | None,
    data: str | None,
    images: int,
    seed: int,
    strict: bool,
    asked: bool,
    progress: "Progress | None",
) -> tuple["Measured", "Unreadable", str]:
    """What a detector finds, or why it was not run; what was asked for by name and is not there is an error."""
    from spikecal.cli import detect
    from spikecal.report.content import NOTHING

    if images == 0:
        return NOTHING, {}, "--images 0"
    _, known = named_detector(source.first.origin.card, None)
    try:
        if not model:
            raise ConfigError(f"{file} is the body of a detector it does not name: give it with --model and --weights")
        found, unreadable = detect.report_detector(
            source, file, model,
            weights=weights, data=data or known, images=images, seed=seed, strict=strict, progress=progress,
        )  # fmt: skip
    except (ConfigError, DataError) as error:
        if asked or data is not None or weights is not None:
            raise
        return NOTHING, {}, str(error)
    return found, unreadable, ""


def _images(
    source: "Source",
    card: "Card | None",
    from_file: bool,
    data: str | None,
    root: Path | None,
    images: int,
    seed: int,
) -> tuple["Data | None", str]:
    """The test images, or why there are none; images that were asked for by name and are not there are an error."""
    from spikecal.data.sources import subset
    from spikecal.report.measure import check_inputs

    if images == 0:
        return None, "--images 0"
    try:
        if card is None:
            raise ConfigError(f"{source.name} does not say what images it takes: give its network with --model")
        check_inputs(source)
        return subset(options.chosen_data(data, card, "test", root, from_file=from_file), images, seed), ""
    except (ConfigError, DataError) as error:
        if data is not None:
            raise
        return None, str(error)


def _measured(
    source: "Source",
    network: "nn.Module | None",
    data: "Data",
    card: "Card",
    strict: bool,
    before: "Measured | None",
    progress: "Progress | None",
) -> tuple["Measured", "Unreadable"]:
    """Accuracy where there are classes, then everything else; the images followed are those of `before`."""
    from spikecal.analysis.evaluate import original
    from spikecal.report.measure import ann_of, first_images, gives_classes, look

    first = first_images(data, card, strict)[0]
    graph = ann_of(source, network, first)  # before anything long: this is where another model is noticed
    ann: nn.Module | Graph | None = original(source.first) if network is None else network
    summary: Summary | None = None
    unreadable: Unreadable = {}
    notes: tuple[str, ...] = ()
    if not source.headless and gives_classes(source.first, first):
        if data.labels is None and ann is None:
            notes = (f"{data.name} has no labels and {source.name} no ANN: how good it is is not known (--model).",)
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


def _split(source: "Source", data: "Data") -> str:
    """What the images are called: some sets have none but those that calibration saw, and the file says so."""
    kept = source.measured
    return kept["split"] if kept is not None and kept["data"] == data.name else "test"
