"""The reference run of a network in integers: int64 sums, and accumulators that saturate."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.export.integers import Integers
from spikecal.export.netlist import (
    Clock,
    Conv,
    Delay,
    Flatten,
    Image,
    Linear,
    Netlist,
    Neurons,
    Output,
    SumPool,
)
from spikecal.export.planes import frames
from spikecal.export.simulate import Trains


@dataclass(frozen=True)
class Accumulated:
    """The result of an integer run: its trains, and how often a potential left the accumulator's range."""

    trains: Trains
    saturated: int


def run_integers(made: Integers, images: Tensor, width: int = 32) -> Accumulated:
    """The network on images as it was trained on, in accumulators of `width` bits."""
    return accumulate(made, made.image(images), width)


@torch.no_grad()
def accumulate(made: Integers, images: Tensor, width: int = 32) -> Accumulated:
    """Run the network on images in integers, with int64 sums and saturating accumulators, without any floats."""
    netlist, units, limit = made.netlist, made.units, 2 ** (width - 1) - 1
    values: dict[str, Tensor] = {netlist.image.name: frames(images.long(), netlist.T, netlist.latency, 0)}
    readers = {name: node.name for node in netlist.nodes.values() for name in node.inputs}
    levels: dict[str, Tensor] = {}
    saturated = 0
    for node in netlist.nodes.values():
        if isinstance(node, Image):
            continue
        if isinstance(node, Clock):
            unit = units[readers[node.name]]
            schedule = ((node.own + node.gate) * unit).round().long()
            values[node.name] = schedule.reshape(-1, 1, node.shape[0], *(1,) * (len(node.shape) - 1))
            continue
        x = sum(values[name] for name in node.inputs)
        assert isinstance(x, Tensor)
        if isinstance(node, Conv | Linear):
            values[node.name] = _integer_sums(node, x, units.get(readers[node.name], torch.ones(1).double()))
        elif isinstance(node, SumPool):
            sums = _windows(x.flatten(0, 1), node.kernel, node.stride, (0, 0), (1, 1)).sum((4, 5))
            values[node.name] = sums.unflatten(0, x.shape[:2])
        elif isinstance(node, Flatten):
            values[node.name] = x.flatten(2)
        elif isinstance(node, Output):
            values[node.name] = x
        elif isinstance(node, Delay):
            values[node.name] = torch.cat([torch.zeros_like(x[: node.steps]), x[: -node.steps]])
        elif isinstance(node, Neurons):
            fired, over = _fire(netlist, node, x, units[node.name], limit)
            values[node.name], saturated = fired, saturated + over
            levels[node.name] = fired.to(torch.int8)
    outputs = values[netlist.output.name].double() / units[netlist.output.name].double()
    return Accumulated(Trains(outputs, levels), saturated)


def _fire(netlist: Netlist, node: Neurons, x: Tensor, unit: Tensor, limit: int) -> tuple[Tensor, int]:
    """The levels of neurons for integer currents `[latency, N, C, ...]`, and how often a potential left its range."""
    sides = (1,) * (len(node.shape) - 1)
    theta = unit.expand(node.shape[0]).reshape(-1, *sides)
    reaches = None if node.reach is None else node.reach.double().reshape(len(x), -1, *sides) * theta
    signed, theta = node.neuron.alphabet[0] < 0, theta.long()
    v, fired, saturated = torch.zeros_like(x[0]), list[Tensor](), 0
    for step, current in enumerate(x):
        v = v + current
        saturated += int((v.abs() > limit).sum())
        v = v.clamp(-limit, limit)
        if not netlist.open(node, step):
            level = torch.zeros_like(v)
        elif signed:
            level = _signed(v, theta / 2 if reaches is None else reaches[step])
        else:
            level = (v >= theta).long()
        fired.append(level)
        v = v - theta * level
    return torch.stack(fired), saturated


def _signed(v: Tensor, reach: Tensor) -> Tensor:
    """+1 where `v >= reach` and -1 where `v < -reach`; potentials are integers, so integer bounds suffice."""
    return (v >= reach.ceil().long()).long() - (v < -reach.floor().long()).long()


def _integer_sums(node: Conv | Linear, x: Tensor, unit: Tensor) -> Tensor:
    by_row = unit.expand(len(node.weight))
    weight = (node.weight * by_row.reshape(-1, *(1,) * (node.weight.ndim - 1))).round().long()
    bias = 0 if node.bias is None else (node.bias * by_row).round().long()
    if isinstance(node, Linear):
        return x @ weight.T + bias
    dense = node.dense()
    weight = (dense.weight * by_row.reshape(-1, 1, 1, 1)).round().long()
    kernel = (weight.shape[2], weight.shape[3])
    windows = _windows(x.flatten(0, 1), kernel, node.stride, node.padding, node.dilation)  # [B, C, h, w, kh, kw]
    columns = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    found = (columns @ weight.flatten(1).T + bias).permute(0, 3, 1, 2)
    return found.unflatten(0, x.shape[:2])


def _windows(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for place, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + place, (size - 1) * gap + 1, step)[..., ::gap]
    return x
