"""Waits placed stage by stage, compared with the placement by `convert`; writes bench/results/placing.json.

    python bench/placing.py     about ten minutes of one core; rerun to resume after the last finished row

The embedded ResNet-20, by LCP, at two latencies. Stage by stage means: the neurons of one depth are run with one and
two more waits on cached currents of `IMAGES` calibration images, the wait that removes the most error per step of
latency is placed, and so on until the latency is spent. No stage waits more than two steps. The error is that of the
stage itself (`own`), of the stages that read it (`next`), or of the network's outputs (`outputs`: their divergence from
the ANN's); stages that run again have their biases corrected as by LCP. Whole placements are then compared as `convert`
compares its own, by their divergence on held-out calibration images once they are calibrated. `accuracy` is that on the
embedded test images; it decides nothing. `falls` is the share of each error that a wait of one step at one stage
removes, over all stages.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from waits import Subject, packed, right

import spikecal
from spikecal.calibration.divergence import distances, standard_error
from spikecal.calibration.images import Inputs, batches
from spikecal.choice.placement import Placement, Search, Trial, depths, spare, unevenness
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Joint, Spike, along
from spikecal.graph.stages import Stage, partition
from spikecal.reproduce.cells import machine
from spikecal.snn.execute import Memory, Want, current, emit, shapes_of
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.walk import analog_values
from spikecal.snn.windows import Windows, gathered
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "placing.json"
CASES = ((4, 14), (8, 18))  # T and latency
CALIBRATION = 512  # images, of which a quarter is held out
IMAGES = 16  # of the others, for running stages
MOST = 2  # steps that a stage waits


@dataclass
class Course:
    """A network with waits on some images: the input and output of every stage, and its relative error."""

    ann: Graph
    network: SpikingNetwork
    inputs: Inputs
    waits: Mapping[str, int] = field(default_factory=dict)
    currents: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = shapes_of(self.network.graph, self.inputs)
        images = self.network.input_values(self.inputs)
        analog = analog_values(partition(self.ann), images, self.shapes)
        self.targets = {stage.name: value[0] for stage, value in analog}
        self.values |= images
        self._run(self.network.stages)

    def waiting(self, waits: Mapping[str, int], until: Callable[[Stage], bool] = lambda stage: True) -> "Course":
        """The same with other waits: stages that `until` selects run again from the first that differs."""
        made = object.__new__(Course)
        made.__dict__ |= {**self.__dict__, "waits": waits}
        made.currents, made.values, made.errors = dict(self.currents), dict(self.values), dict(self.errors)
        changed = {name for name in {*waits, *self.waits} if waits.get(name, 0) != self.waits.get(name, 0)}
        first = next((i for i, stage in enumerate(self.network.stages) if stage.name in changed), None)
        if first is not None:
            made._run([stage for stage in self.network.stages[first:] if until(stage)], changed)
        return made

    def _run(self, stages: Sequence[Stage], known: Collection[str] = ()) -> None:
        """Run some stages; only the neurons of those `known`, whose inputs have not changed."""
        T, windows = self.network.T, Windows(self.network.T, self.network.stages, self.waits)
        touched: set[str] = set()
        for stage in stages:
            if stage.name not in known or touched & {*stage.inputs}:
                leads = windows.charges(stage)
                read = {name: gathered(self.values[name], T, leads[name], T) for name in stage.inputs}
                self.currents[stage.name] = current(stage, read, T, self.shapes, Memory())
            self.values[stage.name] = self._emitted(stage)
            touched.add(stage.name)

    def _emitted(self, stage: Stage) -> Tensor:
        """The output of a stage, with its bias corrected by its mean error as in LCP."""
        wait, T, target = self.waits.get(stage.name, 0), self.network.T, self.targets[stage.name]
        arriving, op = self.currents[stage.name], stage.end.op
        assert isinstance(op, (Spike, Joint))
        corrected = arriving
        for last in (False, True):
            emission = emit(stage, corrected, T, Memory(wait), Want.VALUE, wait)
            mean = emission.summed() / T
            if not last and (stage.spiking or stage.parametric()):
                others = [dim for dim in range(mean.ndim) if dim != op.channel]
                corrected = arriving + along((target - mean).mean(others), op.channel, mean.ndim)
        self.errors[stage.name] = float((mean - target).square().sum() / target.square().sum())
        assert emission.value is not None
        return emission.value

    @property
    def divergence(self) -> float:
        """Divergence from the ANN's outputs."""
        names, T = self.network.graph.outputs(), self.network.T
        found = {name: self.values[name].expand(T, *self.values[name].shape[1:]).mean(0) for name in names}
        return float(distances([found], [{name: self.targets[name] for name in names}]).mean())


# -- what a wait removes -------------------------------------------------------------------------------------------


def own(course: Course, waits: Mapping[str, int], waiting: Sequence[str]) -> float:
    """Of the stages' own errors; nothing runs but their neurons."""
    after = course.waiting(waits, lambda stage: stage.name in waiting)
    return sum(course.errors[name] - after.errors[name] for name in waiting)


def following(course: Course, waits: Mapping[str, int], waiting: Sequence[str]) -> float:
    """Of the errors of the stages that read these."""
    readers = [stage.name for stage in course.network.stages if {*stage.inputs} & {*waiting}]
    after = course.waiting(waits, lambda stage: stage.name in waiting or stage.name in readers)
    return sum(course.errors[name] - after.errors[name] for name in readers)


def outputs(course: Course, waits: Mapping[str, int], waiting: Sequence[str]) -> float:
    """Of the outputs' divergence from the ANN's."""
    return course.divergence - course.waiting(waits).divergence


GAINS = {"own": own, "next": following, "outputs": outputs}
Gain = Callable[[Course, Mapping[str, int], Sequence[str]], float]


def stage_by_stage(course: Course, budget: int, gain: Gain) -> dict[str, int]:
    """Waits within `budget` steps, each where it removes the most error per step; stages of one depth wait alike.

    The gain of a wait changes with those before it: the best one is measured again until it stays the best.
    """
    levels: dict[int, list[str]] = {}
    for name, depth in depths(course.network.stages).items():
        levels.setdefault(depth, []).append(name)
    steps = range(1, min(MOST, course.network.T - 1) + 1)

    def per_step(depth: int, wait: int) -> float:
        names = levels[depth]
        waits = {**course.waits, **dict.fromkeys(names, wait)}
        return gain(course, waits, names) / (wait - course.waits.get(names[0], 0))

    gains = {(depth, wait): per_step(depth, wait) for depth in levels for wait in steps}
    while budget > 0:
        waited = {depth: course.waits.get(names[0], 0) for depth, names in levels.items()}
        gains = {(d, wait): found for (d, wait), found in gains.items() if 0 < wait - waited[d] <= budget}
        fresh: set[tuple[int, int]] = set()
        while gains and (best := max(gains, key=gains.__getitem__)) not in fresh:
            gains[best] = per_step(*best)
            fresh.add(best)
        if not gains or gains[best] <= 0:
            break
        depth, wait = best
        budget -= wait - waited[depth]
        course = course.waiting({**course.waits, **dict.fromkeys(levels[depth], wait)})
    return with_slack(course.network, course.waits)


def with_slack(network: SpikingNetwork, waits: Mapping[str, int]) -> dict[str, int]:
    """The waits, plus free waits of stages with time to spare."""
    found = dict(waits)
    for stage in network.stages:
        free = spare(network.stages, Windows(network.T, network.stages, found), stage)
        if stage.spiking and free:
            found[stage.name] = min(found.get(stage.name, 0) + free, MOST, network.T - 1)
    return found


def falls(course: Course) -> dict[str, dict[str, float]]:
    """The share by which a wait of one step at one stage alone lowers errors: the median over stages."""
    shares: dict[str, list[float]] = {name: [] for name in GAINS}
    for stage in course.network.stages:
        if not stage.spiking:
            continue
        readers = [reader.name for reader in course.network.stages if stage.name in reader.inputs]
        before = {
            "own": course.errors[stage.name],
            "next": sum(course.errors[name] for name in readers),
            "outputs": course.divergence,
        }
        for name, gain in GAINS.items():
            shares[name].append(gain(course, {stage.name: 1}, [stage.name]) / before[name])
    return {name: {"median": median(found), "least": min(found), "most": max(found)} for name, found in shares.items()}


# -- the comparison ------------------------------------------------------------------------------------------------


def embedded() -> Subject:
    model, card = load_model("resnet20", None)
    train, test = (load_data("demo", split) for split in ("train", "test"))
    assert isinstance(train.images, Tensor) and isinstance(test.images, Tensor) and test.labels is not None
    seen, tested = (prepare(images, card, "demo") for images in (train.images[:CALIBRATION], test.images))
    return Subject(model, seen, tested, test.labels)


def searched(one: Subject, T: int, latency: int) -> tuple[Search, Trial, SpikingNetwork]:
    """The search by `convert`, the placement it kept, and the network without waits."""
    run, found, networks = Search.run, list[tuple[Search, Trial]](), list[SpikingNetwork]()

    def watched(search: Search, steps: Sequence[int]) -> Placement:
        placement = run(search, steps)
        found.append((search, placement.kept))
        return placement

    def seen(network: SpikingNetwork, held: Sequence[Inputs]) -> dict[str, float]:
        networks.append(network)
        return unevenness(network, held)

    with patch.object(Search, "run", watched), patch("spikecal.choice.placement.unevenness", seen):
        converted(one, T, latency)
    return *found[0], networks[0]


def converted(one: Subject, T: int, latency: int) -> SpikingNetwork:
    return spikecal.convert(one.model, one.seen, T=T, latency=latency, pipeline="lcp", records=False).snn


def compared(one: Subject, T: int, latency: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both ways at one latency: seconds, divergence on held-out images, and accuracy; and what single waits remove."""
    started = time.perf_counter()
    search, kept, network = searched(one, T, latency)
    rows, held = {"convert": (kept, time.perf_counter() - started)}, search.held
    course = Course(held.context.ann, network, batches(held.rest[:IMAGES], IMAGES, ())[0])
    without, _ = held.measured("", search.pipeline, T, {})
    for name, gain in GAINS.items():
        begun = time.perf_counter()
        waits = stage_by_stage(course, latency - T, gain)
        found, _ = held.measured("", search.pipeline, T, waits)
        gains = without - found
        end = Windows(T, network.stages, waits).end
        trial = Trial(name, T, end, waits, float(found.mean()), float(gains.mean()), standard_error(gains))
        rows[name] = trial, time.perf_counter() - begun
    placements = {name: told(one, latency, *row) for name, row in rows.items()}
    facts = {"T": T, "latency": latency, "held_out": held.count, "without": float(without.mean())}
    return facts | {"placements": placements}, falls(course)


def told(one: Subject, latency: int, kept: Trial, seconds: float) -> dict[str, Any]:
    """A placement, and the network made with it."""
    with patch.object(Search, "run", lambda search, steps: Placement(kept, (kept,), 0)):
        answers = right(converted(one, kept.T, latency), one)
    found = kept.to_dict() | {"accuracy": 100 * float(answers.mean()), "answers": packed(answers), "seconds": seconds}
    print(found, flush=True)
    return found


def main() -> None:
    one, found = embedded(), json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"images": IMAGES, "calibration": len(one.seen), "tested": len(one.test), "machine": machine()}
    found |= {"ann": 100 * float(one.right.mean())}
    rows, removed = (found.setdefault(part, {}) for part in ("rows", "falls"))
    for T, latency in CASES:
        row = f"T={T}, latency {latency}"
        if row not in rows:
            rows[row], removed[row] = compared(one, T, latency)
            write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
