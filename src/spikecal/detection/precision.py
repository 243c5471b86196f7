"""Mean average precision of a detector, by pycocotools."""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikecal.analysis.energy import Energy
from spikecal.data.images import Unreadable, UnreadableImage, none_readable
from spikecal.detection.boxes import BoxData, Target
from spikecal.errors import ConfigError, DataError
from spikecal.evaluation import Seen
from spikecal.progress import Progress, Silent, Watching, watched
from spikecal.ranks import current
from spikecal.workdir import fingerprint

Detections = dict[str, Tensor]  # output of torchvision's detectors for an image: boxes [n, 4], labels [n], scores [n]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """`map`: COCO's, the mean over IoU 0.5 to 0.95; `map50`: at IoU 0.5; `classes`: `map50` of each class.

    `energy` is that of a spiking body per image, including spikes; None for an analog detector.
    """

    map: float
    map50: float
    classes: Mapping[str, float]
    images: int
    unreadable: Unreadable = field(default_factory=dict)
    energy: Energy | None = field(default=None, repr=False)  # many lines

    def to_dict(self) -> dict[str, Any]:
        facts = {"map": self.map, "map50": self.map50, "classes": dict(self.classes), "images": self.images}
        return facts if self.energy is None else {**facts, "energy": self.energy.to_dict()}


def evaluate(detector: nn.Module, data: BoxData, progress: Watching = None) -> Precision:
    """Run a detector over all images, one at a time, and measure it; unreadable images are left out."""
    unreadable: Unreadable = {}
    with watched(progress) as watcher:
        found, truth = detect_all(detector, data, unreadable, watcher)
    return average_precision(found, truth, data.classes, unreadable)


def detect_all(
    detector: nn.Module, data: BoxData, unreadable: Unreadable, progress: Progress | None = None
) -> tuple[list[Detections], list[Target]]:
    """A detector's findings in the readable images, and the true boxes; other images go into `unreadable`."""
    progress, ranks = progress or Silent(), current()
    seen = Seen(ranks)
    ranks.agree("evaluate", lambda: {"network": fingerprint(detector.state_dict().values(), [])})
    progress.phase("detect", len(data), None)
    own: dict[str, Tensor] = {}  # what this rank finds, by the image's number and the kind
    truth: list[Target] = []
    for number, (target, image) in enumerate(readable_images(data, unreadable)):
        if number % ranks.count == ranks.rank:
            own |= {f"{number} {what}": value.cpu() for what, value in detect(detector, image).items()}
        ranks.beat()
        seen.add(image, target.boxes, target.labels, target.ignored)
        truth.append(target)
        progress.advance()
    seen.check("evaluate")
    found: list[Detections] = [{} for _ in truth]
    for tensors, _ in ranks.gathered(own):
        for name, value in tensors.items():
            place, _, what = name.partition(" ")
            found[int(place)][what] = value
    return found, truth


def readable_images(data: BoxData, unreadable: Unreadable) -> Iterator[tuple[Target, Tensor]]:
    """The readable images, with their boxes; the others are entered in `unreadable`."""
    for i, target in enumerate(data.targets):
        try:
            yield target, data.image(i)
        except UnreadableImage as error:
            unreadable[error.file] = error.reason
    if len(unreadable) == len(data):
        raise none_readable(data.name, unreadable)


@torch.no_grad()
def detect(detector: nn.Module, image: Tensor) -> Detections:
    """A detector's findings in one image [3, H, W], on the CPU."""
    home = next((p for p in detector.parameters() if p.is_floating_point()), image)
    found: Detections = detector([image.to(home.device, home.dtype)])[0]
    return {key: found[key].cpu() for key in ("boxes", "labels", "scores")}


def average_precision(
    found: Sequence[Detections],
    truth: Sequence[Target],
    classes: Mapping[int, str],
    unreadable: Unreadable | None = None,
) -> Precision:
    """mAP of findings in some images, compared with their boxes."""
    _demand_boxes(truth)
    facts: dict[str, Any] = {"images": len(truth), "unreadable": unreadable or {}}
    if not any(len(one["scores"]) for one in found):
        return Precision(map=0.0, map50=0.0, classes=dict.fromkeys(_present(truth, classes).values(), 0.0), **facts)
    precisions = _accumulated(_matched(found, truth, classes))
    valid = np.asarray((precisions > -1).any(axis=(0, 1)))
    by_class = {
        name: float(precisions[0, :, k].mean())
        for k, name in enumerate(classes[c] for c in sorted(classes))
        if valid[k]
    }
    return Precision(
        map=float(precisions[:, :, valid].mean()),
        map50=float(precisions[0][:, valid].mean()),
        classes=by_class,
        **facts,
    )


def redrawn(
    found: Sequence[Detections], truth: Sequence[Target], classes: Mapping[int, str], draws: int, seed: int
) -> list[float]:
    """mAP on `draws` bootstrap samples of these images, which shows its random variation.

    The samples depend only on the seed and on `truth`, so figures of several detectors can be compared
    sample by sample. A sample without any box is drawn again.
    """
    _demand_boxes(truth)
    if not any(len(one["scores"]) for one in found):
        return [0.0] * draws
    evaluation, generator = _matched(found, truth, classes), torch.Generator().manual_seed(seed)
    matches, count = list(evaluation.evalImgs), len(truth)  # class by class, image by image
    figures: list[float] = []
    while len(figures) < draws:
        drawn = torch.randint(count, (count,), generator=generator).tolist()
        evaluation.evalImgs = [matches[k + i] for k in range(0, len(matches), count) for i in drawn]
        precisions = _accumulated(evaluation)
        if (precisions > -1).any():
            figures.append(float(precisions[precisions > -1].mean()))
    return figures


def _demand_boxes(truth: Sequence[Target]) -> None:
    if not any((~target.ignored).any() for target in truth):
        raise DataError("the images have no boxes to measure a detector with")


def _matched(found: Sequence[Detections], truth: Sequence[Target], classes: Mapping[int, str]) -> Any:
    """pycocotools' comparison, image by image, of boxes of all sizes, up to a hundred per image."""
    rows = [
        (i, x0, y0, x1 - x0, y1 - y0, score, label)
        for i, one in enumerate(found)
        for (x0, y0, x1, y1), score, label in zip(
            one["boxes"].tolist(), one["scores"].tolist(), one["labels"].tolist(), strict=True
        )
    ]
    COCO, COCOeval = _tools()
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        known = COCO()
        known.dataset = _as_coco(truth, classes)
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(np.array(rows)), "bbox")
        asked = evaluation.params
        asked.areaRng, asked.areaRngLbl, asked.maxDets = asked.areaRng[:1], asked.areaRngLbl[:1], asked.maxDets[-1:]
        evaluation.evaluate()
    return evaluation


def _accumulated(evaluation: Any) -> np.ndarray[Any, Any]:
    """Precisions [overlaps, recalls, classes]; -1 for a class without boxes."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
    precisions: np.ndarray[Any, Any] = evaluation.eval["precision"][:, :, :, 0, 0]
    return precisions


def _as_coco(truth: Sequence[Target], classes: Mapping[int, str]) -> dict[str, Any]:
    annotations: list[dict[str, Any]] = []
    for i, target in enumerate(truth):
        for box, label, ignored in zip(
            target.boxes.tolist(), target.labels.tolist(), target.ignored.tolist(), strict=True
        ):
            width, height = box[2] - box[0], box[3] - box[1]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": label,
                    "bbox": [box[0], box[1], width, height],
                    "area": width * height,
                    "iscrowd": int(ignored),
                }
            )
    return {
        "info": {},
        "images": [{"id": i} for i in range(len(truth))],
        "categories": [{"id": label, "name": classes[label]} for label in sorted(classes)],
        "annotations": annotations,
    }


def _present(truth: Sequence[Target], classes: Mapping[int, str]) -> dict[int, str]:
    seen = {label for target in truth for label in target.labels[~target.ignored].tolist()}
    return {label: name for label, name in classes.items() if label in seen}


def _tools() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ModuleNotFoundError as error:
        raise ConfigError(
            "measuring a detector needs pycocotools, which is not installed: pip install pycocotools"
        ) from error
    return COCO, COCOeval
