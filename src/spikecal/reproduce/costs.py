"""The cost of a conversion: one figure of the tables of time and of space."""

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from spikecal.analysis.complexity import parameter_numbers
from spikecal.conversion import convert
from spikecal.graph.stages import partition
from spikecal.phases import MEASURED
from spikecal.progress import Progress
from spikecal.reproduce.cells import Cell
from spikecal.reproduce.ways import PAPERS_JOINTS

if TYPE_CHECKING:
    from spikecal.reproduce.classifiers import Classifier

TIMED_ROUNDS = 3


def timing(cell: Cell, subject: "Classifier", progress: Progress, memory: int | None) -> dict[str, Any]:
    """Seconds of a conversion's parts, and its sweeps in passes of the ANN over the same images."""
    assert cell.pipeline is not None
    calibration, _ = subject.calibration(cell.pipeline.fixed.images, cell.seed)
    settings: dict[str, Any] = {"T": cell.T, "pipeline": cell.pipeline, "seed": cell.seed, "memory": memory}
    result = convert(subject.network, calibration, joints=PAPERS_JOINTS, progress=progress, **settings)
    used = min(max(c.images for c in cell.pipeline.fixed.calibrators), len(calibration))
    images = subject.example(min(MEASURED, used))
    graph = result.snn.graph  # as ANN: batch normalisation folded, channels-last
    rounds = []
    with torch.no_grad():
        for _ in range(TIMED_ROUNDS):
            started = time.perf_counter()
            graph.run(images)
            rounds.append(time.perf_counter() - started)
    ann = statistics.median(rounds) * used / len(images)
    seconds = result.timings.steps[cell.T]
    return {
        "seconds": seconds,
        "thresholds": result.timings.thresholds,
        "ann_pass": ann,
        "passes": seconds / ann,
        "images": used,
    }


def space(subject: "Classifier") -> dict[str, Any]:
    """How many parameters each kind of calibration changes: every T has its own set."""
    numbers = parameter_numbers(subject.graph, (subject.example(1),))
    named = {kind.capitalize(): count for kind, count in numbers.items()}
    return {**named, "stages": len(partition(subject.graph))}
