"""Networks whose layers of neurons all wait, without a search."""

import torch
from torch import nn

from spikecal import Pipeline, SpikingNetwork
from spikecal.calibration.images import Inputs
from spikecal.calibration.sweep import StageRecord
from spikecal.conversion import _lowered
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Spike
from spikecal.phases import Context, histograms, run_phases, set_neurons
from spikecal.progress import Silent


def context_of(model: nn.Module, images: list[Inputs], pipeline: Pipeline) -> Context:
    """What a conversion with analog joints, on images of the model's own precision, would share among its phases."""
    graph = _lowered(model, images, (), pipeline, "analog")
    return Context(
        ann=graph, images=images, pipeline=pipeline, seed=0, micro_batch=None, memory=10**9, records=False,
        progress=Silent(), workdir=None,
    )  # fmt: skip


def waiting(context: Context, T: int, wait: int) -> SpikingNetwork:
    """The network before its phases: neurons with thresholds and the half step of rounding."""
    network = SpikingNetwork(context.ann.clone(), T, dict.fromkeys(layers(context.ann), wait))
    dtype = context.images[0][0].dtype
    set_neurons(network, histograms(context)[0], context.pipeline, dtype, context.shapes, context.ranks)
    return network


def calibrated(
    model: nn.Module, images: torch.Tensor, pipeline: Pipeline, T: int, wait: int
) -> tuple[SpikingNetwork, list[StageRecord]]:
    """Converted with every layer waiting, and what the sweeps recorded."""
    context = context_of(model, [(image,) for image in images.split(1)], pipeline)
    network = waiting(context, T, wait)
    return network, run_phases(context, network, 0.0)


def layers(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes.values() if isinstance(node.op, Spike)]
