"""What a calibrator sees of one stage: its parameters, its ANN targets, and how it runs now."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from spikecal.calibration.cache import Cache, Train, Value, joined_in_time, over_time, standard, steps_of
from spikecal.calibration.samples import Sample, Samples
from spikecal.errors import CalibrationError
from spikecal.graph.ops import MaxPool, Spike, of_channels
from spikecal.graph.stages import Stage
from spikecal.kernels import loops
from spikecal.ranks import Ranks
from spikecal.snn.execute import (
    Emission,
    Memory,
    Shapes,
    Want,
    charging_current,
    current,
    emit,
    steps_per_call,
)  # fmt: skip
from spikecal.snn.windows import Windows, gathered


@dataclass
class Simulation:
    """One run of a stage over all images, reduced to sums in float64, added in image order."""

    squared_error: float = 0.0
    squared_target: float = 0.0
    spikes: int = 0
    slots: int = 0  # neurons x images x steps
    saturated: int = 0
    neurons: int = 0  # neurons x images
    fired: Tensor | None = None  # neuron, or channel if images differ in size -> has it ever fired
    error_sums: dict[int, Tensor] = field(default_factory=dict)  # n -> sum of x - mean output over the first n images

    def add_error(self, mark: int, found: Tensor) -> None:
        known = self.error_sums.get(mark)
        self.error_sums[mark] = found.clone() if known is None else known.add_(found)

    def sums(self) -> Tensor:
        """All sums as one vector. Sums over fewer images come last: most images add nothing to them."""
        squares = torch.tensor([self.squared_error, self.squared_target], dtype=torch.float64)
        errors = [self.error_sums[mark].flatten() for mark in sorted(self.error_sums, reverse=True)]
        return torch.cat([squares.to(errors[0].device), *errors]) if errors else squares

    @property
    def error(self) -> float:
        """Relative error `||x - mean output||^2 / ||x||^2`."""
        return self.squared_error / self.squared_target if self.squared_target > 0 else float(self.squared_error > 0)


class StageView:
    """One stage of the network over the micro-batches of a sweep. `ann` is the same stage before any change.

    Micro-batches are as large as the whole network's values allow. If a stage's own values are smaller, one call runs
    several of them, up to `together` images: small calls are inefficient. `calls` are those of this rank: some of
    the `units`, which no call crosses. Sums are those of all ranks.
    """

    def __init__(
        self,
        ann: Stage,
        stage: Stage,
        windows: Windows,
        cache: Cache,
        counts: Sequence[int],
        marks: Iterable[int],
        shapes: Sequence[Shapes],
        seed: int,
        together: int,
        output: bool,
        units: Sequence[range],
        ranks: Ranks,
        dtype: torch.dtype,
    ) -> None:
        self.output, self.ranks = output, ranks  # `output`: whether the stage is an output of the network
        # shape, dtype and device of values at the end of the stage, without images
        self.like = torch.empty(0, *shapes[0][stage.name][1:], dtype=dtype, device=cache.device)
        self.ann, self.stage, self.T, self.cache = ann, stage, windows.T, cache
        self.wait, self.charges = windows.waits.get(stage.name, 0), windows.charges(stage)
        self.counts, self.marks, self.shapes, self.seed = counts, sorted(set(marks)), shapes, seed
        self.one_size = len({tuple(s[stage.name][1:]) for s in shapes}) == 1
        self.all_calls = [list(calls(counts, self.marks, shapes, together, unit)) for unit in units]
        self.units = [self.all_calls[i] for i in ranks.share(len(units))]
        self.calls = [call for unit in self.units for call in unit]
        self._own = set(self.calls)
        own = {name: shapes[0][name] for name in (*stage.inputs, *(node.name for node in stage.nodes))}
        images = max(self.images_of(call) for unit in self.all_calls for call in unit)
        self.at_once = steps_per_call(own, images)  # if less than T, a call runs this many steps at a time
        self.notes: list[str] = []
        self.branched = False  # whether the stage comes after a branch of the network
        self.simulation = Simulation()
        self._squared_targets: dict[range, float] = {}

    @property
    def channel(self) -> int:
        op = self.stage.end.op
        return int(op.channel)  # type: ignore[arg-type]  # Spike and Joint both have one

    @property
    def spike(self) -> Spike:
        """The neurons of a stage that has them."""
        op = self.stage.end.op
        assert isinstance(op, Spike)
        return op

    def images_of(self, call: range) -> int:
        return sum(self.counts[batch] for batch in call)

    def has(self, call: range) -> bool:
        """Whether a call is this rank's."""
        return call in self._own

    def starts_before(self, call: range, images: int) -> bool:
        """Whether a call belongs to the first `images` images; `images` is one of the marks, or all."""
        return self.images_of(range(call.start)) < images

    def first_calls(self, images: int) -> list[range]:
        """This rank's calls among those that hold the first `images` images."""
        return [call for call in self.calls if self.starts_before(call, images)]

    def first_calls_of_all(self, images: int) -> list[range]:
        """The calls of all ranks that hold the first `images` images."""
        return [call for unit in self.all_calls for call in unit if self.starts_before(call, images)]

    def collected(self, rows: Tensor, dim: int) -> Tensor:
        """Rows of all ranks, those of the first images first."""
        # contiguous, so that products of matrices round alike on any number of ranks
        return self.ranks.joined(rows.movedim(dim, 0)).movedim(0, dim).contiguous()

    def mean(self, parts: Iterable[Tensor], images: int, size: int) -> Tensor:
        """The mean `[size]` over the first `images` images; `parts` are sums over this rank's calls."""
        total = self.ranks.sum(size, self.cache.device)
        for part in parts:
            total.add(part)
            self.ranks.beat()
        return total.total() / min(images, sum(self.counts))

    # -- values ------------------------------------------------------------------------------------------------

    def value(self, name: str, call: range, what: str) -> Tensor:
        """The value of a boundary for the micro-batches of one call: "ann" `[N, ...]` or "snn" `[T or 1, N, ...]`."""
        return joined([over_time(self.cache.get((name, batch, what))) for batch in call], what == "ann")

    def part(self, name: str, call: range, start: int, steps: int) -> Tensor:
        """Some steps of a boundary, `[steps or 1, N, ...]`."""
        held = [self.cache.get((name, batch, "snn")) for batch in call]
        return joined([steps_of(value, start, steps) for value in held], False)

    def arriving_height(self) -> float:
        """The largest height of the spikes that arrive; 0 where none do."""
        values = [self.cache.get((name, self.calls[0].start, "snn")) for name in self.stage.inputs if self.calls]
        heights = [float(value.height.amax()) for value in values if isinstance(value, Train)]
        return float(self.ranks.largest(torch.tensor(max(heights, default=0.0))))

    def arriving(self, name: str, call: range, start: int, steps: int) -> Tensor:
        """Some steps of an input in the stage's own time; an earlier start is added to the first step."""
        lead = self.charges[name]
        begin, end = start + (lead if start else 0), min(self.T, start + steps + lead)
        there = max(0, end - begin)
        value = self.value(name, call, "snn") if there == self.T else self.part(name, call, begin, there)
        return gathered(value, there, 0 if start else lead, steps)

    def mean_value(self, name: str, call: range) -> Tensor:
        """The mean over time of what a boundary passes on, `[N, ...]`."""
        if self.at_once >= self.T:
            return self.value(name, call, "snn").mean(0)
        total: Tensor | None = None
        for start, steps in self._parts():
            part = self.part(name, call, start, steps)
            if len(part) < steps:
                return part[0]  # the same at every step
            total = part.sum(0) if total is None else total + part.sum(0)
        assert total is not None
        return total / self.T

    def _parts(self) -> Iterator[tuple[int, int]]:
        return ((start, min(self.at_once, self.T - start)) for start in range(0, self.T, self.at_once))

    def target(self, call: range) -> Tensor:
        """The ANN's value `[N, ...]` at the end of the stage."""
        return self.value(self.stage.name, call, "ann")

    def _split(self, call: range, value: Tensor, dim: int) -> Iterator[tuple[int, Tensor]]:
        parts = value.split([self.counts[batch] for batch in call], dim)
        return zip(call, parts, strict=True)

    @torch.no_grad()
    def prepare(self) -> None:
        """Run the ANN's stage, which gives the targets."""
        for call in self.calls:
            value = self.ann.end.op(self.ann_current(call))
            for batch, part in self._split(call, value, 0):
                self.cache.put((self.stage.name, batch, "ann"), standard(part.unsqueeze(0))[0])

    def ann_current(self, call: range) -> Tensor:
        """What arrives at the end of the ANN's stage, `[N, ...]`: its pre-activations."""
        values = {n: self.value(n, call, "ann").unsqueeze(0) for n in self.ann.inputs}
        return current(self.ann, values, 1, self.shapes[call.start], None)[0]

    def current(self, call: range) -> Tensor:
        """What arrives at the neurons with the stage's current weights, `[T or 1, N, ...]`."""
        return self._current(call, 0, self.T, Memory(self.wait))

    def _current(self, call: range, start: int, steps: int, memory: Memory) -> Tensor:
        """Some steps of `current`. A max-pool remembers earlier steps: behind it only all steps at once are kept."""
        key, own = (self.stage.name, call.start, f"current{start or ''}"), memory.wait == self.wait
        held = self.cache.find(key) if own else None
        if held is None:
            values = {n: self.arriving(n, call, start, steps) for n in self.stage.inputs}
            held = charging_current(self.stage, values, steps, self.shapes[call.start], memory)
            if own and (steps == self.T or not any(isinstance(node.op, MaxPool) for node in self.stage.nodes)):
                self.cache.put(key, held)
        return over_time(held)

    def currents(self, call: range, memory: Memory | None = None) -> Iterator[tuple[Tensor, int]]:
        """What arrives at the neurons `[steps or 1, N, ...]`, and for how many steps: as many as fit at once.

        Neurons that wait may get the mean of the steps they wait for. Without their `memory`, every step is its own.
        """
        memory = Memory() if memory is None else memory
        for start, steps in self._parts():
            yield self._current(call, start, steps, memory), steps

    def forget_currents(self) -> None:
        """Forget what depends on weights: they have changed."""
        self.cache.free(self.stage.name, "current")

    # -- simulation --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def simulate(self, keep: bool) -> Simulation:
        """Run the stage over all images in its present state.

        `keep`, in the last run of a stage, puts its output into the cache for later stages, and counts its spikes;
        earlier runs add up the errors that calibrators ask for.
        """
        marks = () if keep else self.marks  # nothing is solved after the kept run
        size = prod(self.like.shape[1:]) if self.one_size else self.like.shape[self.channel]
        total = self.ranks.sum(2 + len(marks) * size, self.cache.device)
        counted = Simulation()
        for unit in self.units:
            part = Simulation()
            for call in unit:
                self._add(call, marks, part, self._run(call, keep, counted))
            total.add(part.sums())
        errors, targets, *sums = total.total().split([1, 1, *[size] * len(marks)])
        result = self._everywhere(counted) if keep else Simulation()
        result.squared_error, result.squared_target = float(errors), float(targets)
        for mark, found in zip(sorted(marks, reverse=True), sums, strict=True):
            result.error_sums[mark] = image_of(found, self.like).contiguous() if self.one_size else found
        self.simulation = result
        return result

    def _add(self, call: range, marks: Sequence[int], result: Simulation, mean: Tensor) -> None:
        """Add up the errors of one call, in place of its mean."""
        target = self.target(call)
        if call not in self._squared_targets:
            self._squared_targets[call] = _squared(target)
        error = torch.sub(target, mean, out=mean)
        result.squared_error += _squared(error)
        result.squared_target += self._squared_targets[call]
        reached = [mark for mark in marks if self.starts_before(call, mark)]
        if reached:
            found = self._error_sum(error)
            for mark in reached:
                result.add_error(mark, found)

    def _everywhere(self, own: Simulation) -> Simulation:
        """The counts of all ranks."""
        if not isinstance(self.stage.end.op, Spike):
            return own
        counts = self.ranks.counted(torch.tensor([own.spikes, own.slots, own.saturated, own.neurons]))
        fired = self.ranks.largest((self._never() if own.fired is None else own.fired).to(torch.uint8)) > 0
        spikes, slots, saturated, neurons = counts.tolist()
        return Simulation(spikes=spikes, slots=slots, saturated=saturated, neurons=neurons, fired=fired)

    def _never(self) -> Tensor:
        """`fired` without any images."""
        size = prod(self.like.shape[1:]) if self.one_size else self.like.shape[self.channel]
        return torch.zeros(size, dtype=torch.bool, device=self.cache.device)

    def _run(self, call: range, keep: bool, result: Simulation) -> Tensor:
        """The mean output of one call. With `keep`, the output goes into the cache.

        Large images would not fit into memory with all their steps: they run a few steps at a time.
        """
        want = Want.TOTAL | Want.LEVELS if keep else Want.TOTAL
        total, spikes = _Sum(), _Sum()
        kept: dict[int, list[Value]] = {batch: [] for batch in call}
        for emission in self._emissions(call, want):
            total.add(emission.summed() if emission.total is None else emission.total)
            if emission.spikes is not None and emission.spikes is not emission.total:
                spikes.add(emission.spikes)
            for batch, part in self._passed_on(call, emission) if keep and emission.steps else ():
                kept[batch].append(part)
        if keep:
            self.cache.forget_current(self.stage.name, call.start)  # nothing comes after the run that is kept
        for batch, parts in kept.items() if keep else ():
            self.cache.put((self.stage.name, batch, "snn"), joined_in_time(parts, self.at_once))
        op = self.stage.end.op
        if not isinstance(op, Spike):
            return total.value / self.T
        if keep:
            self._count((total if spikes.empty else spikes).value, result)
        return total.value * (op.height(total.value.ndim) / self.T)

    def mean_output(self, call: range, stage: Stage) -> Tensor:
        """The mean output of one call of `stage`: this stage with other neurons at its end."""
        op, total = stage.end.op, _Sum()
        assert isinstance(op, Spike)
        for emission in self._emissions(call, Want.TOTAL, stage):
            assert emission.total is not None
            total.add(emission.total)
        return total.value * (op.height(total.value.ndim) / self.T)

    def _emissions(self, call: range, want: Want, stage: Stage | None = None) -> Iterator[Emission]:
        """What the stage emits in all T steps; currents are kept between runs where there is room."""
        memory, stage, done = Memory(self.wait), stage or self.stage, 0
        for arriving, steps in self.currents(call, memory):
            done += steps
            self.ranks.beat()
            yield emit(stage, arriving, steps, memory, want, self.wait if done == self.T else 0)

    def _passed_on(self, call: range, emission: Emission) -> Iterator[tuple[int, Value]]:
        """The output of each micro-batch, as the cache keeps it."""
        op = self.stage.end.op
        if isinstance(op, Spike):
            assert emission.levels is not None
            height = op.height(emission.levels.ndim - 1)
            for batch, part in self._split(call, emission.levels, 1):
                yield batch, Train.pack(part, height, op.neuron.alphabet)
            return
        assert emission.value is not None
        for batch, part in self._split(call, emission.value, 1):
            yield batch, standard(part)

    def _count(self, spikes: Tensor, result: Simulation) -> None:
        """Add up the spike counts for the records."""
        op = self.stage.end.op
        assert isinstance(op, Spike)
        most = self.T * op.neuron.alphabet[-1]
        result.neurons += spikes.numel()
        result.slots += spikes.numel() * self.T
        rows = rows_of(spikes) if self.one_size else spikes.movedim(self.channel, 0).flatten(1).t()
        if result.fired is None:
            result.fired = torch.zeros(rows.shape[1], dtype=torch.bool, device=rows.device)
        counted = loops.tally(rows, most, result.fired)
        if counted is None:
            counted = int(rows.sum(dtype=torch.float64)), int(torch.count_nonzero(rows == most))
            result.fired |= rows.amax(0) > 0
        result.spikes += counted[0]
        result.saturated += counted[1]

    def _error_sum(self, error: Tensor) -> Tensor:
        if not self.one_size:
            return over_positions(error, self.channel)
        rows = rows_of(error)  # in the memory order of one image
        return (rows.sum(0) if len(rows) > 1 else rows[0]).double()

    # -- what calibrators ask for ------------------------------------------------------------------------------

    def mean_error(self, images: int, per: str) -> Tensor:
        """Mean of `x - mean output` over the first `images` images: `[C]`, or per neuron `[C, H, W]`."""
        total = sum(self.counts)
        mark, dtype = min(images, total), self.like.dtype
        if mark not in self.simulation.error_sums:
            known = ", ".join(f"{n:,}" for n in self.marks)
            found = f"is known for the images that calibrators ask for ({known}), not for {images:,}: use self.images"
            raise CalibrationError(self.stage.name, "mean_error", found)
        mean = self.simulation.error_sums[mark] / mark
        if not self.one_size:
            if per == "neuron":
                self.notes.append("images of several sizes: potential per channel instead of per neuron")
            return mean.to(dtype)
        if mean.ndim == 0:  # one number per image
            mean = mean.reshape(1)
        elif per == "channel":
            # positions are the remaining dimensions of an image
            channel = self.channel % (mean.ndim + 1) - 1
            mean = mean.movedim(channel, 0).reshape(mean.shape[channel], -1).mean(1)
        return mean.to(dtype)

    def mean_samples(self, images: int) -> Samples:
        """Mean inputs of the stage and its targets for this rank's share of the first `images` images."""
        groups: dict[Any, list[range]] = {}
        needed = 0
        for call in self.first_calls_of_all(images):
            shapes = self.shapes[call.start]
            groups.setdefault(tuple(tuple(shapes[n][1:]) for n in self.stage.inputs), []).append(call)
            if self.has(call):
                values = sum(prod(shapes[n][1:]) for n in (*self.stage.inputs, self.stage.name))
                needed += 4 * self.images_of(call) * values
        fits = self.cache.make_room(needed)
        merged = []
        for group in groups.values():
            own = list(filter(self.has, group))
            shapes = self.shapes[group[0].start]
            inputs = {
                n: self._put_together(own, partial(self.mean_value, n), fits, shapes[n]) for n in self.stage.inputs
            }
            target = self._put_together(own, self.target, fits, shapes[self.stage.name])
            before = sum(self.images_of(call) for call in group if own and call.start < own[0].start)
            merged.append(Sample(inputs, target, shapes, before, sum(map(self.images_of, group))))
        return Samples(merged, torch.Generator().manual_seed(self.seed), self.cache.device, self.ranks)

    def _put_together(
        self, group: Sequence[range], value: Callable[[range], Tensor], fits: bool, shape: Sequence[int]
    ) -> Tensor:
        """Concatenate the values `[N, ...]` of several calls, or of none."""
        whole: Tensor | None = None if group else self.like.new_empty(0, *shape[1:])
        first, images = 0, sum(map(self.images_of, group))
        for call in group:
            part = value(call)
            if whole is None:
                whole = self.cache.empty(images, part, fits)
            whole[first : first + len(part)] = part
            first += len(part)
        assert whole is not None
        return whole


class _Sum:
    """Adds up tensors; the first is not copied."""

    def __init__(self) -> None:
        self._value: Tensor | None = None

    def add(self, part: Tensor) -> None:
        self._value = part if self._value is None else self._value + part

    @property
    def empty(self) -> bool:
        return self._value is None

    @property
    def value(self) -> Tensor:
        assert self._value is not None
        return self._value


def calls(
    counts: Sequence[int], marks: Sequence[int], shapes: Sequence[Shapes], together: int, within: range
) -> Iterator[range]:
    """Consecutive micro-batches of one image size, up to `together` images; none cross a mark."""
    start, first, images = within.start, sum(counts[: within.start]), 0
    for batch in within:
        size = counts[batch]
        crosses = any(first < mark <= first + images for mark in marks)
        if batch > start and (crosses or images + size > together or shapes[batch] is not shapes[start]):
            yield range(start, batch)
            start, first, images = batch, first + images, 0
        images += size
    yield range(start, within.stop)


def joined(values: Sequence[Tensor], images_first: bool) -> Tensor:
    """Concatenate values of consecutive micro-batches, in the layout of all boundaries."""
    if len(values) == 1:
        return values[0]
    if images_first:
        return torch.cat(list(values))
    time, _, *rest = values[0].shape
    images = sum(value.shape[1] for value in values)
    layout = torch.channels_last if len(rest) == 3 else torch.contiguous_format
    whole = torch.empty(time * images, *rest, dtype=values[0].dtype, device=values[0].device, memory_format=layout)
    whole = whole.unflatten(0, (time, images))
    for part, value in zip(whole.split([value.shape[1] for value in values], 1), values, strict=True):
        part.copy_(value)
    return whole


def rows_of(values: Tensor) -> Tensor:
    """`[N, ...]` as a matrix with one row per image, channels last: only then are reductions over images fast."""
    return (values.permute(0, 2, 3, 1) if values.ndim == 4 else values).reshape(len(values), -1)


def image_of(row: Tensor, like: Tensor) -> Tensor:
    """The inverse for one row, in the shape of one image of `like`."""
    if like.ndim != 4:
        return row.reshape(like.shape[1:])
    _, channels, height, width = like.shape
    return row.reshape(height, width, channels).permute(2, 0, 1)


def over_positions(error: Tensor, channel: int) -> Tensor:
    """[C]: sum over images of the mean over positions, so that all images have equal weight."""
    rows = of_channels(error, channel).double()
    return rows.sum(1) / (rows.shape[1] / error.shape[0])


def _squared(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) ** 2
