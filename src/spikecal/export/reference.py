"""The run of the network itself, step by step in global time, as the reference for exports."""

import torch
from torch import Tensor

from spikecal.export.simulate import Trains
from spikecal.snn.execute import Want
from spikecal.snn.network import SpikingNetwork


@torch.no_grad()
def trains(snn: SpikingNetwork, images: Tensor) -> Trains:
    """The levels of every layer and the output's currents, each at the global steps of its window."""
    wanted, levels = snn.graph.outputs()[0], dict[str, Tensor]()
    outputs = torch.empty(0)
    inputs = snn.input_values((images,))
    for stage, emission in snn.course((images,)).advance(
        inputs, snn.windows.end, last=True, want=Want.VALUE | Want.LEVELS
    ):
        start = snn.windows.starts[stage.name]
        if emission.levels is not None:
            levels[stage.name] = _placed(emission.levels.to(torch.int8), start, snn.T, snn.latency)
        if stage.name == wanted:
            current = stage.spiking and snn.readout == "current"
            value = emission.arriving if current else emission.value
            assert value is not None
            outputs = _placed(value, snn.latency - snn.T, snn.T, snn.latency)
    return Trains(outputs, levels)


def _placed(value: Tensor, start: int, T: int, latency: int) -> Tensor:
    """`[T or 1, N, ...]` steps at their place among all; later ones are ignored."""
    found = value.new_zeros(latency, *value.shape[1:])
    kept = min(T, latency - start)
    found[start : start + kept] = value.expand(T, *value.shape[1:])[:kept]
    return found
