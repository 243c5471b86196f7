"""Where stages wait: try placements within a latency on held-out images, and keep the best.

Stages of one depth wait alike, so that a wait costs one step of latency, however many branches there are. Waits are
spread over the depths, evenly or by how uneven the spikes are there; branches with time to spare wait for free.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from spikecal.calibration.divergence import standard_error
from spikecal.calibration.images import Inputs
from spikecal.choice.heldout import HeldOut, Network
from spikecal.graph.ops import Spike
from spikecal.graph.stages import Stage, partition
from spikecal.pipeline import Pipeline
from spikecal.snn.execute import Want
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.windows import Windows

WORTH = 0.01  # of the divergence: the least that a placement must gain
LEAST = 1e-4  # a negligible divergence
FREE = 2  # most steps that a stage with time to spare waits beyond its depth's
SHARES = (1.0, 0.7, 0.5)  # of the waits that the latency allows: more are not always better
STEPS = (1.0, 0.75, 0.5, 1 / 3)  # of the latency, if T is free
ENOUGH = 32  # held-out images below which a decision comes with a warning


@dataclass(frozen=True)
class Trial:
    """One placement and its result on held-out images: its mean divergence, and the gain over no waits."""

    name: str
    T: int
    latency: int
    waits: Mapping[str, int]
    divergence: float
    gain: float = 0.0
    error: float = 0.0  # standard error of the gain, over images

    @property
    def better(self) -> bool:
        """Whether it is worth its latency: gains significantly, and more than rounding."""
        return self.gain > max(self.error, LEAST, WORTH * (self.divergence + self.gain))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; missing measurements are None."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        missing = {name: None for name, fact in facts.items() if isinstance(fact, float) and not math.isfinite(fact)}
        return {**facts, **missing, "waits": dict(self.waits)}


@dataclass(frozen=True)
class Placement:
    """The trial that was kept, and all trials."""

    kept: Trial
    tried: tuple[Trial, ...]
    images: int  # held out
    overruled: str | None = None  # this pipeline, which AUTO chose and which does as well without waits
    unused: tuple[int, int] | None = None  # the requested latency and the longest useful one, if that is less

    def to_dict(self) -> dict[str, Any]:
        return {
            **({} if self.overruled is None else {"overruled": self.overruled}),
            **({} if self.unused is None else {"unused": list(self.unused)}),
            "kept": self.kept.name,
            "T": self.kept.T,
            "images": self.images,
            "tried": [trial.to_dict() for trial in self.tried],
        }

    def warnings(self) -> list[str]:
        return cautions(self.tried, self.images, self.unused)


def cautions(tried: Sequence[Trial], images: int, unused: tuple[int, int] | None) -> list[str]:
    """Warnings to heed before relying on a placement."""
    found = []
    if unused is not None:
        asked, longest = unused
        found.append(f"a latency of {asked} is more than this network can use: at most {longest} helps")
    if 1 < images < ENOUGH and any(trial.waits for trial in tried):
        few = f"waits were decided on only {images} held-out images"
        found.append(f"{few}: give {4 * ENOUGH} calibration images, of which a quarter is held out")
    return found


class Search:
    """The search within one latency. Trials learn no weights: they only show where to wait."""

    def __init__(self, held: HeldOut, pipeline: Pipeline, latency: int, per_image: float) -> None:
        """`per_image` is the ANN's seconds, for the estimate."""
        self.context, self.latency, self.per_image = held.context, latency, per_image
        self.held, self.pipeline = held, without_learning(pipeline)

    def run(self, steps: Sequence[int]) -> Placement:
        """The best placement for one of `steps`. Without images to compare on, no stage waits."""
        longest = max(longest_latency(partition(self.context.ann), T) for T in steps)
        unused = (self.latency, longest) if self.latency > longest else None
        if not self.held.enough:
            none = Trial("no waits", max(steps), max(steps), {}, math.nan)
            return Placement(none, (none,), self.held.count, unused=unused)
        tried = [trial for T in steps for trial in self._trials(T)]
        kept = min((t for t in tried if t.better or not t.waits), key=lambda trial: (trial.divergence, trial.latency))
        kept = tried[self.context.ranks.decided(tried.index(kept))]
        return Placement(kept, tuple(tried), self.held.count, unused=unused)

    def _trials(self, T: int) -> Iterator[Trial]:
        """No waits, then all that the latency allows in two ways, then fewer in the better way."""
        stages = partition(self.context.ann)
        budget = min(self.latency, longest_latency(stages, T)) - T
        counts = sorted({round(share * budget) for share in SHARES} - {0, budget}, reverse=True)
        total = 1 if budget == 0 else 3 + len(counts)
        seconds = total * self.held.passes(self.pipeline, T) * self.per_image
        self.context.progress.phase(f"T={T} waits", total, seconds)
        without, found = self.held.measured(self._network(T, 0, {}), unevenness)
        yield Trial("no waits", T, T, {}, float(without.mean()))
        if budget == 0:
            return
        profiles = {"evenly": dict.fromkeys(depths(stages).values(), 1.0), "by unevenness": by_depth(stages, found)}
        ways = [(name, placed(stages, T, profile, budget)) for name, profile in profiles.items()]
        first = self._tried(T, ways, 1, without)
        yield from first
        best = self.context.ranks.decided(min(first, key=lambda trial: trial.divergence).name)
        fewer = [(best, placed(stages, T, profiles[best], count)) for count in counts]
        yield from self._tried(T, fewer, 1 + len(ways), without)

    def _tried(
        self, T: int, placements: Sequence[tuple[str, Mapping[str, int]]], number: int, without: Tensor
    ) -> list[Trial]:
        """Some placements, named after how they spread waits; `number` is that of the first."""
        networks = [self._network(T, number + i, waits) for i, (_, waits) in enumerate(placements)]
        self.held.ahead(networks)
        trials = []
        for network, (name, waits) in zip(networks, placements, strict=True):
            found = self.held.measured(network)[0]
            latency = T + max(Windows(T, partition(self.context.ann), waits).starts.values())
            gains = without - found
            told = float(found.mean()), float(gains.mean()), standard_error(gains)
            trials.append(Trial(name, T, latency, waits, *told))
        return trials

    def _network(self, T: int, number: int, waits: Mapping[str, int]) -> Network:
        return Network(f"T{T}/waits/{number:04d}", self.pipeline, T, waits)


def without_learning(pipeline: Pipeline) -> Pipeline:
    """The pipeline with its quick calibrators alone, to compare placements."""
    passes = (phase for phase in pipeline.sweeps if isinstance(phase, tuple))
    quick = (tuple(c for c in sweep if not c.learns) for sweep in passes)
    return replace(pipeline, sweeps=tuple(sweep for sweep in quick if sweep))


def depths(stages: Sequence[Stage]) -> dict[str, int]:
    """For each layer that may wait, the number of layers of neurons on the longest path from an input, itself included.

    A layer that no other stage reads never waits: it is an output, read as the current of its neurons.
    """
    found: dict[str, int] = {}
    read = {name for stage in stages for name in stage.inputs}
    for stage in stages:
        found[stage.name] = max((found.get(name, 0) for name in stage.inputs), default=0) + stage.spiking
    return {stage.name: found[stage.name] for stage in stages if stage.spiking and stage.name in read}


def longest_latency(stages: Sequence[Stage], T: int) -> int:
    """The latency if all layers wait as long as they may: T - 1 steps."""
    return T + (T - 1) * max(depths(stages).values(), default=0)


def by_depth(stages: Sequence[Stage], found: Mapping[str, float]) -> dict[int, float]:
    """The largest of the values of each depth."""
    profile: dict[int, float] = {}
    for name, depth in depths(stages).items():
        profile[depth] = max(profile.get(depth, 0.0), found[name])
    return profile


def placed(stages: Sequence[Stage], T: int, profile: Mapping[int, float], count: int) -> dict[str, int]:
    """`count` waits spread over the depths in proportion to `profile`, plus free waits beside them."""
    shares = spread_up_to(T - 1, [profile[depth] for depth in sorted(profile)], count)
    at_depth = dict(zip(sorted(profile), shares, strict=True))
    waits = {name: at_depth[depth] for name, depth in depths(stages).items()}
    for stage in stages:  # front to back: slack that a stage uses is gone for those behind it
        if stage.name in waits:
            free = min(spare(stages, Windows(T, stages, waits), stage), FREE)
            waits[stage.name] = min(waits[stage.name] + free, T - 1)
    return {name: wait for name, wait in waits.items() if wait}


def spare(stages: Sequence[Stage], windows: Windows, stage: Stage) -> int:
    """How many steps later the value of a stage could start without delaying the latest output."""
    latest: dict[str, int] = {}
    for reader in reversed(stages):
        start = latest.get(reader.name, windows.end - windows.T)
        for name in reader.inputs:
            latest[name] = min(latest.get(name, start), start - windows.waits.get(reader.name, 0))
    return latest.get(stage.name, windows.end - windows.T) - windows.starts[stage.name]


def spread_up_to(most: int, weights: Sequence[float], count: int) -> list[int]:
    """The same with no number above `most`: the excess goes to the others, in proportion."""
    found = [0] * len(weights)
    while count > 0 and any(wait < most for wait in found):
        open_ones = [weight if wait < most else 0.0 for weight, wait in zip(weights, found, strict=True)]
        more = spread(open_ones if any(open_ones) else [float(wait < most) for wait in found], count)
        added = [min(most - wait, extra) for wait, extra in zip(found, more, strict=True)]
        found = [wait + extra for wait, extra in zip(found, added, strict=True)]
        count -= sum(added)
    return found


def spread(weights: Sequence[float], count: int) -> list[int]:
    """Integers in proportion to `weights` that add up to `count`, as evenly as integers can be."""
    total, passed, found = sum(weights) or 1.0, 0.0, []
    for weight in weights:
        before, passed = passed, passed + weight
        found.append(math.floor(passed / total * count + 0.5) - math.floor(before / total * count + 0.5))
    return found


@torch.no_grad()
def unevenness(network: SpikingNetwork, held: Sequence[Inputs]) -> dict[str, float]:
    """For every layer of neurons, the squared error caused by uneven spikes, relative to its output, on one batch."""
    inputs, found = held[0], {}
    emissions = network.course(inputs).advance(
        network.input_values(inputs), network.windows.end, last=True, want=Want.VALUE | Want.TOTAL
    )
    for stage, emission in emissions:
        op = stage.end.op
        if isinstance(op, Spike):
            assert emission.total is not None
            mean = emission.arriving.mean(0)
            cells = op.cells(mean.ndim)
            even = op.neuron.closed_form(mean, cells, network.T)
            squares = [float((cells.theta * value).square().sum()) for value in (even - emission.total, even)]
            found[stage.name] = squares[0] / squares[1] if squares[1] > 0 else 0.0
    return found


def steps_within(latency: int) -> list[int]:
    """The T to try if a latency is given but T is not."""
    return sorted({max(1, round(share * latency)) for share in STEPS}, reverse=True)
