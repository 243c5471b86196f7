"""The table of detectors: what it is measured on, and one cell of it."""

import logging
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from spikecal.clock import fastest
from spikecal.data.images import Unreadable, looked_at
from spikecal.detection.boxes import BoxData
from spikecal.detection.labels import check_labels
from spikecal.detection.precision import average_precision, detect_all, redrawn
from spikecal.detection.sources import load_boxes
from spikecal.detection.spiking import READOUT, convert
from spikecal.errors import ConfigError, refuse_unreadable
from spikecal.progress import Progress
from spikecal.workdir import fingerprint
from spikecal.zoo.detectors import load_detector

if TYPE_CHECKING:
    from spikecal.reproduce.cells import Cell

log = logging.getLogger(__name__)
DRAWS, DRAWN_BY = 50, 0  # sets of test images, the same for all cells, and the seed that draws them


@dataclass
class DetectorSubject:
    """A detector by name, with its calibration and test images; what `Subject` is for classifiers."""

    spec: str
    network: nn.Module
    data: str
    train: BoxData
    test: BoxData
    trained: bool = True
    bn: bool = True  # all of them have it

    @cached_property
    def model_print(self) -> str:
        state = self.network.state_dict()
        transform: Any = self.network.transform
        return fingerprint(state.values(), [list(state), list(transform.min_size), transform.max_size, READOUT])

    @cached_property
    def train_print(self) -> str:
        return _print(self.train)

    def calibration_print(self, source: str) -> str:
        return self.train_print  # there are no other sources for detectors

    @cached_property
    def test_print(self) -> str:
        return _print(self.test)

    @cached_property
    def seconds_a_pass(self) -> float:
        """Of the backbone for one image, roughly: what estimates are made from."""
        transform: Any = self.network.transform
        backbone: Any = self.network.backbone
        image = transform([self.train.image(0)])[0].tensors
        return fastest(lambda: backbone(image))


def load_detector_subject(spec: str, weights: Path | None, data: str | None, strict: bool = False) -> DetectorSubject:
    if data is None:
        raise ConfigError(f"{spec} comes with no images: give --data voc:PATH or --data coco:PATH")
    network, train = load_detector(spec, weights), load_boxes(data, "train")
    check_labels(spec, network, weights, train)
    test = load_boxes(data, "test")
    for split, images in (("train", train), ("test", test)):  # what a table is not measured on is worth a warning
        if strict:
            refuse_unreadable(f"{data}, {split}", images.faults.left_out)
        for sentence in images.faults.sentences():
            log.warning("%s, %s: %s", data, split, sentence)
    return DetectorSubject(spec, network, data, train, test)


def measure(
    cell: "Cell",
    subject: DetectorSubject,
    images: BoxData,
    work: Path | None,
    progress: Progress,
    memory: int | None,
) -> dict[str, Any]:
    """mAP of the analog detector, or of the one with a spiking body; "accuracy" is COCO's mAP."""
    if cell.pipeline is None:
        return _found(subject.network, images, progress)
    made = convert(
        subject.network,
        subject.train,
        cell.T,
        cell.pipeline,
        count=cell.pipeline.images,
        seed=cell.seed,
        workdir=None if work is None else work / "conversion",
        memory=memory,
        progress=progress,
    )
    rate = statistics.fmean(record.rate for record in made.records if record.rate is not None)
    notes = [f"{record.stage}: {note}" for record in made.records for note in record.notes]
    return {**_found(made.at(cell.T), images, progress), "rate": rate, "notes": notes}


def _found(detector: nn.Module, images: BoxData, progress: Progress) -> dict[str, Any]:
    """COCO's mAP, that at an overlap of 0.5, and `drawn`: COCO's on sets of images drawn from the test images."""
    unreadable: Unreadable = {}
    found, truth = detect_all(detector, images, unreadable, progress)
    precision = average_precision(found, truth, images.classes, unreadable)
    return {
        "accuracy": precision.map,
        "map50": precision.map50,
        "classes": dict(precision.classes),
        "images": precision.images,
        "drawn": redrawn(found, truth, images.classes, DRAWS, DRAWN_BY),
    }


def _print(data: BoxData) -> str:
    """A hash of all boxes and of some images."""
    boxes = [t for target in data.targets for t in (target.boxes, target.labels, target.ignored)]
    return fingerprint([*looked_at(data.images), *boxes], len(data))
