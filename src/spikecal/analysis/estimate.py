"""Estimate the stages and the cost of a conversion from one pass of the network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spikecal.calibration.expected import Expected, expected_energy, expected_rate
from spikecal.calibration.sweep import observe
from spikecal.clock import fastest
from spikecal.graph.graph import Graph
from spikecal.graph.joints import DEFAULT, LinearValues, arranged, linear_values
from spikecal.graph.lowering.lower import lower
from spikecal.graph.stages import Stage, partition
from spikecal.phases import MEASURED
from spikecal.pipeline import Pipeline, Plan
from spikecal.planning import passes, peak_bytes
from spikecal.progress import Silent
from spikecal.snn.execute import Shapes, shapes_of


@dataclass(frozen=True)
class Estimate:
    """Facts about every stage, time and memory of the conversion for one T, and energy of the network."""

    stages: list[dict[str, Any]]
    seconds: float
    bytes: int
    linear: LinearValues
    energy: Expected


def estimate(network: nn.Module, images: Tensor, keep: Sequence[str], T: int, plan: Plan) -> Estimate:
    """Lower the network and time a pass over `images`; raises `ConversionError` if it cannot be converted."""
    lowered = lower(network, (images[:2],), keep)
    graph, linear = arranged(lowered, (images,), DEFAULT), linear_values(lowered, (images,))
    stages, shapes = partition(graph), shapes_of(graph, (images,))
    seconds = fastest(lambda: graph.run(images)) / len(images) * passes(plan, T)
    facts = [_facts(stage, shapes) for stage in stages]
    energy = _energy(graph, images, shapes, T, plan.fixed)
    return Estimate(facts, seconds, peak_bytes(stages, shapes, T, _swept(plan.fixed)), linear, energy)


def _energy(graph: Graph, images: Tensor, shapes: Shapes, T: int, pipeline: Pipeline) -> Expected:
    """The expected energy, with the thresholds that the pipeline would find on these images."""
    rates = {}
    for name, seen in observe(graph, [(images,)], [shapes], Silent()).items():
        op: Any = graph.nodes[name].op
        theta = pipeline.threshold.within(pipeline.threshold.solve(seen, T, pipeline.quantiser), op.clip)
        rates[name] = expected_rate(seen, theta)
    return expected_energy(graph, shapes, rates, T)


def _swept(pipeline: Pipeline) -> int:
    """Images of the largest sweep."""
    return max((c.images for c in pipeline.calibrators), default=MEASURED)


def _facts(stage: Stage, shapes: Shapes) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "kind": stage.kind,
        "operations": [type(node.op).__name__ for node in stage.nodes],
        "shape": list(shapes[stage.name][1:]),
        "parameters": sum(tensor.numel() for node in stage.nodes for tensor in node.op.tensors().values()),
    }
