"""Images with boxes, for training, calibrating and measuring detectors, and faults in their files."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spikecal.data.datasets import as_image
from spikecal.data.folder import ImageFiles
from spikecal.data.images import Chosen, Images, Unreadable, shuffled
from spikecal.errors import DataError

log = logging.getLogger(__name__)

SLACK = 1.0  # pixels a box may be outside without a warning: some formats count pixels from 0, others from 1
NAMED = 3  # most files that a message lists

PAIRS = 'give detection.load_boxes("voc:PATH", "test"), or pairs (image, {"boxes": [[x0, y0, x1, y1]], "labels": [1]})'

Rows = Sequence[Sequence[float]]
Size = tuple[int, int]  # height, width


@dataclass(frozen=True, kw_only=True)
class Target:
    """The boxes of one image: `boxes` [n, 4] as x0, y0, x1, y1 in pixels, `labels` [n].

    `ignored` [n] are crowds and difficult ones: not learned, and neither hit nor miss when a detector is measured.
    """

    boxes: Tensor
    labels: Tensor
    ignored: Tensor


@dataclass
class Faults:
    """Faults in the files of a dataset. None of them stops the work, and none is silent."""

    left_out: Unreadable = field(default_factory=dict)  # file -> reason
    empty: list[str] = field(default_factory=list)  # images without a box: they stay, as examples of background
    clipped: dict[str, int] = field(default_factory=dict)  # file -> boxes clipped at the image's border
    missized: dict[str, tuple[Size, Size]] = field(
        default_factory=dict
    )  # file -> size in its annotation, and actual size
    dropped: dict[str, int] = field(default_factory=dict)  # file -> boxes without area, numbers, class or image

    def counts(self) -> dict[str, int]:
        return {
            "left_out": len(self.left_out),
            "empty": len(self.empty),
            "clipped": sum(self.clipped.values()),
            "missized": len(self.missized),
            "dropped": sum(self.dropped.values()),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "left_out": [{"file": file, "reason": reason} for file, reason in self.left_out.items()],
            "empty": self.empty,
            "clipped": self.clipped,
            "missized": [
                {"file": file, "stated": list(stated), "found": list(found)}
                for file, (stated, found) in self.missized.items()
            ],
            "dropped": self.dropped,
        }

    def sentences(self) -> list[str]:
        """One line for each kind that occurred."""
        reasons = [f"{file} ({reason})" for file, reason in self.left_out.items()]
        sizes = [f"{file} ({_shown(found)}, not {_shown(stated)})" for file, (stated, found) in self.missized.items()]
        told = {
            "left_out": ("left out as unusable", "left out as unusable", reasons),
            "empty": ("image without a box, kept", "images without a box, kept", self.empty),
            "missized": (
                "image whose size differs from its annotation",
                "images whose size differs from their annotations",
                sizes,
            ),
            "clipped": (
                "box clipped at the border of its image",
                "boxes clipped at the border of their image",
                list(self.clipped),
            ),
            "dropped": (
                "box dropped, as it has no area in its image, or no class or image",
                "boxes dropped, as they have no area in their image, or no class or image",
                list(self.dropped),
            ),
        }
        counts = self.counts()
        return [
            f"{counts[kind]:,} {one if counts[kind] == 1 else many}: {_few(files)}"
            for kind, (one, many, files) in told.items()
            if counts[kind]
        ]


@dataclass(frozen=True, kw_only=True)
class BoxData:
    """Images, their boxes, and the names of the labels; a detector's label 0 is the background."""

    name: str
    images: Images
    targets: Sequence[Target]
    classes: Mapping[int, str]
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        if len(self.images) == 0:
            reason = next((f": {file} ({why})" for file, why in self.faults.left_out.items()), "")
            raise DataError(f"{self.name} holds no usable images{reason}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> int:
        """How many labels a detector for this dataset has, including the background."""
        return max(self.classes, default=0) + 1

    def told(self, part: str = "") -> list[str]:
        """Faults in the files, one line per kind; `part` is the name of these images in the dataset."""
        return [f"{self.name}{part and f', {part}'}: {sentence}" for sentence in self.faults.sentences()]

    def image(self, index: int) -> Tensor:
        """An image for detectors: [3, H, W] in 0..1; raises `UnreadableImage` if the file is damaged."""
        found = self.images[index]
        return found if found.is_floating_point() else found.float() / 255

    def take(self, chosen: Sequence[int]) -> "BoxData":
        """Some images, in this order."""
        images: Images = Chosen(self.images, chosen)
        if isinstance(self.images, ImageFiles):
            images = ImageFiles([self.images.paths[i] for i in chosen])
        return replace(self, images=images, targets=[self.targets[i] for i in chosen])

    def sample(self, count: int | None, seed: int) -> "BoxData":
        """`count` images drawn by `seed`, in their stored order; all if there are no more."""
        if count is None or count >= len(self):
            return self
        return self.take(sorted(shuffled(len(self), seed)[:count].tolist()))


def as_boxes(data: Any) -> BoxData:
    """`data` itself, or made from a list or dataset of pairs: an image [3, H, W] in 0..1 and its boxes and labels."""
    if isinstance(data, BoxData):
        return data
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(f"{type(data).__name__} is not a dataset with boxes: {PAIRS}")
    if len(data) == 0:
        raise DataError(f"there are no images: {PAIRS}")
    images: list[Tensor] = []
    targets: list[Target] = []
    for i in range(len(data)):
        try:
            image, entry = data[i]
            boxes, labels = (torch.as_tensor(entry[key]) for key in ("boxes", "labels"))
            images.append(as_image(f"image {i}", image))
            boxes, labels = boxes.float().reshape(-1, 4), labels.long().reshape(len(boxes))
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
            raise DataError(f"item {i} is not an image with its boxes: {PAIRS}") from error
        targets.append(Target(boxes=boxes, labels=labels, ignored=torch.zeros(len(labels), dtype=torch.bool)))
    seen = sorted({int(label) for target in targets for label in target.labels})
    return BoxData(name="the images", images=images, targets=targets, classes={label: str(label) for label in seen})


class Collector:
    """Builds a dataset image by image, and records its faults."""

    def __init__(self, name: str) -> None:
        self.name, self.faults = name, Faults()
        self._paths: list[str] = []
        self._targets: list[Target] = []

    def leave_out(self, file: str, reason: str) -> None:
        self.faults.left_out[file] = reason

    def drop(self, file: str, boxes: int) -> None:
        self.faults.dropped[file] = self.faults.dropped.get(file, 0) + boxes

    def add(
        self,
        path: str,
        size: Size,
        boxes: Rows,
        labels: Sequence[int],
        ignored: Sequence[bool],
        stated: Size | None = None,
    ) -> None:
        """Add an image of `size` and its boxes as in the file, which may have `stated` a size."""
        if stated is not None and stated != size:
            self.faults.missized[path] = (stated, size)
        kept, chosen, clipped = clip(boxes, size)
        if clipped:
            self.faults.clipped[path] = clipped
        if len(chosen) < len(boxes):
            self.drop(path, len(boxes) - len(chosen))
        if not boxes:
            self.faults.empty.append(path)
        self._paths.append(path)
        self._targets.append(
            Target(
                boxes=torch.tensor(kept, dtype=torch.float32).reshape(-1, 4),
                labels=torch.tensor([labels[i] for i in chosen], dtype=torch.int64),
                ignored=torch.tensor([bool(ignored[i]) for i in chosen], dtype=torch.bool),
            )
        )

    def finish(self, classes: Mapping[int, str]) -> BoxData:
        for sentence in self.faults.sentences():
            log.info("%s: %s", self.name, sentence)  # users see it on the command line, or look at `faults`
        images = ImageFiles(self._paths)
        return BoxData(name=self.name, images=images, targets=self._targets, classes=classes, faults=self.faults)


def clip(boxes: Rows, size: Size) -> tuple[list[list[float]], list[int], int]:
    """The boxes within an image of `size`, their indices, and how many were clipped."""
    height, width = size
    kept, chosen, clipped = [], [], 0
    for i, box in enumerate(boxes):
        if len(box) != 4 or not all(math.isfinite(x) for x in box):
            continue
        low = [min(max(x, 0.0), float(most)) for x, most in zip(box[:2], (width, height), strict=True)]
        high = [min(max(x, 0.0), float(most)) for x, most in zip(box[2:], (width, height), strict=True)]
        if high[0] <= low[0] or high[1] <= low[1]:
            continue
        clipped += any(abs(a - b) > SLACK for a, b in zip([*low, *high], box, strict=True))
        kept.append([*low, *high])
        chosen.append(i)
    return kept, chosen, clipped


def _shown(size: Size) -> str:
    return f"{size[1]} x {size[0]}"


def _few(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
    return ", ".join(files[:NAMED]) + more
