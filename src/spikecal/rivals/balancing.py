"""Thresholds taken from the spiking network itself: Spike-Norm's, and RMP's, which are a share of these."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.update import Update
from spikecal.calibration.view import StageView
from spikecal.errors import ConfigError
from spikecal.graph.ops import Spike
from spikecal.graph.stages import Stage
from spikecal.snn.windows import added_up


@dataclass(frozen=True, kw_only=True)
class SpikeNorm(Calibrator):
    """`theta` = the largest current that any neuron of the layer gets at any step, from the layers balanced before it.

    Over images, steps and neurons, in the spiking network as it runs, layer by layer (Sengupta et al., Going deeper in
    spiking neural networks: VGG and residual architectures, Frontiers in Neuroscience 2019). Their images are Poisson
    spikes, ours currents; their networks have no biases, ours count in what arrives. `factor` scales what is found:
    Hybrid Train starts from 0.7 of it, so that few steps are enough for spikes to get through. After a branch, as in
    residual blocks, its code leaves thresholds at 1 for spikes of 1: `residual="height"` takes the height of the spikes
    that arrive.
    """

    factor: float = 1.0
    residual: Literal["balanced", "height"] = "balanced"
    label = "spike-norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.factor <= 1:
            raise ConfigError(f"the factor must be above 0 and at most 1, not {self.factor}")
        if self.residual not in ("balanced", "height"):
            raise ConfigError(f"residual must be balanced or height, not {self.residual!r}")

    def applies(self, stage: Stage) -> bool:
        return balanced(stage)

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        theta = view.spike.height(1).max()
        if self.residual == "height" and view.branched and (height := view.arriving_height()) > 0:
            return Update(scale=(height / theta).reshape(1))
        largest = maximal_input(view, self.images)
        scale = (self.factor * largest / theta).reshape(1)
        return Update(scale=scale if largest > 0 else torch.ones_like(scale))


@dataclass(frozen=True, kw_only=True)
class ResidualThreshold(Calibrator):
    """`theta` = Spike-Norm's times the smallest factor that leaves almost no potential above theta.

    A neuron that resets by subtraction keeps what it cannot fire. With a lower threshold it answers in fewer steps,
    until it would have to fire more than once in a step: then the residual potential piles up above theta, and is lost.
    The least of the `grid` factors 1/grid, 2/grid, ..., 1 is taken that leaves at most a share `lost` of all charge
    there (Han, Srinivasan and Roy, RMP-SNN: Residual membrane potential neuron, CVPR 2020, where a neuron's output has
    to stay linear in its input; the share that counts as lost is ours).
    """

    lost: float = 0.01
    grid: int = 20
    label = "residual threshold"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lost < 1:
            raise ConfigError(f"the share of charge that may be lost must be in [0, 1), not {self.lost}")
        if self.grid < 1:
            raise ConfigError(f"the grid needs at least one value, not {self.grid}")

    def applies(self, stage: Stage) -> bool:
        return balanced(stage)

    def passes(self, images: int, T: int) -> float:
        """The neurons alone are run for every factor that is tried."""
        return 0.3 * min(images, self.images) * self.grid.bit_length() * T

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        largest = maximal_input(view, self.images)
        theta = view.spike.height(1)
        if largest <= 0:
            return Update(scale=torch.ones_like(theta[:1]))
        calls, scale = view.first_calls(self.images), (largest / theta.max()).reshape(1)
        low, high = 0, self.grid  # too little, and enough: the lower the threshold, the more is left over
        while high - low > 1:
            tried = (low + high) // 2
            over, whole = view.mean(self._left_over(view, calls, scale * tried / self.grid), self.images, 2).tolist()
            low, high = (low, tried) if over <= self.lost * whole else (tried, high)
        return Update(scale=scale * high / self.grid)

    def _left_over(self, view: StageView, calls: list[range], scale: Tensor) -> Iterator[Tensor]:
        """`[2]`: residual potential above theta, and positive charge, summed over images and neurons."""
        op = view.spike.scaled(scale)
        stage = replace(view.stage, nodes=(*view.stage.nodes[:-1], replace(view.stage.end, op=op)))
        for call in calls:
            passed = view.mean_output(call, stage)
            cells = op.cells(passed.ndim)
            charge = view.T * mean_current(view, call) + cells.own_charge(view.T)
            over = (charge - view.T * passed - cells.theta).clamp(min=0)
            yield torch.stack([over.sum(), charge.clamp(min=0).sum()]).double()


def balanced(stage: Stage) -> bool:
    """Whether a stage has neurons of activations: signed ones, of linear values, keep their thresholds."""
    return isinstance(stage.end.op, Spike) and stage.end.op.neuron.alphabet[0] >= 0


def maximal_input(view: StageView, images: int) -> Tensor:
    """The largest current of any image, step and neuron."""
    own = [part.amax() for call in view.first_calls(images) for part, _ in view.currents(call)]
    largest = torch.stack(own).amax()[None] if own else view.like.new_zeros(0)
    return view.collected(largest, 0).amax()


def mean_current(view: StageView, call: range) -> Tensor:
    """The mean over all steps `[N, ...]`."""
    return torch.stack([added_up(part, steps) for part, steps in view.currents(call)]).sum(0) / view.T
