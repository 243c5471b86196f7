"""Early exit: an image's answer is taken as soon as it is settled, by a rule set on calibration images."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikecal.analysis.energy import Energy
from spikecal.errors import ConfigError, DataError
from spikecal.snn.network import SpikingNetwork

SCALED = 128  # most calibration images to measure the scales on, at most a quarter of all
FACTORS = (
    math.inf,
    *(2 ** (k / 4) for k in range(40, -25, -1)),
)  # from never to immediately; fixed before any image is seen
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class ExitRule:
    """An answer is settled at the first step t where `margin(t) >= factor * scales[t - 1]`; after T steps all are.

    The margin is the lead of the largest output so far over the second largest. `scales[t - 1]` is how far outputs
    after t steps are from the ANN's, so `factor` is the required margin in such distances. `agreement` is the
    promised share of answers equal to the ANN's; of the `images` that chose the factor, `agreed` were.
    """

    agreement: float
    factor: float
    scales: tuple[float, ...]
    confidence: float
    images: int
    agreed: int

    @property
    def T(self) -> int:
        """The steps of the network that the rule is for."""
        return len(self.scales)

    def settled(self, outputs: Tensor) -> Tensor:
        """`[N]`: after which step (from 1) each answer is settled, given outputs after every step `[T, N, classes]`."""
        if len(outputs) != self.T:
            raise ConfigError(f"the exit rule is for T={self.T}, but the network has T={len(outputs)}")
        return first_steps(margins(outputs), self.scales, self.factor)

    @torch.no_grad()
    def run(self, snn: SpikingNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run step by step until all answers are settled; returns the outputs `[N, classes]` then, and the steps."""
        if snn.T != self.T:
            raise ConfigError(f"the exit rule is for T={self.T}, but the network has T={snn.T}")
        steps = torch.zeros(len(x), dtype=torch.int64)
        outputs: Tensor | None = None
        snn.reset()
        now = 0
        while outputs is None or bool((steps == 0).any()):
            found = snn.step(x)
            if found is None:  # no output has started
                continue
            limit = self.factor * self.scales[now] if now + 1 < self.T else -math.inf
            now += 1
            outputs = torch.zeros_like(found) if outputs is None else outputs
            leaving = (margins(found).cpu() >= limit) & (steps == 0)
            outputs[leaving.to(found.device)] = found[leaving.to(found.device)]
            steps[leaving] = now
        snn.reset()
        return outputs, steps

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a factor of None means that no answer is settled before the last step."""
        return asdict(self) | {"factor": None if math.isinf(self.factor) else self.factor}


@dataclass(frozen=True, kw_only=True)
class Exits:
    """The effect of early exit on some images. Lists have one entry per step.

    Attributes:
        rule: The rule.
        settled: How many images settled at each step.
        right: How many of them have the correct answer; empty without labels.
        agreed: How many of them have the ANN's answer; empty without the ANN.
        curve: Share of correct answers (without labels, of the ANN's) after each step, keeping settled answers.
        energy: Energy of the steps that were run.
        wait: Latency beyond the steps of the output.
    """

    rule: ExitRule
    settled: list[int]
    right: list[int] = field(default_factory=list)
    agreed: list[int] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    energy: Energy | None = None
    wait: int = 0

    @property
    def images(self) -> int:
        return sum(self.settled)

    @property
    def steps(self) -> float:
        """The mean number of steps per image."""
        return sum(t * count for t, count in enumerate(self.settled, 1)) / self.images

    @property
    def latency(self) -> float:
        """The same from the first step of the input, if layers wait."""
        return self.steps + self.wait

    def by(self, share: float) -> int:
        """The step by which this share of the answers is settled."""
        done = 0
        for t, count in enumerate(self.settled, 1):
            done += count
            if done >= share * self.images:
                return t
        return len(self.settled)

    @property
    def accuracy(self) -> float | None:
        return sum(self.right) / self.images if self.right else None

    @property
    def agreement(self) -> float | None:
        return sum(self.agreed) / self.images if self.agreed else None

    @property
    def chance(self) -> float | None:
        """The probability of so few of the ANN's answers by chance if the promise holds."""
        return at_most(sum(self.agreed), self.images, self.rule.agreement) if self.agreed else None

    @property
    def verdict(self) -> str:
        """Whether the promise holds on these images: `kept`, `level` with it within chance, `broken`, or `unknown`."""
        if self.agreement is None or self.chance is None:
            return "unknown"
        if self.agreement >= self.rule.agreement:
            return "kept"
        return "level" if self.chance > 1 - self.rule.confidence else "broken"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        energy = None if self.energy is None else {"ratio": self.energy.ratio, "spikes": self.energy.spikes}
        return {
            "rule": self.rule.to_dict(),
            "steps": self.steps,
            "latency": self.latency,
            "accuracy": self.accuracy,
            "agreement": self.agreement,
            "verdict": self.verdict,
            "energy": energy,
            "settled": [count / self.images for count in self.settled],
            "curve": self.curve,
        }


def margins(outputs: Tensor) -> Tensor:
    """By how much the largest of the outputs `[..., classes]` is above the second largest."""
    if outputs.shape[-1] < 2:
        raise DataError("early exit needs a network with at least two classes")
    first, second = outputs.topk(2, -1).values.unbind(-1)
    return first - second


def first_steps(margin: Tensor, scales: Sequence[float], factor: float) -> Tensor:
    """The first step of each image at which its margin `[T, N]` is large enough; the last one if it never is."""
    limits = factor * torch.tensor(scales, dtype=margin.dtype, device=margin.device)
    enough = (margin >= limits[:, None]).int()
    enough[-1] = 1
    return enough.argmax(0).cpu() + 1


def distances(outputs: Tensor, target: Tensor) -> Tensor:
    """`[T, N]`: squared distance of outputs `[T, N, classes]` from the ANN's `[N, classes]`, mean over classes.

    A shift common to all classes changes no margin, and does not count.
    """
    difference = (outputs - target).double()
    return (difference - difference.mean(-1, keepdim=True)).square().mean(-1)


def choose_rule(
    margin: Tensor, agree: Tensor, scales: Sequence[float], agreement: float, confidence: float
) -> ExitRule:
    """The smallest factor that calibration images allow, from their margins and agreement after each step `[T, N]`.

    Factors are tried from never to immediately, in an order independent of the images. Each must pass this test: if the
    share of the ANN's answers were below the promise, so many would be seen in at most a share `1 - confidence` of all
    samples (an exact binomial test). The first failure ends the search, so that trying many is no luckier than
    trying one (fixed sequence testing; Angelopoulos et al., Learn then test, 2021).
    """
    T, images = margin.shape
    best: ExitRule | None = None
    for factor in FACTORS:
        steps = first_steps(margin, scales, factor)
        agreed = int(agree[steps - 1, torch.arange(images)].sum())
        if at_least(agreed, images, agreement) > 1 - confidence:
            break
        best = ExitRule(
            agreement=agreement,
            factor=factor,
            scales=tuple(scales),
            confidence=confidence,
            images=images,
            agreed=agreed,
        )
    if best is None:
        most = math.floor(1000 * _bound(agreed, images, confidence)) / 1000
        raise ConfigError(
            f"T = {T} cannot promise {100 * agreement:g} %: after all steps {agreed:,} of {images:,} calibration "
            f"images agree with the ANN, which shows {100 * most:.1f} % at {100 * confidence:g} % confidence; "
            "promise less, use more steps, or set the rule on more images"
        )
    return best


def at_least(seen: int, images: int, share: float) -> float:
    """The probability of at least this many, if each image has this share as its chance."""
    return 1.0 - at_most(seen - 1, images, share) if seen > 0 else 1.0


def at_most(seen: int, images: int, share: float) -> float:
    """The probability of at most this many."""
    if seen < 0:
        return 0.0
    if seen >= images or share == 0:
        return 1.0
    logs = [
        math.lgamma(images + 1) - math.lgamma(k + 1) - math.lgamma(images - k + 1)
        + k * math.log(share) + (images - k) * math.log1p(-share)
        for k in range(seen + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def _bound(seen: int, images: int, confidence: float) -> float:
    """The largest share that this count supports (Clopper and Pearson's lower bound), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if at_least(seen, images, middle) <= 1 - confidence else (low, middle)
    return low
