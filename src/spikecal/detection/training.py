"""Train a detector with the recipes, checkpoints and loop of classifiers."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from spikecal.detection.boxes import BoxData
from spikecal.detection.feed import BoxFeed
from spikecal.detection.precision import evaluate
from spikecal.errors import ConfigError
from spikecal.progress import Progress
from spikecal.training.loop import EVERY, EpochRecord, Training, fit
from spikecal.training.recipes import DetectionRecipe, Recipe


def train(
    detector: nn.Module,
    name: str,
    data: BoxData,
    recipe: Recipe,
    checkpoint: Path,
    *,
    validation: BoxData | None = None,
    device: torch.device | str = "cpu",
    workers: int = 0,
    every: float = EVERY,
    progress: Progress | None = None,
    report: Callable[[EpochRecord], None] | None = None,
    strict: bool = False,
) -> Training:
    """Train `detector` in place, resuming from `checkpoint` if there is one; it ends in eval mode.

    `validation` images are measured after every epoch (mAP at IoU 0.5) and decide nothing.
    """
    if not isinstance(recipe, DetectionRecipe):
        raise ConfigError("this recipe is for classifiers: use coco or quick-detect, or a recipe based on them")
    device = torch.device(device)
    feed = BoxFeed(data, name, recipe, device, workers, strict)
    detector.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fit(
        detector,
        feed,
        feed.fingerprint(),
        checkpoint,
        device,
        measure=None if validation is None else lambda network: evaluate(network, validation).map50,
        every=every,
        progress=progress,
        report=report,
    )
