"""Count the operations of one layer, as the basis of energy."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.graph.graph import Graph
from spikecal.graph.ops import AdaptiveAvgPool, AvgPool, Conv, ConvTranspose, Input, Joint, Linear, Op, Reduce, Spike

Weighted = Conv | ConvTranspose | Linear


def fanout(op: Weighted, shape: Sequence[int]) -> Tensor:
    """How many products each input element of one image takes part in, with borders, stride, dilation and groups.

    For one channel it is the gradient of the summed output with all weights 1; every output channel of its group has
    as many. Its sum is the layer's MACs.
    """
    if isinstance(op, Linear):
        return torch.full(tuple(shape), float(op.weight.shape[0]), dtype=torch.float64)
    channels = op.weight.shape[1] if isinstance(op, ConvTranspose) else op.weight.shape[0] // op.groups
    one = type(op)(**{**op.config(), "groups": 1}, weight=torch.ones(1, 1, *op.weight.shape[2:], dtype=torch.float64))
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, 1, *shape[1:], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(one(x).sum(), x)
    return (channels * gradient[0]).expand(tuple(shape))


def nominal_macs(op: Weighted, read: Sequence[int], made: Sequence[int]) -> int:
    """Products of one image including those with padding: positions times the products at each."""
    positions = prod(read if isinstance(op, ConvTranspose) else made) // op.weight.shape[0]
    return positions * op.weight.numel()


def window_sums(op: Op, counts: Tensor) -> Tensor:
    """The sum over each window of a pool that gives the mean."""
    if isinstance(op, Reduce):
        return counts.sum(op.dims, keepdim=bool(op.keepdim))
    if isinstance(op, AvgPool):
        dims = len(op.kernel)
        kernel, stride, padding = op.kernel, op.stride, op.padding
        if dims == 1:  # torch's 1-D pool has no divisor
            counts, kernel, stride, padding = counts.unsqueeze(-2), (1, *kernel), (1, *stride), (0, *padding)
        pool: Any = F.avg_pool3d if dims == 3 else F.avg_pool2d
        summed: Tensor = pool(counts, kernel, stride, padding, op.ceil_mode, True, 1)
        return summed.squeeze(-2) if dims == 1 else summed
    assert isinstance(op, AdaptiveAvgPool)
    mean: Tensor = op(counts)
    dims = len(op.size)
    for i, (read, made) in enumerate(zip(counts.shape[-dims:], mean.shape[-dims:], strict=True)):
        window = [-(-(o + 1) * read // made) - o * read // made for o in range(made)]
        mean = mean * torch.tensor(window).reshape(-1, *(1,) * (dims - 1 - i)).to(mean)
    return mean.round()  # integers, despite rounding in the division


def stage_ends(graph: Graph) -> dict[str, str]:
    """Node -> the neurons or joint that its value goes to."""
    ends: dict[str, str] = {}
    for node in reversed(graph.nodes.values()):
        ends.setdefault(node.name, node.name)
        for name in node.inputs:
            if not isinstance(graph.nodes[name].op, (Input, Spike, Joint)):
                ends[name] = ends[node.name]
    return ends
