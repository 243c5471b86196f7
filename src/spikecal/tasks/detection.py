"""Detectors: boxes in every image, measured by mean average precision."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from spikecal.analysis.energy import stored_costs
from spikecal.analysis.inspection import inspect
from spikecal.analysis.measures import MAP, STORED
from spikecal.analysis.timing import Timing, timing, timings
from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable
from spikecal.detection import spiking
from spikecal.detection.boxes import BoxData
from spikecal.detection.labels import check_labels
from spikecal.detection.precision import Precision
from spikecal.detection.sources import KINDS, chosen_boxes, load_boxes
from spikecal.errors import ConfigError, DataError, refuse_unreadable
from spikecal.pipeline import Plan
from spikecal.progress import Progress
from spikecal.report.content import NOTHING
from spikecal.report.detections import look_at_detector
from spikecal.report.source import Source, from_result
from spikecal.tasks.choosing import choice_lines
from spikecal.tasks.detector_training import train_detector
from spikecal.tasks.outcome import (
    Line,
    Outcome,
    Table,
    asides,
    duration,
    percent,
    size,
    table_of,
    unreadable_facts,
    unreadable_lines,
)
from spikecal.tasks.pages import Written, carried, write_report
from spikecal.tasks.requests import Conversion, Evaluation, Reporting, Training
from spikecal.tasks.summary import COSTS, COSTS_CAPTION, cost_cells
from spikecal.tasks.task import Labelled, Looked, Part, Say
from spikecal.tasks.waiting import TIMES, TIMES_CAPTION, time_cells, waiting_lines
from spikecal.zoo.detectors import body_of, build_detector, is_detector, load_detector

TIMED = 2  # images of the timed pass that estimates come from: they are large


class Detection:
    """The task of torchvision's detectors, whose body is converted."""

    def labelled(self, data: str, split: str, root: Path | None) -> Labelled:
        """A dataset with boxes."""
        found = load_boxes(data, split)
        faults = found.faults
        facts = {"boxes": sum(len(target.boxes) for target in found.targets), "faults": faults.to_dict()}
        images = Data(name=data, images=found.images)
        return Labelled(images, len(found.classes), facts, faults.sentences(), faults.left_out)

    def part(self, model: str, pipeline: Plan) -> Part:
        """The body of a detector, for images of the size that the detector resizes them to."""
        detector = build_detector(model)
        transform: Any = getattr(detector, "transform", None)
        size = (min(transform.min_size), transform.max_size) if hasattr(transform, "min_size") else None
        card = Card(name=model, size=size)
        return Part(body_of(detector), card, pipeline.with_images(spiking.IMAGES), TIMED)

    def convert(self, asked: Conversion, progress: Progress | None, say: Say) -> Outcome:
        """Convert a detector's body, write it, and measure the detector on test images."""
        if asked.keep:
            raise ConfigError("--keep is not for detectors: leave it out, as everything but the body stays analog")
        if asked.data == "distilled":
            raise ConfigError("images cannot be distilled from detectors: give --data voc:PATH, coco:PATH or yolo:PATH")
        detector, images = load_detector(asked.model, asked.weights, asked.device), chosen_boxes(asked.data, "train")
        check_labels(asked.model, detector, asked.weights, images)
        if asked.strict:
            refuse_unreadable(images.name, images.faults.left_out)
        started = time.perf_counter()
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
        made.save(asked.output)  # before measuring: nothing from here on changes it
        held_out, found, why = _measured(made, asked, progress)
        if found:
            made.save(asked.output)
        page = None
        if asked.report is not None:
            page = report_conversion(asked.report, asked.output.name, made, held_out, found, why, progress)
        unreadable = {**images.faults.left_out, **made.unreadable, **_unreadable(found)}
        facts = {**asked.facts(made.body), "task": "detect", "seconds": seconds, "phases": made.body.timings.to_dict()}
        facts |= {"readout": made.body.snn.readout, "precision": {name: one.to_dict() for name, one in found.items()}}
        facts |= {"records": [asdict(record) for record in made.records]}
        facts |= {} if page is None else {"report": page.facts()}
        facts |= {} if held_out is None else {"test_faults": held_out.faults.to_dict()}
        facts |= {"faults": images.faults.to_dict(), "unreadable": unreadable_facts(unreadable)}
        parts: list[Table | Line] = [*asides(images.told())]
        parts += asides([] if held_out is None else held_out.told("test images"))
        parts += precision_tables(str(asked.output), found, timings(made.body))
        parts += choice_lines(made.body.origin.choices)
        parts += waiting_lines(timings(made.body))
        parts += unreadable_lines(made.unreadable | _unreadable(found))
        parts += asides([f"no summary: {why}"] if why and asked.test > 0 else [])
        parts += [] if page is None else page.lines()
        parts.append(Line(f"{asked.output}: {size(asked.output.stat().st_size)}, {duration(seconds)}"))
        return Outcome(facts, parts)

    def evaluate(self, asked: Evaluation, progress: Progress | None) -> Outcome:
        """Measure mAP of a detector with the bodies in a file, and with its own."""
        file, info = asked.file, inspect(asked.file)
        known, data = known_of(info.get("card"))
        model = asked.model or known
        if model is None:
            raise ConfigError(f"{file} holds the body of a detector: give the detector with --model")
        if asked.within is not None:
            raise ConfigError("--within is for classifiers: leave it out")
        if asked.exit is not None:
            raise ConfigError("--exit is for classifiers: leave it out")
        detector = detector_of(info.get("detector"), file, model, asked.weights, asked.device)
        bodies = {T: spiking.load(file, detector, T, neurons=asked.neurons) for T in asked.steps or sorted(info["T"])}
        test = _test_images(model, detector, replace(asked, data=asked.data or data))
        found = precisions(detector, bodies, test, progress)
        unreadable = _unreadable(found)
        if asked.strict:
            refuse_unreadable(test.name, unreadable)
        known_times = [timing(spiking.network_of(body)) for body in bodies.values()]
        facts: dict[str, Any] = {"file": str(file), "model": model, "task": "detect", "data": test.name}
        facts |= {"timing": [one.to_dict() for one in known_times]}
        facts |= {"precision": {name: one.to_dict() for name, one in found.items()}, "faults": test.faults.to_dict()}
        facts |= {"unreadable": unreadable_facts(unreadable)}
        parts: list[Table | Line] = [*asides(test.told()), *precision_tables(str(file), found, known_times)]
        parts += unreadable_lines(unreadable)
        return Outcome(facts, parts)

    def look(
        self, files: Sequence[tuple[Path, Source]], asked: Reporting, progress: Progress | None, say: Say
    ) -> list[Looked]:
        """Measure mAP, what both detectors find, and the errors and energy of the bodies."""
        return [_look(file, source, asked, progress, say) for file, source in files]

    def train(self, asked: Training, progress: Progress | None, say: Say) -> Outcome:
        """Train a detector, measure it on the test images, write its weights and its card."""
        return train_detector(asked, progress, say)


def known_of(card: Any) -> tuple[str | None, str | None]:
    """The detector that a file came from, and its data, as far as it records them. A file cannot name code to run."""
    name, data = (str(card.get(key) or "") for key in ("name", "data")) if isinstance(card, dict) else ("", "")
    return name if is_detector(name) else None, data if data.partition(":")[0] in KINDS else None


def _measured(
    made: spiking.Conversion, asked: Conversion, progress: Progress | None
) -> tuple[BoxData | None, dict[str, Precision], str]:
    """The detections in test images, which the conversion then keeps; or why there are none."""
    if asked.test == 0:
        return None, {}, "--test 0"
    try:
        held_out = chosen_boxes(asked.data, "test").sample(asked.test, asked.seed)
        found = precisions(made.analog, {T: made.at(T) for T in sorted(made.body.networks)}, held_out, progress)
    except (DataError, ConfigError) as error:
        return None, {}, str(error)
    made.body.describe(measured=measured_precision(held_out.name, found))
    return held_out, found, ""


def _look(file: Path, source: Source, asked: Reporting, progress: Progress | None, say: Say) -> Looked:
    if asked.images == 0:
        return Looked(source, why="--images 0")
    known, data = known_of(source.first.origin.card)
    model = asked.model or known
    try:
        if model is None:
            raise ConfigError(f"{file} holds the body of a detector without its name: give --model and --weights")
        return _look_at(file, source, model, replace(asked, data=asked.data or data), progress, say)
    except (ConfigError, DataError) as error:
        if any(given is not None for given in (asked.model, asked.data, asked.weights)):
            raise
        return Looked(source, why=str(error))


def _look_at(file: Path, source: Source, model: str, asked: Reporting, progress: Progress | None, say: Say) -> Looked:
    """Run the detector with the bodies in a file."""
    detector = detector_of(source.first.origin.detector, file, model, asked.weights, asked.device)
    bodies = {T: spiking.fit(network, detector, str(file)) for T, network in source.networks.items()}
    test = _test_images(model, detector, asked)
    found = precisions(detector, bodies, test, progress)
    unreadable = _unreadable(found)
    if asked.strict:
        refuse_unreadable(test.name, unreadable)
    for sentence in test.told():
        say(sentence)
    return Looked(source, look_at_detector(source, detector, test, *_apart(found), progress), unreadable)


def report_conversion(
    path: Path,
    name: str,
    made: spiking.Conversion,
    data: BoxData | None,
    found: dict[str, Precision],
    why: str,
    progress: Progress | None,
) -> Written:
    """Write the page about a conversion that has just ended."""
    source = from_result(name, made.body)
    if data is None:
        return write_report(path, [(source, NOTHING)], [carried(name, why)])
    return write_report(path, [(source, look_at_detector(source, made.analog, data, *_apart(found), progress))])


def _test_images(model: str, detector: nn.Module, asked: Evaluation | Reporting) -> BoxData:
    """Images to test a detector on, if they show what it was trained for."""
    test = chosen_boxes(asked.data, "test").sample(asked.images, asked.seed)
    check_labels(model, detector, asked.weights, test)
    if asked.strict:
        refuse_unreadable(test.name, test.faults.left_out)
    return test


def detector_of(rest: str | None, file: Path, model: str, weights: Path | None, device: str | None = None) -> nn.Module:
    """Build a detector by name. Without other weights, its own must be those that the file was made from."""
    detector = load_detector(model, weights, device)
    if weights is None and rest not in (None, spiking.rest_print(detector)):
        raise ConfigError(f"{file} was made from other weights than the published ones of {model}: give --weights")
    return detector


def precisions(
    detector: nn.Module, bodies: Mapping[int, nn.Module], data: BoxData, progress: Progress | None
) -> dict[str, Precision]:
    """mAP of the analog detector and of the others, by T, with the costs of their bodies."""
    return {
        "analog": spiking.evaluate(detector, data, progress),
        **{str(T): spiking.evaluate(body, data, progress) for T, body in bodies.items()},
    }


def measured_precision(data: str, found: Mapping[str, Precision]) -> dict[str, Any]:
    """What a file keeps of it, in the same places as for classifiers."""
    analog, spiking = _apart(found)
    return {
        "measure": MAP.key,
        "data": data,
        "split": "test",
        "images": analog.images,
        "ann": analog.map,
        "ann50": analog.map50,
        "networks": {
            str(T): {STORED: one.map, "map50": one.map50, "agreement": None, **stored_costs(one.energy)}
            for T, one in spiking.items()
        },
    }


def _apart(found: Mapping[str, Precision]) -> tuple[Precision, dict[int, Precision]]:
    return found["analog"], {int(T): one for T, one in found.items() if T != "analog"}


def precision_tables(title: str, found: Mapping[str, Precision], times: Sequence[Timing]) -> list[Table]:
    """One line per network: time, mAP, costs, and mAP per class; no table if nothing was measured."""
    if not found:
        return []
    first, after = next(iter(found.values())), {str(time.T): time_cells(time) for time in times}
    classes = {f"{name} %": name for name in first.classes}
    rows = [
        {"T": name, "mAP %": percent(one.map), "mAP50 %": percent(one.map50)}
        | after.get(name, {"energy %": "100"})
        | cost_cells(one.energy)
        | {column: percent(one.classes.get(c, 0.0)) for column, c in classes.items()}
        for name, one in found.items()
    ]
    order = ("T", *TIMES, "mAP %", "mAP50 %", *COSTS, *classes)
    caption = (
        f"{first.images:,} test images; mAP: over IoU 0.5 to 0.95; mAP50 and classes: at IoU 0.5; {TIMES_CAPTION}; "
        f"{COSTS_CAPTION}; both for the body alone"
    )
    return [table_of(title, order, rows, caption)]


def _unreadable(found: dict[str, Precision]) -> Unreadable:
    return {file: reason for one in found.values() for file, reason in one.unreadable.items()}
