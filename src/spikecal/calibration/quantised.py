"""The quantised network: what a spiking network computes if no spike comes early or late, in one pass instead of T."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spikecal.graph.graph import Graph
from spikecal.graph.ops import ChannelAffine, Joint, Op, Shapes, Spike, along, frozen
from spikecal.graph.stages import WEIGHTED
from spikecal.snn.network import weights_channels_last

Values = Mapping[str, Tensor]  # "node:tensor" -> the learned value; a threshold as its logarithm
SetThreshold = Callable[[Spike, Tensor], None]  # sets a layer's threshold and the matching half step of rounding


class Quantised(Spike):
    """An activation that `steps` steps can express: `theta/T N(z + shift)`, N the neuron's sum of levels.

    For integrate-and-fire with a half step of rounding: `theta/T clip(floor(T z/theta + 1/2), 0, T)`. Files never
    hold this operation: it is part of graphs that calibration aims at, not of spiking networks.
    """

    CONFIG: ClassVar[dict[str, Any]] = {**Spike.CONFIG, "steps": 1}
    TENSORS = (*Spike.TENSORS, "shift")
    steps: int
    shift: nn.Parameter | None

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        x = x if self.shift is None else x + along(self.shift, self.channel, x.ndim)
        value: Tensor = _Rounded.apply(x, self.height(x.ndim), self)
        return value


class _Rounded(torch.autograd.Function):
    """`theta/T N(z)` with a straight-through floor: the slope in z is 1 where N is not clipped, else 0.

    In theta, it is `N/T - z/theta` where N is not clipped, else `N/T` (Esser et al., Learned step size
    quantization, 2020): the half step of rounding grows with theta.
    """

    @staticmethod
    def forward(ctx: Any, current: Tensor, theta: Tensor, op: Quantised) -> Tensor:
        levels, slope = op.neuron.slope(current, op.cells(current.ndim), op.steps)
        means = levels.div_(op.steps)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(slope, torch.addcmul(means, slope, current / theta, value=-1))
            ctx.wide = theta.shape
        return means * theta

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        slope, by_theta = ctx.saved_tensors
        (gradient,) = gradients
        return gradient * slope, (gradient * by_theta).sum_to_size(ctx.wide), None


def learnable(graph: Graph, T: int, set_threshold: SetThreshold) -> dict[str, Tensor]:
    """Everything that a quantised network learns, taken from the graph of a spiking network.

    These are weights and biases, logarithms of thresholds, and what earlier sweeps added to neurons beyond the half
    step of rounding, as a shift of the current.
    """
    found: dict[str, Tensor] = {}
    for node in graph.nodes.values():
        op = node.op
        if isinstance(op, Spike):
            assert op.theta is not None
            found[f"{node.name}:theta"] = op.theta.detach().log()
            shift = _calibrated(op, T, set_threshold)
            if shift.any():
                found[f"{node.name}:shift"] = shift
        elif isinstance(op, (*WEIGHTED, ChannelAffine, Joint)):
            found |= {f"{node.name}:{name}": tensor.detach().clone() for name, tensor in op.tensors().items()}
    return found


def quantised(graph: Graph, T: int, values: Values, set_threshold: SetThreshold) -> Graph:
    """The graph of a spiking network as a quantised network with learned `values`."""
    result = graph.clone()
    for node in result.nodes.values():
        if isinstance(node.op, Spike):
            node.op = _rounding(node.op, T, values, node.name, set_threshold)
        else:
            _put(node.op, values, node.name)
    weights_channels_last(result)
    return result


def learned_by(graph: Graph, values: Values) -> dict[str, nn.Parameter]:
    """Where a quantised network holds `values`; a threshold as itself, not its logarithm."""
    names = ((node, name, f"{node.name}:{name}") for node in graph.nodes.values() for name in node.op.TENSORS)
    return {key: getattr(node.op, name) for node, name, key in names if key in values}


def put_into(graph: Graph, aim: Graph, set_threshold: SetThreshold) -> None:
    """Copy the learned values of the quantised network `aim` to the graph of a spiking network."""
    for name, node in graph.nodes.items():
        op, new = node.op, aim.nodes[name].op
        if isinstance(op, Spike):
            assert isinstance(new, Quantised) and new.theta is not None
            op.step_bias = None
            set_threshold(op, new.theta)
            if new.shift is not None:
                op.bias = frozen(new.shift if op.bias is None else op.bias + new.shift)
        else:
            for tensor, value in new.tensors().items():
                setattr(op, tensor, frozen(value))


def output_values(graph: Graph, *inputs: Tensor) -> dict[str, Tensor]:
    """The outputs of a quantised network, before any head.

    An output that is itself an activation is not rounded: a spiking network also reads it from its current.
    """
    ends = {name: graph.nodes[name] for name in graph.outputs()}
    sources = {name: end.inputs[0] if isinstance(end.op, Spike) else name for name, end in ends.items()}
    found = {name: value for name, value in graph.walk(*inputs) if name in sources.values()}
    return {
        name: Spike.forward(end.op, found[sources[name]]) if isinstance(end.op, Spike) else found[name]
        for name, end in ends.items()
    }


def _calibrated(op: Spike, T: int, set_threshold: SetThreshold) -> Tensor:
    """What sweeps added to neurons beyond the half step of rounding, per step; mean over positions, [C] or [1]."""
    plain = op.clone()
    plain.step_bias = None
    assert op.theta is not None
    set_threshold(plain, op.theta)
    beyond = (op.cells(op.ndim).own_charge(T) - plain.cells(op.ndim).own_charge(T)) / T
    return beyond.movedim(op.channel, 0).flatten(1).mean(1)


def _rounding(op: Spike, T: int, values: Values, name: str, set_threshold: SetThreshold) -> Quantised:
    most = math.inf if op.clip is None else op.clip / op.neuron.alphabet[-1]  # a clip bounds the threshold
    result = Quantised(
        clip=op.clip, channel=op.channel, ndim=op.ndim, neuron=op.neuron, steps=T, shift=values.get(f"{name}:shift")
    )
    set_threshold(result, values[f"{name}:theta"].exp().clamp(max=most))
    return result


def _put(op: Op, values: Values, name: str) -> None:
    for tensor in op.TENSORS:
        if f"{name}:{tensor}" in values:
            setattr(op, tensor, frozen(values[f"{name}:{tensor}"]))
