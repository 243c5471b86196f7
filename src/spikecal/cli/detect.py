"""What `convert`, `evaluate` and `report` do with detectors."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, show_table, size
from spikecal.cli.reporting import carried, write_report
from spikecal.errors import ConfigError, DataError, refuse_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from spikecal.cli.reporting import Written
    from spikecal.cli.request import Request
    from spikecal.data.images import Unreadable
    from spikecal.detection.boxes import BoxData
    from spikecal.detection.precision import Precision
    from spikecal.detection.spiking import Conversion
    from spikecal.progress import Progress
    from spikecal.report.measure import Measured
    from spikecal.report.source import Source


def boxes(data: str | None, split: str) -> "BoxData":
    """The set with boxes that the flag names."""
    from spikecal.detection.sources import load_boxes

    if data is None:
        raise ConfigError("detection needs images with boxes: give --data voc:PATH or --data coco:PATH")
    return load_boxes(data, split)


def tell_faults(data: "BoxData", part: str = "") -> None:
    """Count, on standard error, what was wrong with a set, or with a part of it."""
    for sentence in data.faults.sentences():
        typer.echo(f"{data.name}{part and f', {part}'}: {sentence}", err=True)


def convert_detector(asked: "Request") -> None:
    """Convert a detector's body, write it, and measure the detector on test images."""
    from spikecal.data.card import Card
    from spikecal.detection import spiking
    from spikecal.detection.labels import check_labels
    from spikecal.zoo.detectors import load_detector

    detector, images = load_detector(asked.model, asked.weights), boxes(asked.data, "train")
    check_labels(asked.model, detector, asked.weights, images)
    if asked.strict:
        refuse_unreadable(images.name, images.faults.left_out)
    started = time.perf_counter()
    with bars(asked.json) as progress:
        made = spiking.convert(
            detector,
            images,
            count=spiking.IMAGES if asked.images is None else asked.images,
            readout=asked.readout or spiking.READOUT,
            **asked.settings(progress),
        )
    seconds = time.perf_counter() - started
    if asked.strict:
        refuse_unreadable(images.name, made.unreadable)
    card = Card(name=asked.model, data=asked.data, classes=tuple(images.classes.values()))
    made.body.describe(card=card.to_dict())
    made.save(asked.output)  # what comes now only looks at it
    held_out, found, why = _measured(made, asked)
    if found:
        made.save(asked.output)
    written = None
    if asked.report is not None:
        with bars(asked.json) as progress:
            written = report_conversion(asked.report, asked.output.name, made, held_out, found, why, progress)
    unreadable = {**images.faults.left_out, **made.unreadable, **_unreadable(found)}
    if asked.json:
        facts = {**asked.facts(), "task": "detect", "seconds": seconds, "phases": made.body.timings.to_dict()}
        facts |= {"readout": made.body.snn.readout, "precision": {name: one.to_dict() for name, one in found.items()}}
        facts |= {"records": [dataclasses.asdict(record) for record in made.records]}
        facts |= {} if written is None else {"report": written.facts()}
        facts |= {} if held_out is None else {"test_faults": held_out.faults.to_dict()}
        show_json({**facts, "faults": images.faults.to_dict(), "unreadable": options.unreadable_facts(unreadable)})
        return
    tell_faults(images)
    if held_out is not None:
        tell_faults(held_out, "test images")
    show_precision(str(asked.output), found)
    options.tell_unreadable(made.unreadable | _unreadable(found))
    if why and asked.test > 0:
        typer.echo(f"no summary: {why}", err=True)
    if written is not None:
        written.show()
    typer.echo(f"{asked.output}: {size(asked.output.stat().st_size)}, {duration(seconds)}")


def _measured(made: "Conversion", asked: "Request") -> "tuple[BoxData | None, dict[str, Precision], str]":
    """What was found in test images, which the conversion then keeps; or why there are none to look at."""
    if asked.test == 0:
        return None, {}, "--test 0"
    try:
        held_out = boxes(asked.data, "test").sample(asked.test, asked.seed)
        with bars(asked.json) as progress:
            found = precisions(made.analog, {T: made.at(T) for T in sorted(made.body.networks)}, held_out, progress)
    except DataError as error:
        return None, {}, str(error)
    made.body.describe(measured=measured_precision(held_out.name, found))
    return held_out, found, ""


def evaluate_detector(
    file: Path,
    model: str,
    *,
    weights: Path | None,
    data: str | None,
    steps: list[int] | None,
    images: int | None,
    seed: int,
    strict: bool,
    json: bool,
) -> None:
    """mAP of a detector with the bodies in a file, and with its own."""
    from spikecal import inspect
    from spikecal.detection import spiking

    info = inspect(file)
    detector = detector_of(info.get("detector"), file, model, weights)
    bodies = {T: spiking.load(file, detector, T) for T in sorted(set(steps or info["T"]))}
    test = _test_images(model, detector, weights, data, images, seed, strict)
    with bars(json) as progress:
        found = precisions(detector, bodies, test, progress)
    unreadable = _unreadable(found)
    if strict:
        refuse_unreadable(test.name, unreadable)
    if json:
        facts: dict[str, Any] = {"file": str(file), "model": model, "task": "detect", "data": test.name}
        facts |= {"precision": {name: one.to_dict() for name, one in found.items()}, "faults": test.faults.to_dict()}
        show_json({**facts, "unreadable": options.unreadable_facts(unreadable)})
        return
    tell_faults(test)
    show_precision(str(file), found)
    options.tell_unreadable(unreadable)


def report_detector(
    source: "Source",
    file: Path,
    model: str,
    *,
    weights: Path | None,
    data: str | None,
    images: int,
    seed: int,
    strict: bool,
    progress: "Progress | None",
) -> "tuple[Measured, Unreadable]":
    """What the page says of the bodies in a file."""
    from spikecal.detection import spiking
    from spikecal.report.detections import look_at_detector

    detector = detector_of(source.first.origin.detector, file, model, weights)
    bodies = {T: spiking.fit(network, detector, str(file)) for T, network in source.networks.items()}
    test = _test_images(model, detector, weights, data, images, seed, strict)
    found = precisions(detector, bodies, test, progress)
    unreadable = _unreadable(found)
    if strict:
        refuse_unreadable(test.name, unreadable)
    tell_faults(test)
    return look_at_detector(source, detector, test, *_apart(found), progress), unreadable


def report_conversion(
    path: Path,
    name: str,
    made: "Conversion",
    data: "BoxData | None",
    found: "dict[str, Precision]",
    why: str,
    progress: "Progress | None",
) -> "Written":
    """The page on a conversion that has just ended."""
    from spikecal.report.content import NOTHING
    from spikecal.report.detections import look_at_detector
    from spikecal.report.source import from_result

    source = from_result(name, made.body)
    if data is None:
        return write_report(path, [(source, NOTHING)], [carried(name, why)])
    return write_report(path, [(source, look_at_detector(source, made.analog, data, *_apart(found), progress))])


def _test_images(
    model: str,
    detector: "nn.Module",
    weights: Path | None,
    data: str | None,
    count: int | None,
    seed: int,
    strict: bool,
) -> "BoxData":
    """Images to test a detector on, if they are of what it was trained for."""
    from spikecal.detection.labels import check_labels

    test = boxes(data, "test").sample(count, seed)
    check_labels(model, detector, weights, test)
    if strict:
        refuse_unreadable(test.name, test.faults.left_out)
    return test


def detector_of(rest: str | None, file: Path, model: str, weights: Path | None) -> "nn.Module":
    """The detector by its name. Its own weights, if no others are given, must be those that the file was made from."""
    from spikecal.detection import spiking
    from spikecal.zoo.detectors import load_detector

    detector = load_detector(model, weights)
    if weights is None and rest not in (None, spiking.rest_print(detector)):
        raise ConfigError(f"{file} was made from other weights than those that {model} has of its own: give --weights")
    return detector


def precisions(
    detector: "nn.Module", bodies: "Mapping[int, nn.Module]", data: "BoxData", progress: "Progress | None"
) -> "dict[str, Precision]":
    """mAP of the analog detector and of the others, by T."""
    from spikecal.detection import evaluate

    return {
        "analog": evaluate(detector, data, progress),
        **{str(T): evaluate(body, data, progress) for T, body in bodies.items()},
    }


def measured_precision(data: str, found: "Mapping[str, Precision]") -> dict[str, Any]:
    """What a file keeps of it: numbers in the places where a classifier's are."""
    analog, spiking = _apart(found)
    return {
        "measure": "map",
        "data": data,
        "split": "test",
        "images": analog.images,
        "ann": analog.map,
        "ann50": analog.map50,
        "networks": {
            str(T): {"accuracy": one.map, "map50": one.map50, "agreement": None, "energy_ratio": None}
            for T, one in spiking.items()
        },
    }


def _apart(found: "Mapping[str, Precision]") -> "tuple[Precision, dict[int, Precision]]":
    return found["analog"], {int(T): one for T, one in found.items() if T != "analog"}


def show_precision(title: str, found: "dict[str, Precision]") -> None:
    """A line a network: mAP, and of each class at an overlap of 0.5."""
    if not found:
        return
    names = list(next(iter(found.values())).classes)
    rows = [
        (name, percent(one.map), percent(one.map50), *(percent(one.classes.get(c, 0.0)) for c in names))
        for name, one in found.items()
    ]
    images = next(iter(found.values())).images
    caption = f"{images:,} test images; mAP: over overlaps of 0.5 to 0.95; the others at 0.5"
    show_table(title, (">T", ">mAP %", ">mAP50 %", *(f">{name} %" for name in names)), rows, caption)


def _unreadable(found: "dict[str, Precision]") -> "Unreadable":
    return {file: reason for one in found.values() for file, reason in one.unreadable.items()}
