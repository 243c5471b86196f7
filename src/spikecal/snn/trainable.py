"""A spiking network for further training: the spikes are its own, with surrogate gradients."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from spikecal.devices import whatever_the_default
from spikecal.graph.ops import Joint, MaxPool, Spike
from spikecal.graph.stages import Stage
from spikecal.snn.execute import Emission, Memory, Want, emit
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.recording import Run


@runtime_checkable
class OverTime(Protocol):
    """A surrogate by what the neurons have fired, not by their potentials."""

    def over_time(self, levels: Tensor) -> Tensor:
        """The slope at every step, from the levels of all steps, `[T, N, ...]` both."""
        ...


# the slope of a step from 0 to 1, by the distance from it in units of theta
Surrogate = Callable[[Tensor], Tensor] | OverTime


def triangle(distance: Tensor) -> Tensor:
    """`max(0, 1 - |d|)`: the slope of a spike if the potential is within one threshold of firing."""
    return (1 - distance.abs()).clamp(min=0)


class Trainable(nn.Module):
    """A copy of a spiking network whose outputs have gradients in all of its parameters, for any training loop.

    `forward` is that of the network, spike for spike. Backwards, a level counts as a sum of steps, each with
    the slope of `surrogate`, and neurons reset by subtraction. A surrogate with a method `over_time` gets the levels of
    all steps and gives the slope of each. `snn` is the network itself: it can be run,
    evaluated and saved at any time. Units of max-pools, gains and the reach of signed neurons are not
    parameters; if max-pools count in units of thresholds, thresholds stay fixed.
    """

    def __init__(self, network: SpikingNetwork, surrogate: Surrogate = triangle) -> None:
        super().__init__()
        self.snn, self.surrogate = copy.deepcopy(network), surrogate
        self.snn.reset()
        self.snn.origin = network.origin.trained()
        fixed = {"gain", "unit", "reach"} | ({"theta"} if _counts_in_units(network) else set())
        for name, parameter in self.snn.named_parameters():
            parameter.requires_grad_(parameter.is_floating_point() and name.rpartition(".")[2] not in fixed)

    @whatever_the_default
    def forward(self, *inputs: Tensor, over_time: bool = False) -> Any:
        """Like the network: the mean over all T steps of the output. Memory grows with T."""
        snn = self.snn
        ending = partial(fire_with_slope, self.surrogate)
        values = snn.mean_outputs(snn.checked(inputs, over_time), snn.T, ending)
        return snn.graph.finish(values.__getitem__)

    def run(self, *inputs: Tensor, **settings: Any) -> Run:
        """The network's own `run`, without gradients: outputs after every step, spikes, trains."""
        return self.snn.run(*inputs, **settings)

    def save(self, path: str | Path) -> None:
        """Write the network in its present state."""
        self.snn.save(path)


def _counts_in_units(network: SpikingNetwork) -> bool:
    return any(isinstance(node.op, MaxPool) and node.op.unit is not None for node in network.graph.nodes.values())


def fire_with_slope(
    surrogate: Surrogate, stage: Stage, arriving: Tensor, steps: int, memory: Memory, want: Want, flush: int
) -> Emission:
    """What `emit` does, with gradients."""
    op = stage.end.op
    if isinstance(op, Joint):
        return emit(stage, arriving, steps, memory, want, flush)
    assert isinstance(op, Spike)
    cells = op.cells(arriving.ndim - 1)
    firing = _Firing(stage, steps, memory, flush, surrogate)
    value: Tensor = _Fire.apply(arriving, cells.theta, cells.bias, cells.v_init, cells.step_bias, firing)
    return Emission(arriving, steps, len(value), value)


@dataclass(frozen=True)
class _Firing:
    """What `_Fire` needs besides tensors. All steps of a stage run in one call."""

    stage: Stage
    steps: int
    memory: Memory
    flush: int
    surrogate: Surrogate

    def slope(self, charge: Tensor, t: int) -> Tensor:
        """Slope of the level of step t in the potential before firing, in units of theta: one step per level except 0.

        Neurons that round fire half a level earlier, or at their reach.
        """
        op, surrogate = self.stage.end.op, self.surrogate
        assert isinstance(op, Spike) and not isinstance(surrogate, OverTime)
        reach = op.cells(charge.ndim).reach
        early = 0.0 if op.neuron.floors else 0.5 if reach is None else 1 - reach[t]
        steps = (level - math.copysign(1, level) * early for level in op.neuron.alphabet if level)
        return sum((surrogate(charge - step) for step in steps), torch.zeros_like(charge))


class _Fire(torch.autograd.Function):
    """`u(t) = v(t-1) + J(t)`, `s(t) = level(u/theta)`, `v(t) = u(t) - theta s(t)`; what is passed on is `theta s(t)`.

    J is what arrives plus the bias. If the neurons wait w steps, J(1) is the sum of the first w + 1 steps that arrive,
    and J is zero in the last w steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        arriving: Tensor,
        theta: Tensor,
        bias: Tensor | None,
        v_init: Tensor | None,
        step_bias: Tensor | None,
        firing: _Firing,
    ) -> Tensor:
        want = Want.VALUE | Want.LEVELS | Want.POTENTIALS
        emission = emit(firing.stage, arriving, firing.steps, firing.memory, want, firing.flush)
        assert emission.value is not None and emission.levels is not None and emission.potentials is not None
        ctx.firing = firing
        ctx.shapes = [None if x is None else x.shape for x in (arriving, theta, bias, v_init, step_bias)]
        ctx.save_for_backward(theta, emission.levels, emission.potentials)
        return emission.value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        theta, levels, potentials = ctx.saved_tensors
        (passed_on,) = gradients
        by_charge = torch.empty_like(potentials)  # the gradient in each J
        by_theta = torch.zeros_like(theta)
        by_v = torch.zeros_like(potentials[0])  # in the potential after the step
        surrogate = ctx.firing.surrogate
        slopes = surrogate.over_time(levels) if isinstance(surrogate, OverTime) else None
        for t in range(len(levels) - 1, -1, -1):
            level = levels[t].to(potentials)
            charge = potentials[t] / theta + level
            slope = ctx.firing.slope(charge, t) if slopes is None else slopes[t].to(charge)
            difference = passed_on[t] - by_v
            by_theta += (difference * (level - slope * charge)).sum_to_size(theta.shape)
            by_v = by_v + difference * slope
            by_charge[t] = by_v
        wait = ctx.firing.memory.wait
        steps = torch.arange(ctx.firing.steps, device=theta.device)
        by_arriving = by_charge[(steps - wait).clamp(min=0)]  # steps waited for are part of the first
        found = (by_arriving, by_theta, by_arriving, by_v, by_arriving)
        return *(
            None if shape is None else gradient.sum_to_size(shape)
            for gradient, shape in zip(found, ctx.shapes, strict=True)
        ), None
