"""Run a netlist here: the oracle for other simulators, and for tests without other packages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.export.netlist import (
    Clock,
    Conv,
    Delay,
    Flatten,
    Image,
    Linear,
    MaxPool,
    Netlist,
    Neurons,
    Node,
    Output,
    SumPool,
)
from spikecal.export.planes import frames
from spikecal.neurons import Cells

Arriving = Callable[[Node, Tensor], Tensor]


@dataclass(frozen=True)
class Trains:
    """The result of a network over all its steps: `outputs` `[latency, N, ...]` and each layer's levels, likewise."""

    outputs: Tensor
    levels: dict[str, Tensor]


def run_netlist(netlist: Netlist, images: Tensor) -> Trains:
    """Run a netlist with its clocks on images, rounded if it has a grid for them."""
    return simulate(netlist, frames(netlist.image.rounded(images), netlist.T, netlist.latency, 0))


@torch.no_grad()
def simulate(netlist: Netlist, frames: Tensor, arriving: Arriving | None = None) -> Trains:
    """Run all steps of every node, front to back, on `frames` `[latency, N, ...]`.

    `arriving` receives neurons and the output with their current, and returns the current to use.
    """
    last = {name: node.name for node in netlist.nodes.values() for name in node.inputs}
    values: dict[str, Tensor] = {}
    levels: dict[str, Tensor] = {}
    outputs = torch.empty(0)
    for node in netlist.nodes.values():
        inputs = [values[name] for name in node.inputs]
        outputs = frames if isinstance(node, Image) else _run(netlist, node, inputs, frames.shape[1], arriving)
        values[node.name] = outputs
        if isinstance(node, Neurons):
            levels[node.name] = outputs.to(torch.int8)
        for name in node.inputs:
            if last[name] == node.name:
                values.pop(name, None)
    return Trains(outputs, levels)


def _run(netlist: Netlist, node: Node, inputs: list[Tensor], images: int, arriving: Arriving | None) -> Tensor:
    if isinstance(node, Clock):
        schedule = (node.own + node.gate).reshape(-1, 1, node.shape[0], *(1,) * (len(node.shape) - 1))
        return schedule.expand(-1, images, *node.shape)
    x = inputs[0]
    for more in inputs[1:]:
        x = x + more
    if arriving is not None and isinstance(node, Neurons | Output):
        x = arriving(node, x)
    if isinstance(node, Neurons):
        return torch.stack([fired.clone() for fired in _fire(netlist, node, x)])
    if isinstance(node, Delay):
        return torch.cat([torch.zeros_like(x[: node.steps]), x[: -node.steps]])
    if isinstance(node, MaxPool):
        pooled = each_step(node, x.cumsum(0))
        return pooled - torch.cat([torch.zeros_like(pooled[:1]), pooled[:-1]])
    return each_step(node, x)


def _fire(netlist: Netlist, node: Neurons, current: Tensor) -> Iterator[Tensor]:
    reach = None if node.reach is None else node.reach.reshape(len(current), 1, -1, *(1,) * (current.ndim - 3))
    cells = Cells(theta=torch.ones((), dtype=current.dtype), reach=reach)
    state = node.neuron.start(cells, current[0])
    if not node.masked:
        yield from node.neuron.advance(current, state, cells, len(current))
        return
    for step, arriving in enumerate(current.split(1)):
        if netlist.open(node, step):
            own = cells if reach is None else replace(cells, reach=reach[step : step + 1])
            yield from node.neuron.advance(arriving, state, own, 1)
        else:
            state["v"] += arriving[0]
            yield torch.zeros_like(arriving[0])


def each_step(node: Node, x: Tensor) -> Tensor:
    """The output of a node without memory, or a pool of sums, for `[steps, N, ...]`."""
    steps, flat = x.shape[0], x.flatten(0, 1)
    if isinstance(node, Conv):
        flat = F.conv2d(flat, node.weight, node.bias, node.stride, node.padding, node.dilation, node.groups)
    elif isinstance(node, Linear):
        flat = F.linear(flat, node.weight, node.bias)
    elif isinstance(node, SumPool):
        flat = F.avg_pool2d(flat, node.kernel, node.stride, divisor_override=1)
    elif isinstance(node, MaxPool):
        flat = F.max_pool2d(flat, node.kernel, node.stride, node.padding, node.dilation, node.ceil_mode)
    elif isinstance(node, Flatten):
        flat = flat.flatten(1)
    return flat.unflatten(0, (steps, -1))
