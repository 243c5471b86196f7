"""Choose the task: by its own name, by that of a model, or by what a file holds."""

from typing import Any

from spikecal.detection.sources import KINDS
from spikecal.errors import ConfigError
from spikecal.tasks.classification import Classification
from spikecal.tasks.detection import Detection
from spikecal.tasks.task import Task
from spikecal.zoo.detectors import is_detector

TASKS: dict[str, Task] = {"classify": Classification(), "detect": Detection()}


def task_of_data(data: str) -> Task:
    """The task that a dataset is for."""
    return TASKS["detect" if data.partition(":")[0] in KINDS else "classify"]


def task_of_model(model: str, named: str | None) -> Task:
    """The task of a named network."""
    return TASKS[_by_name(model, named)]


def task_of_file(file: str, holds_body: bool, card: Any, model: str | None, named: str | None) -> Task:
    """The task of the networks in a file: detection if it `holds_body` of a detector. A given model must agree."""
    said = str(card.get("name") or "") if isinstance(card, dict) else ""
    asked = _by_name(model or said, named)
    if holds_body and named == "classify":
        raise ConfigError(f"{file} holds the body of a detector: leave out --task, or give --task detect")
    if asked == "detect" and not holds_body:
        raise ConfigError(
            f"{file} holds a classifier, not the body of a detector: give its own --model, and leave out --task"
        )
    return TASKS["detect" if holds_body else "classify"]


def _by_name(model: str, named: str | None) -> str:
    if named == "classify" and is_detector(model):
        raise ConfigError(f"{model} is a detector: leave out --task, or give --task detect")
    return named or ("detect" if is_detector(model) else "classify")
