"""Detectors of the tables: their images, and their cells."""

import logging
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from spikecal.analysis.measures import MAP
from spikecal.clock import fastest
from spikecal.data.images import Unreadable, looked_at
from spikecal.detection.boxes import BoxData
from spikecal.detection.labels import check_labels
from spikecal.detection.precision import average_precision, detect_all, redrawn
from spikecal.detection.sources import load_boxes
from spikecal.detection.spiking import READOUT, convert
from spikecal.errors import ConfigError, refuse_unreadable
from spikecal.progress import Progress, Silent
from spikecal.reproduce.cells import FIXED
from spikecal.reproduce.subjects import Subject, Wish
from spikecal.reproduce.ways import PAPERS_JOINTS
from spikecal.workdir import fingerprint
from spikecal.zoo.detectors import DETECTORS, body_of, load_detector
from spikecal.zoo.models import EMBEDDED

if TYPE_CHECKING:
    from spikecal.reproduce.cells import Cell

log = logging.getLogger(__name__)
DRAWS, DRAWN_BY = 50, 0  # samples of test images, the same for all cells, and the seed that draws them


@dataclass(kw_only=True)
class Detector(Subject):
    """A detector with a spiking body, and its calibration and test images."""

    score = MAP
    beside = {"map50": "at IoU 0.5"}  # noqa: RUF012
    most_images = 128

    train: BoxData
    test: BoxData

    @classmethod
    def load(cls, spec: str, weights: Path | None, wish: Wish) -> Self:
        data = wish.data
        if data is None:
            raise ConfigError(f"{spec} comes with no images: give --data voc:PATH or --data coco:PATH")
        network, train = load_detector(spec, weights, wish.device), load_boxes(data, "train")
        check_labels(spec, network, weights, train)
        test = load_boxes(data, "test")
        for split, images in (("train", train), ("test", test)):  # warn about what a table leaves out
            if wish.strict:
                refuse_unreadable(f"{data}, {split}", images.faults.left_out)
            for sentence in images.faults.sentences():
                log.warning("%s, %s: %s", data, split, sentence)
        return cls(spec=spec, network=network, data=data, train=train, test=test, strict=wish.strict)

    @classmethod
    def has(cls, spec: str) -> bool:
        return spec in DETECTORS and spec in EMBEDDED

    @property
    def bn(self) -> bool:
        return True  # all detectors have BN

    @property
    def images(self) -> tuple[BoxData, BoxData]:
        return self.train, self.test

    @cached_property
    def model_print(self) -> str:
        state = self.network.state_dict()
        transform: Any = self.network.transform
        return fingerprint(state.values(), [list(state), list(transform.min_size), transform.max_size, READOUT])

    @cached_property
    def train_print(self) -> str:
        return _print(self.train)

    @cached_property
    def test_print(self) -> str:
        return _print(self.test)

    @cached_property
    def seconds_a_pass(self) -> float:
        """The passes of the backbone: the rest does not spike."""
        transform: Any = self.network.transform
        backbone: Any = self.network.backbone
        image = transform([self.train.image(0)])[0].tensors
        return fastest(lambda: backbone(image))

    def differences(self) -> list[str]:
        if not any(isinstance(module, nn.MaxPool2d) for module in body_of(self.network).modules()):
            return []
        said = (
            f"Pools: the body of {self.spec} keeps its max-pools; the paper replaces them by average pools in its "
            "ImageNet networks, where its detectors' bodies come from."
        )
        return [said]

    def measure(
        self, cell: "Cell", work: Path | None = None, progress: Progress | None = None, memory: int | None = None
    ) -> dict[str, Any]:
        progress = progress or Silent()
        if cell.pipeline is None:
            return self._precision(self.network, cell, progress)
        made = convert(
            self.network,
            self.train,
            cell.T,
            cell.pipeline.fixed,
            joints=PAPERS_JOINTS,
            count=cell.pipeline.fixed.images,
            seed=cell.seed,
            workdir=None if work is None else work / "conversion",
            memory=memory,
            progress=progress,
        )
        if self.strict:
            refuse_unreadable(self.data, made.unreadable)
        rate = statistics.fmean(record.rate for record in made.records if record.rate is not None)
        notes = [f"{record.stage}: {note}" for record in made.records for note in record.notes]
        return {**self._precision(made.at(cell.T), cell, progress), "rate": rate, "notes": notes}

    def _precision(self, detector: nn.Module, cell: "Cell", progress: Progress) -> dict[str, Any]:
        """COCO's mAP, mAP at IoU 0.5, and `drawn`: COCO's mAP on samples of the test images."""
        images = self.test.sample(cell.images, FIXED)
        unreadable: Unreadable = {}
        found, truth = detect_all(detector, images, unreadable, progress)
        if self.strict:
            refuse_unreadable(self.data, unreadable)
        precision = average_precision(found, truth, images.classes, unreadable)
        return {
            "score": precision.map,
            "map50": precision.map50,
            "classes": dict(precision.classes),
            "images": precision.images,
            "drawn": redrawn(found, truth, images.classes, DRAWS, DRAWN_BY),
        }


def _print(data: BoxData) -> str:
    """A hash of all boxes and of some images."""
    boxes = [t for target in data.targets for t in (target.boxes, target.labels, target.ignored)]
    return fingerprint([*looked_at(data.images), *boxes], len(data))
