"""Run all stages of a network, front to back: some steps at a time, or as the ANN."""

from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from spikecal.graph.stages import Stage
from spikecal.snn.execute import Emission, Ending, Memory, Shapes, Want, advance, analog
from spikecal.snn.windows import Windows, gathered, part


class Edges:
    """Values passed on but not yet read: a queue per reader of a value, released when all have read it.

    Values are `[steps, N, ...]`, or `[1, N, ...]` if constant.
    """

    def __init__(self, windows: Windows) -> None:
        self._readers: dict[str, list[_Edge]] = {}
        self._edges: dict[str, dict[str, _Edge]] = {}
        for stage in windows.stages:
            leads = windows.charges(stage)
            self._edges[stage.name] = {name: _Edge(windows.T, leads[name]) for name in stage.inputs}
            for name, edge in self._edges[stage.name].items():
                self._readers.setdefault(name, []).append(edge)

    def put(self, name: str, value: Tensor, steps: int) -> None:
        for edge in self._readers.get(name, ()):
            edge.put(value, steps)

    def take(self, stage: Stage, steps: int) -> dict[str, Tensor]:
        """The next `steps` steps of all inputs of a stage; later steps stay queued."""
        return {name: edge.take(steps) for name, edge in self._edges[stage.name].items()}


class _Edge:
    """A queue between a value of `T` steps and a reader whose neurons it charges for `lead` steps before they start."""

    def __init__(self, T: int, lead: int) -> None:
        self._queue: list[tuple[Tensor, int]] = []
        self._unread, self._lead = T, lead
        self._silence = torch.empty(0)  # zero steps, with the shape of the value

    def put(self, value: Tensor, steps: int) -> None:
        if steps:
            self._queue.append((value, steps))

    def take(self, steps: int) -> Tensor:
        there = min(steps + self._lead, self._unread)
        value = self._silence if there == 0 else self._next(there)
        self._silence = value.new_empty(0, *value.shape[1:])
        lead, self._lead = self._lead, 0
        self._unread -= there
        return gathered(value, there, lead, steps)

    def _next(self, steps: int) -> Tensor:
        """Take the first `steps` steps out of the queue."""
        value, there = self._queue.pop(0)
        if there == steps:
            return value
        if there > steps:
            self._queue.insert(0, (part(value, steps, there), there - steps))
            return part(value, 0, steps)
        rest = self._next(steps - there)
        return torch.cat([one.expand(n, *one.shape[1:]) for one, n in ((value, there), (rest, steps - there))])


class Course:
    """A running spiking network: its step, what its stages remember, and what they have not read yet."""

    def __init__(self, windows: Windows, shapes: Shapes, ending: Ending | None = None) -> None:
        """`ending` replaces `emit` at the ends of stages."""
        self.windows, self.shapes, self.ending = windows, shapes, ending
        self.now = 0  # steps since the first input
        self._memory = {stage.name: Memory(windows.waits.get(stage.name, 0)) for stage in windows.stages}
        self._edges = Edges(windows)

    def advance(
        self,
        inputs: Mapping[str, Tensor],
        steps: int,
        *,
        last: bool = False,
        want: Want = Want.VALUE,
        extra: Mapping[str, Want] = MappingProxyType({}),
        kept: Container[str] | None = None,
    ) -> Iterator[tuple[Stage, Emission]]:
        """Run `steps` more steps of `inputs` `[steps, N, ...]`, or `[1, N, ...]` if constant.

        Inputs are read while their window lasts. Yields every stage that receives or emits something. For some stages,
        an `extra` is wanted. After the `last` steps, states are released. What arrives at stages that are not `kept`
        may be overwritten; None keeps all.
        """
        before, self.now = self.now, self.now + steps
        for name, value in inputs.items():
            self._edges.put(name, value, self._within(0, before))
        for stage in self.windows.stages:
            memory, start = self._memory[stage.name], self.windows.starts[stage.name]
            arriving, emitted = self._within(start - memory.wait, before), self._within(start, before)
            if arriving == emitted == 0:
                continue
            values = self._edges.take(stage, arriving) if arriving else {}
            wanted, flush = want | extra.get(stage.name, want), emitted - memory.due(arriving)
            if kept is not None and stage.name not in kept:
                wanted |= Want.OVERWRITTEN
            emission = advance(stage, values, arriving, self.shapes, memory, wanted, flush, self.ending)
            del values
            if emission.value is not None:
                self._edges.put(stage.name, emission.value, emission.steps)
            if last:
                del self._memory[stage.name]
            yield stage, emission

    def _within(self, start: int, before: int) -> int:
        """How many of the steps from `before` to now are in a window that begins at `start`."""
        return max(0, min(self.now, start + self.windows.T) - max(before, start))


def analog_values(
    stages: Sequence[Stage], inputs: Mapping[str, Tensor], shapes: Shapes
) -> Iterator[tuple[Stage, Tensor]]:
    """Yield every stage of the ANN with its value `[1, N, ...]`, from `inputs` of that shape."""
    edges = Edges(Windows(1, stages))
    for name, value in inputs.items():
        edges.put(name, value, 1)
    for stage in stages:
        value = analog(stage, edges.take(stage, 1), shapes)
        edges.put(stage.name, value, 1)
        yield stage, value
