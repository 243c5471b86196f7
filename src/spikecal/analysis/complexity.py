"""What a conversion costs: seconds by phase and stage, bytes of a parameter set, and images."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from spikecal.analysis.evaluate import evaluate
from spikecal.calibration.calibrators import Bias, Calibrator, Potential, Weights
from spikecal.conversion import convert
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Joint, Spike
from spikecal.graph.stages import Stage, partition
from spikecal.pipeline import Pipeline, resolve
from spikecal.progress import Progress
from spikecal.result import Result
from spikecal.snn.execute import Shapes, shapes_of

FLOAT = 4  # bytes


@dataclass(frozen=True)
class StageTime:
    T: int
    sweep: int
    stage: str
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Seconds of a conversion: `phases` are lowering, thresholds and each T; `stages` what of a T each stage took."""

    phases: dict[str, float]
    stages: list[StageTime]

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def timing(result: Result) -> Timing:
    """Where the time of a conversion went."""
    return Timing(result.timings.to_dict(), [StageTime(r.T, r.sweep, r.stage, r.seconds) for r in result.records])


def parameter_numbers(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, int]:
    """How many numbers each kind of calibration sets for images like `inputs`: every T has its own set of them."""
    stages, shapes = partition(graph), shapes_of(graph, inputs)
    return {
        "bias": sum(_channels(stage, shapes) for stage in stages if Bias().applies(stage)),
        "potential": sum(prod(shapes[stage.name][1:]) for stage in stages if Potential().applies(stage)),
        "weights": sum(
            node.op.tensors()["weight"].numel()
            for stage in stages
            if Weights().applies(stage)
            for node in stage.weighted()
        ),
    }


def parameter_bytes(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, int]:
    """The same in bytes of float32."""
    return {kind: FLOAT * numbers for kind, numbers in parameter_numbers(graph, inputs).items()}


def _channels(stage: Stage, shapes: Shapes) -> int:
    op = stage.end.op
    assert isinstance(op, (Spike, Joint))
    return shapes[stage.name][op.channel]


def accuracy_against_images(
    model: nn.Module,
    images: Any,
    test: Any,
    counts: Sequence[int],
    *,
    T: int = 8,
    pipeline: Pipeline | str = "lcp",
    seeds: Sequence[int] = (0, 1, 2),
    progress: Progress | None = None,
) -> dict[int, list[float]]:
    """Accuracy on `test` after calibration with so many images, for every seed that chooses them.

    Thresholds keep their own images: the calibrators' are what is varied, as in the paper's study.
    """
    found: dict[int, list[float]] = {}
    for count in counts:
        varied = resolve(pipeline).changed(Calibrator, images=count)
        networks = (convert(model, images, T=T, pipeline=varied, seed=seed, progress=progress) for seed in seeds)
        found[count] = [evaluate(result.snn, test, progress=progress).accuracy[-1] for result in networks]
    return found
