"""Check that a detector and a dataset have the same classes."""

import json
from importlib import resources
from operator import attrgetter
from pathlib import Path

from torch import nn

from spikecal.detection.boxes import BoxData
from spikecal.errors import ConfigError
from spikecal.files import read_regular
from spikecal.zoo.models import EMBEDDED

MOST_CARD = 2**20  # bytes of the file beside weights
# where torchvision's heads state the number of their labels: RetinaNet and FCOS, SSD, Faster R-CNN
PLACES = (
    "head.classification_head.num_classes",
    "head.classification_head.num_columns",
    "roi_heads.box_predictor.cls_score.out_features",
)


def check_count(spec: str, detector: nn.Module, data: BoxData) -> None:
    """Raise if the detector has too few labels for the dataset."""
    there = labels_of(detector)
    if there is not None and there < data.labels:
        raise ConfigError(
            f"{spec} has {there} labels, including the background, but {data.name} needs {data.labels} "
            f"({', '.join(data.classes.values())}): give a detector, or weights, for that many"
        )


def check_labels(spec: str, detector: nn.Module, weights: Path | None, data: BoxData) -> None:
    """The same, and raise if the detector's weights are known to be for other classes."""
    check_count(spec, detector, data)
    learned = learned_classes(spec, weights)
    if learned and any(learned.get(label) != title for label, title in data.classes.items()):
        raise ConfigError(
            f"the weights of {spec} are for {', '.join(learned.values())}, but {data.name} has "
            f"{', '.join(data.classes.values())}: give --weights for this dataset"
        )


def labels_of(detector: nn.Module) -> int | None:
    """How many labels a detector distinguishes, including the background; None if its head does not state it."""
    for place in PLACES:
        try:
            return int(attrgetter(place)(detector))
        except AttributeError:
            continue
    return None


def learned_classes(spec: str, weights: Path | None) -> dict[int, str]:
    """The classes on the card beside the weights; None if there is no card."""
    try:
        if weights is not None:
            text = read_regular(f"{weights}.json", MOST_CARD).decode()
        else:
            card = Path(EMBEDDED[spec]).with_suffix(".json").name
            text = (resources.files("spikecal") / "demo" / card).read_text()
        return {int(label): str(title) for label, title in json.loads(text)["classes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
