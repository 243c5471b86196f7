"""Calibrators: each looks at one stage and returns what to change, without changing anything itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from spikecal.calibration.samples import Sample, Samples
from spikecal.calibration.update import Update
from spikecal.calibration.view import StageView
from spikecal.errors import ConfigError
from spikecal.graph.ops import Op, Spike
from spikecal.graph.stages import Stage
from spikecal.settings import check_types, in_python
from spikecal.snn.execute import Shapes

CHECKS, PATIENCE = 50, 5  # measurements of the held-out loss, and how many in a row may show no fall
FALLS = 1e-3  # relative fall that counts
LOOKED_AT = 32  # held-out images at once
POWER_STEPS = 10  # of the search for the steepest direction; costs about as much as twenty iterations


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """Base. `images` is how many it looks at; `label` is its name in records, by default that of the class.

    `guarded` ones are undone if they raise the error; those with `learns` change weights.
    """

    images: int = 128
    label: ClassVar[str] = ""
    guarded: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.label = cls.label or cls.__name__

    def __post_init__(self) -> None:
        check_types(type(self), in_python(self), f"{self.label} calibration")
        if self.images < 1:
            raise ConfigError(f"{self.label} calibration needs at least one image, not {self.images}")

    def applies(self, stage: Stage) -> bool:
        """Whether it applies to this stage; by default, to all stages with neurons."""
        return stage.spiking

    def passes(self, images: int, T: int) -> float:
        """Approximate cost in passes of the ANN over one image, besides simulating every stage, for estimates."""
        return 0.0

    def solve(self, view: StageView) -> Update:
        """What to change of the stage, without changing it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Bias(Calibrator):
    """`b_c += mean over images and positions of (x - mean spikes)` (paper, LCP)."""

    label = "bias"

    def applies(self, stage: Stage) -> bool:
        return stage.spiking or stage.parametric()

    def solve(self, view: StageView) -> Update:
        return Update(bias=view.mean_error(self.images, "channel"))


@dataclass(frozen=True, kw_only=True)
class Potential(Calibrator):
    """`v(0) += T mean over images of (x - mean spikes)`, per neuron or per channel (paper, PC)."""

    per: Literal["neuron", "channel"] = "neuron"
    label = "potential"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("neuron", "channel"):
            raise ConfigError(f"potentials must be per 'neuron' or 'channel', not per {self.per!r}")

    def applies(self, stage: Stage) -> bool:
        return stage.spiking

    def solve(self, view: StageView) -> Update:
        return Update(v_init=view.T * view.mean_error(self.images, self.per))


@dataclass(frozen=True, kw_only=True)
class Weights(Calibrator):
    """SGD on `||x - theta/T clip(floor((T (W s_in + b) + v(0)) / theta), 0, T)||^2` over W (paper, WC).

    `s_in` are the mean incoming spikes, so an iteration is one pass, not T; the floor has gradient 1. The loss is
    summed over all values of an image and averaged over the batch. At a joint there is no neuron and the loss is of the
    mean current. In stages where SGD would diverge, its rate is lowered (`stable_rate`).

    `held_out` is the share of the images that weights are not learned from: a stage stops once the loss on them no
    longer falls, and keeps the best weights. At 0, as in the paper, it learns from all images in all iterations.
    """

    images: int = 1024
    iterations: int = 5000
    batch: int = 32
    lr: float = 1e-5
    momentum: float = 0.9
    optimiser: Literal["sgd", "adam"] = "sgd"
    held_out: float = 0.0
    label = "weights"
    guarded = True
    learns = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1 or self.batch < 1:
            raise ConfigError("weights calibration needs at least one iteration of at least one image")
        if not self.lr > 0:
            raise ConfigError(f"the learning rate must be positive, not {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), not {self.momentum}")
        if self.optimiser not in ("sgd", "adam"):
            raise ConfigError(f"the optimiser must be 'sgd' or 'adam', not {self.optimiser!r}")
        if not 0 <= self.held_out <= 0.5:
            raise ConfigError(f"the share of held-out images must be in [0, 0.5], not {self.held_out}")

    def applies(self, stage: Stage) -> bool:
        return bool(stage.weighted())

    def passes(self, images: int, T: int) -> float:
        return 3.0 * self.iterations * self.batch

    def solve(self, view: StageView) -> Update:
        stage = view.stage
        learned = {node.name: node.op.tensors()["weight"].clone().requires_grad_() for node in stage.weighted()}
        parameters = list(learned.values())
        samples, held = view.mean_samples(self.images).split(self.held_out)
        optimiser: torch.optim.Optimizer
        if self.optimiser == "sgd":
            rate = self.stable_rate(view, samples, learned)
            optimiser = torch.optim.SGD(parameters, rate, self.momentum)
        else:
            optimiser = torch.optim.Adam(parameters, self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.iterations)
        best = Best()
        for number in range(1, self.iterations + 1):
            optimiser.zero_grad(set_to_none=True)
            for sample, share in samples.draw(self.batch):
                with torch.enable_grad():
                    current = mean_current(stage, sample, learned)
                slope = 2 * share / len(current)  # of squares, summed over each image
                current.backward(excess(stage.end.op, current.detach(), sample.target, view.T).mul_(slope))
            samples.add_up(parameters)
            optimiser.step()
            schedule.step()
            if held is not None and number % max(1, self.iterations // CHECKS) == 0:
                best.look(held_out_loss(stage, held, learned, view.T), learned)
                if best.in_vain == PATIENCE and number < self.iterations:
                    view.notes.append(f"weights: the held-out loss no longer fell, stopped after {number:,} iterations")
                    break
        return Update(weights=best.weights or {name: weight.detach() for name, weight in learned.items()})

    def stable_rate(self, view: StageView, samples: Samples, learned: dict[str, Tensor]) -> float:
        """`lr`, or half the lowest rate at which SGD diverges, if `lr` is above that.

        With momentum m it diverges on a quadratic of curvature c at rates above 2 (1 + m) / c. The loss is a sum over
        positions, so large images make it steep: the paper's rate diverges on some (docs/explanation/method.md).
        """
        steepest = curvature(view.stage, samples.first(self.batch), learned, view.seed)
        if self.lr * steepest < 2 * (1 + self.momentum):
            return self.lr
        rate = (1 + self.momentum) / steepest
        view.notes.append(f"weights would diverge at a learning rate of {self.lr:g}: used {rate:.2g}")
        return rate


@dataclass
class Best:
    """The weights of the least loss so far, and how often it has not fallen since."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    loss: float = math.inf
    in_vain: int = 0

    def look(self, loss: float, weights: Mapping[str, Tensor]) -> None:
        self.in_vain += 1
        if loss < self.loss:
            self.in_vain = 0 if loss < (1 - FALLS) * self.loss else self.in_vain
            self.loss, self.weights = loss, {name: weight.detach().clone() for name, weight in weights.items()}


@torch.no_grad()
def held_out_loss(stage: Stage, held: Samples, weights: dict[str, Tensor], T: int) -> float:
    """The loss on images that nothing is learned from."""
    end, losses = stage.end.op, []
    for sample in held.parts(LOOKED_AT):
        output = mean_current(stage, sample, weights)
        if isinstance(end, Spike):
            cells = end.cells(output.ndim)
            output = end.neuron.closed_form(output, cells, T) * (cells.theta / T)
        losses.append((output - sample.target).square().sum(dtype=torch.float64))
    return held.total(losses)


def mean_current(stage: Stage, sample: Sample, weights: dict[str, Tensor]) -> Tensor:
    """What reaches a stage's neurons, or passes its joint, for mean inputs and with `weights` instead of its own."""
    current = mean_values(stage, sample.inputs, sample.shapes, weights)[stage.end.inputs[0]]
    return current if isinstance(stage.end.op, Spike) else stage.end.op(current)


def mean_values(
    stage: Stage, inputs: Mapping[str, Tensor], shapes: Shapes, weights: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, Tensor]:
    """The values before a stage's end for mean inputs `[N, ...]` and with `weights` instead of its own."""
    values = dict(inputs)
    for node in stage.nodes[:-1]:
        arguments = tuple(values[name] for name in node.inputs)
        settings = {"shapes": [arguments[0].shape, *(shapes[name] for name in node.shape_refs)]}
        weight = {"weight": weights[node.name]} if node.name in weights else {}
        values[node.name] = torch.func.functional_call(node.op, weight, arguments, settings)
    return values


def curvature(stage: Stage, sample: Sample, weights: dict[str, Tensor], seed: int) -> float:
    """The largest eigenvalue of the loss's second derivative in the weights if no count is clipped: an upper bound.

    With J the derivative of the current, it is that of 2 J'J / N, found by power iteration.
    """

    def arriving(learned: dict[str, Tensor]) -> Tensor:
        return mean_current(stage, sample, learned)

    generator = torch.Generator().manual_seed(seed)
    given = {name: weight.detach() for name, weight in weights.items()}
    direction = {name: torch.randn(w.shape, generator=generator).to(w) for name, w in given.items()}
    current, back = torch.func.vjp(arriving, given)[:2]
    for _ in range(POWER_STEPS):
        length = _length(direction)
        if length == 0:
            return 0.0  # nothing arrives: weights have no effect
        moved = torch.func.jvp(arriving, (given,), ({name: w / length for name, w in direction.items()},))[1]
        (direction,) = back(moved)
    return 2 * _length(direction) / len(current)


def _length(tensors: dict[str, Tensor]) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())


def excess(end: Op, current: Tensor, target: Tensor, T: int) -> Tensor:
    """The closed form of the mean output minus the target, times the slope of the closed form.

    That is half the gradient of the squares in the current. Autograd would do the same in three times as many
    passes over memory.
    """
    if not isinstance(end, Spike):
        return current - target
    cells = end.cells(current.ndim)
    levels, slope = end.neuron.slope(current, cells, T)
    return levels.mul_(cells.theta / T).sub_(target).mul_(slope)
