"""AUTO: try a few pipelines on held-out images, and keep the best for this network, T and latency.

LCP is always among them, and stays unless another is closer to the ANN by more than one standard error, paired over
images. How many are tried depends on the effort: a multiple of the cost of LCP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from spikecal.calibration.divergence import standard_error
from spikecal.choice.candidates import Candidate, candidates
from spikecal.choice.heldout import HeldOut, Network
from spikecal.choice.placement import Placement, Search, Trial
from spikecal.phases import image_passes, images_of
from spikecal.pipeline import LCP, Auto, Pipeline, Plan

LCP_NAME = "LCP"
SLACK = 1.4  # tolerated excess over the effort: candidates are few and differ much in cost


@dataclass(frozen=True)
class Tried(Trial):
    """One pipeline with its waits, and its result; `gain` is how much less it diverges than LCP."""

    pipeline: Pipeline = LCP
    cost: float = 1.0  # of a conversion with it, in conversions by LCP

    @property
    def better(self) -> bool:
        return self.gain > self.error

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "pipeline": self.pipeline.to_dict()}


@dataclass(frozen=True)
class Selection:
    """The pipeline that was kept, and all that were tried."""

    kept: Tried
    tried: tuple[Tried, ...]
    images: int  # held out
    effort: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept.name,
            "why": self.why,
            "effort": self.effort,
            "images": self.images,
            "tried": [trial.to_dict() for trial in self.tried],
        }

    @property
    def why(self) -> str:
        """The reason in one sentence."""
        if self.images < 2:
            return "LCP: too few images to compare pipelines on"
        if self.kept.name == LCP_NAME:
            return "LCP: no other pipeline is closer to the ANN by more than one standard error"
        return (
            f"{self.kept.name}: diverges by {self.kept.divergence:.3g} from the ANN on {self.images} held-out images, "
            f"{self.kept.gain:.2g} ± {self.kept.error:.2g} less than LCP"
        )


class Chooser:
    """The choice for one T, or one latency."""

    def __init__(self, held: HeldOut, auto: Auto, per_image: float) -> None:
        """`per_image` is the ANN's seconds, for the estimate."""
        self._held, self._auto, self._per_image = held, auto, per_image
        self._lcp = auto.fixed

    def run(self, steps: Sequence[int], latency: int | None) -> tuple[Selection, Placement | None]:
        """The best pipeline for one of `steps`, and the search for waits if the latency allows them."""
        if latency is None:
            return self._among(steps[0], steps[0], {}, None), None
        placement = Search(self._held, self._lcp, latency, self._per_image).run(steps)
        kept = placement.kept
        return self._among(kept.T, kept.latency, kept.waits, rival_of(placement)), placement

    def _among(self, T: int, latency: int, waits: Mapping[str, int], rival: Trial | None) -> Selection:
        """The best for these waits; it is then also tried with the rival's."""
        if not self._held.enough:
            alone = Tried(LCP_NAME, T, latency, waits, float("nan"), pipeline=self._lcp)
            return Selection(alone, (alone,), self._held.count, self._auto.effort)
        plan = self.plan(T)
        passes = sum(self._held.passes(candidate.pipeline, T) for candidate in plan)
        if rival is not None:
            passes += max(self._held.passes(candidate.pipeline, rival.T) for candidate in plan)
        self._held.context.progress.phase(f"T={T} pipelines", len(plan) + (rival is not None), passes * self._per_image)
        self._held.ahead([self._network(candidate, T, waits) for candidate in plan])
        measured = {candidate.name: self._divergences(candidate, T, waits) for candidate in plan}
        lcp = measured[LCP_NAME]
        tried = [self._tried(candidate, T, latency, waits, measured[candidate.name], lcp) for candidate in plan]
        best = min((one for one in tried if one is tried[0] or one.better), key=lambda one: one.divergence)
        kept = tried[self._held.context.ranks.decided(tried.index(best))]
        if rival is not None:
            candidate = Candidate(kept.name, kept.pipeline)
            found = self._divergences(candidate, rival.T, rival.waits)
            tried.append(self._tried(candidate, rival.T, rival.latency, rival.waits, found, lcp))
            gains = found - measured[kept.name]
            # waiting must be worth it for this pipeline, too
            if self._held.context.ranks.decided(float(gains.mean()) <= standard_error(gains)):
                kept = tried[-1]
        return Selection(kept, tuple(tried), self._held.count, self._auto.effort)

    def plan(self, T: int) -> list[Candidate]:
        """LCP, and the others that fit the effort: to try them, and to convert with the most expensive."""
        lcp = Candidate(LCP_NAME, self._lcp)
        whole = self._whole(lcp, T)
        left = SLACK * self._auto.times * whole - whole - self._held.passes(lcp.pipeline, T)
        chosen, dearest = [lcp], 0.0
        for candidate in candidates(self._auto):
            trial, refit = self._held.passes(candidate.pipeline, T), self._cost(candidate, T)
            if trial + max(refit, dearest) <= left + dearest:
                left -= trial + max(refit, dearest) - dearest
                dearest = max(refit, dearest)
                chosen.append(candidate)
        return chosen

    def _cost(self, candidate: Candidate, T: int) -> float:
        """Cost of calibrating with it on all images, in passes of the ANN over one image."""
        images = len(self._held.context.images)
        return sum(image_passes(phase, min(images_of(phase), images), T) for phase in candidate.pipeline.sweeps)

    def _whole(self, candidate: Candidate, T: int) -> float:
        """The same, including thresholds."""
        thresholds = min(candidate.pipeline.threshold.images, len(self._held.context.images))
        return thresholds + self._cost(candidate, T)

    def _divergences(self, candidate: Candidate, T: int, waits: Mapping[str, int]) -> Tensor:
        return self._held.measured(self._network(candidate, T, waits))[0]

    def _network(self, candidate: Candidate, T: int, waits: Mapping[str, int]) -> Network:
        key = f"T{T}/auto/{'waiting' if waits else 'at once'}/{candidate.name}"
        return Network(key, candidate.pipeline, T, waits)

    def _tried(
        self, candidate: Candidate, T: int, latency: int, waits: Mapping[str, int], found: Tensor, lcp: Tensor
    ) -> Tried:
        gains, cost = lcp - found, self._whole(candidate, T) / self._whole(Candidate(LCP_NAME, self._lcp), T)
        return Tried(
            candidate.name, T, latency, dict(waits), float(found.mean()), float(gains.mean()), standard_error(gains),
            pipeline=candidate.pipeline, cost=cost,
        )  # fmt: skip


def rival_of(placement: Placement) -> Trial | None:
    """The placement to compare the kept one with once more, by a better pipeline than LCP.

    LCP gains more by waiting than others do: a network that does not wait, with more steps where T is free, may win.
    """
    if not placement.kept.waits:
        return None
    still = [trial for trial in placement.tried if not trial.waits]
    return min(still, key=lambda trial: trial.divergence)


@dataclass(frozen=True)
class Decision:
    """The settings of one network of a conversion: its T, waits and pipeline, and how they were chosen."""

    T: int
    waits: dict[str, int]
    pipeline: Pipeline
    placement: Placement | None = None
    selection: Selection | None = None


def decide(plan: Plan, held: HeldOut, steps: Sequence[int], latency: int | None, per_image: float) -> Decision:
    """Choose what `plan` leaves open for a network of one of `steps`; with a `latency`, waits within it too."""
    if isinstance(plan, Auto):
        selection, placement = Chooser(held, plan, per_image).run(steps, latency)
        kept = selection.kept
        if placement is not None and kept.waits != placement.kept.waits:
            placement = replace(placement, overruled=kept.name)
        return Decision(kept.T, dict(kept.waits), kept.pipeline, placement, selection)
    if latency is None:
        return Decision(steps[0], {}, plan)
    placement = Search(held, plan, latency, per_image).run(steps)
    return Decision(placement.kept.T, dict(placement.kept.waits), plan, placement)
