"""The cost of a conversion: seconds by phase and stage, and bytes of a parameter set."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from spikecal.calibration.calibrators import Bias, Potential, Weights
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Joint, Spike, channels_of
from spikecal.graph.stages import Stage, partition
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
    """Seconds of a conversion: `phases` are lowering, thresholds and each T; `stages` split each T."""

    phases: dict[str, float]
    stages: list[StageTime]

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def timing(result: Result) -> Timing:
    """Where the time of a conversion went."""
    return Timing(result.timings.to_dict(), [StageTime(r.T, r.sweep, r.stage, r.seconds) for r in result.records])


def parameter_numbers(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, int]:
    """How many parameters each kind of calibration sets for images like `inputs`: every T has its own set."""
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
    return channels_of(op, shapes[stage.name])
