"""Bounds of values at one step, which determine the size of gates and the width of accumulators."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spikecal.export.netlist import Clock, Conv, Flatten, Image, Linear, Neurons, Node, SumPool

Range = tuple[Tensor, Tensor]  # least and greatest, `[C]` each, in float64


def added(ranges: Sequence[Range]) -> Range:
    """Of a sum of values."""
    return torch.stack([low for low, _ in ranges]).sum(0), torch.stack([high for _, high in ranges]).sum(0)


def range_of(node: Node, inputs: Sequence[Range]) -> Range:
    """Of a node's value, from those of its inputs."""
    if isinstance(node, Image):
        return _with_zero((node.low.double(), node.high.double()))  # it is zero at the end
    if isinstance(node, Neurons):
        one = torch.ones(node.shape[0], dtype=torch.double)
        return one * node.neuron.alphabet[0], one * node.neuron.alphabet[-1]
    if isinstance(node, Clock):
        schedule = (node.own + node.gate).double()
        return _with_zero((schedule.amin(0), schedule.amax(0)))
    low, high = _with_zero(added(inputs))  # inputs are silent outside of their windows, and padding is 0
    if isinstance(node, Conv | Linear):
        low, high = _weighted(node, low, high)
    elif isinstance(node, SumPool):
        size = node.kernel[0] * node.kernel[1]
        low, high = low * size, high * size
    elif isinstance(node, Flatten):
        places = node.shape[0] // len(low)
        low, high = low.repeat_interleave(places), high.repeat_interleave(places)
    return low, high  # also of a max-pool: no increment exceeds the largest input


def _weighted(node: Conv | Linear, low: Tensor, high: Tensor) -> Range:
    weight = node.dense().weight.double().flatten(2) if isinstance(node, Conv) else node.weight.double().unsqueeze(2)
    up, down = weight.clamp(min=0).sum(2), weight.clamp(max=0).sum(2)
    bias = 0.0 if node.bias is None else node.bias.double()
    return up @ low + down @ high + bias, up @ high + down @ low + bias


def _with_zero(found: Range) -> Range:
    return found[0].clamp(max=0), found[1].clamp(min=0)


def power_of_two(least: Tensor) -> Tensor:
    """The smallest powers of two that are not below these positive numbers."""
    return torch.exp2(torch.ceil(torch.log2(least)))
