"""A bias per step, which corrects the mean error of a layer of neurons at that step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.update import Update
from spikecal.calibration.view import StageView, over_positions
from spikecal.errors import ConfigError
from spikecal.graph.ops import along
from spikecal.graph.stages import Stage
from spikecal.neurons import State
from spikecal.snn.execute import Memory, Want, current, emit


@dataclass(frozen=True, kw_only=True)
class TemporalBias(Calibrator):
    """`b[t, c] += rate * mean over images and positions of the error at step t`, step by step, in `rounds` passes.

    The error is x - s(t), the ANN's value minus the step's output (Forward Temporal Bias Correction, ECCV 2024). Every
    step is run, corrected, and run again before the next. A layer that waits w steps emits at step t based on what has
    arrived up to step t + w: that step's bias is corrected, but not those of the last w steps, where nothing arrives.
    """

    images: int = 256
    rounds: int = 3
    rate: float = 0.5
    label = "temporal bias"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ConfigError(f"temporal bias calibration needs at least one round, not {self.rounds}")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"the rate of temporal bias calibration must be above 0 and at most 1, not {self.rate}")

    def applies(self, stage: Stage) -> bool:
        return stage.spiking

    def passes(self, images: int, T: int) -> float:
        """Every step of every round runs twice, for the neurons alone."""
        return 0.6 * min(images, self.images) * self.rounds * T

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        calls = view.first_calls(self.images)
        bias = view.like.new_zeros(view.T, view.like.shape[view.channel])
        fits = view.at_once >= view.T and view.cache.make_room(view.T * _bytes(view, calls))
        for _ in range(self.rounds):
            runs = [_Steps(view, call, fits) for call in calls]
            for t in range(view.T):
                if t >= view.wait:  # the layer emits
                    bias[t] += self.rate * self._mean_error(view, runs, bias)
                for run in runs:
                    run.advance(bias)
        return Update(step_bias=bias)

    def _mean_error(self, view: StageView, runs: "list[_Steps]", bias: Tensor) -> Tensor:
        """`[C]`: the mean over all images with equal weights."""
        return view.mean((run.error(bias) for run in runs), self.images, bias.shape[1]).to(bias.dtype)


class _Steps:
    """The images of one call, one step at a time; each step can be tried before it is taken."""

    def __init__(self, view: StageView, call: range, fits: bool) -> None:
        """`fits`: whether the currents of all steps fit into memory."""
        self.view, self.call, self.now = view, call, 0
        self.target = view.target(call)
        self._height = view.spike.height(self.target.ndim)
        self._whole = view.current(call) if fits else None
        self._nodes, self._neurons = Memory(), Memory(view.wait)
        self._arriving = self._current()

    def _current(self) -> Tensor:
        """What arrives at this step, `[1, N, ...]`, without the bias being calibrated."""
        if self._whole is not None:
            return self._whole[self.now : self.now + 1] if len(self._whole) > 1 else self._whole
        values = {name: self.view.arriving(name, self.call, self.now, 1) for name in self.view.stage.inputs}
        return current(self.view.stage, values, 1, self.view.shapes[self.call.start], self._nodes)

    def _run(self, bias: Tensor, memory: Memory) -> Tensor:
        """What the neurons emit at this step."""
        biased = self._arriving + along(bias[self.now], self.view.channel, self.target.ndim)
        emission = emit(self.view.stage, biased, 1, memory, Want.TOTAL)
        assert emission.total is not None
        return emission.total * self._height

    def error(self, bias: Tensor) -> Tensor:
        """`[C]`: the error of this step if taken, summed over images, averaged over positions."""
        trial = replace(self._neurons, nodes={n: _copied(state) for n, state in self._neurons.nodes.items()})
        return over_positions(self.target - self._run(bias, trial), self.view.channel)

    def advance(self, bias: Tensor) -> None:
        self._run(bias, self._neurons)
        self.now += 1
        if self.now < self.view.T:
            self._arriving = self._current()


def _bytes(view: StageView, calls: Sequence[range]) -> int:
    """Bytes of one step of the stage's current for all images of these calls."""
    return sum(view.target(call).nbytes for call in calls)


def _copied(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}
