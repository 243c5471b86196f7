"""Running all stages of a network, front to back: some steps at a time, or the ANN."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from spikecal.graph.stages import Stage
from spikecal.snn.execute import Emission, Memory, Shapes, Want, advance, analog


class Edges:
    """What has been passed on and not been read: a queue for each reader of a value, let go when all have read it.

    Values are `[steps, N, ...]`, or `[1, N, ...]` where every step is the same.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._readers: dict[str, list[str]] = {}
        for stage in stages:
            for name in stage.inputs:
                self._readers.setdefault(name, []).append(stage.name)
        self._queues: dict[tuple[str, str], list[tuple[Tensor, int]]] = {}

    def put(self, name: str, value: Tensor, steps: int) -> None:
        for reader in self._readers.get(name, ()):
            self._queues.setdefault((name, reader), []).append((value, steps))

    def take(self, stage: Stage) -> tuple[dict[str, Tensor], int]:
        """The steps that all inputs of a stage have, and how many they are; the others stay."""
        queues = {name: self._queues.setdefault((name, stage.name), []) for name in stage.inputs}
        steps = min(sum(there for _, there in queue) for queue in queues.values())
        return {} if steps == 0 else {name: _taken(queue, steps) for name, queue in queues.items()}, steps


def _taken(queue: list[tuple[Tensor, int]], steps: int) -> Tensor:
    """The first `steps` steps of a queue, taken out of it."""
    value, there = queue.pop(0)
    if there == steps:
        return value
    if there > steps:
        queue.insert(0, (_cut(value, steps, there), there - steps))
        return _cut(value, 0, steps)
    rest = _taken(queue, steps - there)
    return torch.cat([part.expand(n, *part.shape[1:]) for part, n in ((value, there), (rest, steps - there))])


def _cut(value: Tensor, start: int, end: int) -> Tensor:
    return value if len(value) == 1 else value[start:end]


class Course:
    """A spiking network under way: what its stages remember, and what they have not read yet."""

    def __init__(self, stages: Sequence[Stage], shapes: Shapes) -> None:
        self.stages, self.shapes = stages, shapes
        self._memory: Memory = {}
        self._edges = Edges(stages)

    def advance(
        self, inputs: Mapping[str, Tensor], steps: int, *, last: bool = False, want: Want = Want.VALUE
    ) -> Iterator[tuple[Stage, Emission]]:
        """`steps` steps of constant `inputs` `[1, N, ...]`; after the `last` ones states are let go."""
        for name, value in inputs.items():
            self._edges.put(name, value, steps)
        for stage in self.stages:
            values, there = self._edges.take(stage)
            if there == 0:
                continue
            emission = advance(stage, values, there, self.shapes, self._memory, want)
            del values
            if emission.value is not None:
                self._edges.put(stage.name, emission.value, emission.steps)
            if last:
                for node in stage.nodes:
                    self._memory.pop(node.name, None)
            yield stage, emission


def analog_values(
    stages: Sequence[Stage], inputs: Mapping[str, Tensor], shapes: Shapes
) -> Iterator[tuple[Stage, Tensor]]:
    """Every stage of the ANN with its value `[1, N, ...]`, from `inputs` of that shape."""
    edges = Edges(stages)
    for name, value in inputs.items():
        edges.put(name, value, 1)
    for stage in stages:
        value = analog(stage, edges.take(stage)[0], shapes)
        edges.put(stage.name, value, 1)
        yield stage, value
