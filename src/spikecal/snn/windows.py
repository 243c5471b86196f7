"""Windows in time: when each value of a network has its T steps, and how a stage handles inputs that begin earlier.

Step j of a value is step j of its own window. A value starts with the latest of its inputs, plus what its stage waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from spikecal.errors import ConfigError
from spikecal.graph.ops import MaxPool
from spikecal.graph.stages import Stage
from spikecal.tensors import channels_last


@dataclass(frozen=True)
class Windows:
    """The windows of all values of a network. `waits` has the stages that wait, each at least one step."""

    T: int
    stages: Sequence[Stage] = field(repr=False)
    waits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spiking = {stage.name for stage in self.stages if stage.spiking}
        for name, wait in self.waits.items():
            if name not in spiking:
                raise ConfigError(f"{name} cannot wait: it is not a layer of neurons of this network")
            if type(wait) is not int or not 0 <= wait < self.T:
                raise ConfigError(f"{name} waits {wait!r} steps: give 0 to T-1, here {self.T - 1}")
        object.__setattr__(self, "waits", {name: wait for name, wait in self.waits.items() if wait})

    @cached_property
    def starts(self) -> dict[str, int]:
        """The first step of the window of each stage's value; inputs of the network start at 0."""
        found: dict[str, int] = {}
        for stage in self.stages:
            found[stage.name] = self._arrival(stage, found) + self.waits.get(stage.name, 0)
        return found

    def _arrival(self, stage: Stage, starts: Mapping[str, int]) -> int:
        return max(starts.get(name, 0) for name in stage.inputs)

    def arrival(self, stage: Stage) -> int:
        """The step from which all inputs of a stage are available."""
        return self._arrival(stage, self.starts)

    def leads(self, stage: Stage) -> dict[str, int]:
        """How many steps each input starts before the latest one."""
        arrival = self.arrival(stage)
        return {name: arrival - self.starts.get(name, 0) for name in stage.inputs}

    def charges(self, stage: Stage) -> dict[str, int]:
        """The leads that charge the membrane early: those into neurons, with nothing stateful on the way."""
        return self.leads(stage) if gathers(stage) else dict.fromkeys(stage.inputs, 0)

    def delays(self, stage: Stage) -> dict[str, int]:
        """The leads that need a delay line: those into joints and max-pools, which pass on inputs at once."""
        return {} if gathers(stage) else {name: lead for name, lead in self.leads(stage).items() if lead}

    @property
    def end(self) -> int:
        """The step after the last of any value."""
        return self.T + max(self.starts.values(), default=0)

    def latest(self, outputs: Iterable[str], currents: bool) -> int:
        """When the last output starts; an output read as a current does not wait for its neurons."""
        early = self.waits if currents else {}
        return max((self.starts.get(name, 0) - early.get(name, 0) for name in outputs), default=0)

    @property
    def interval(self) -> int:
        """Steps after which the next image may start: by then no membrane still holds this one.

        A membrane is in use from its first charge, which may come early, to the last step of its window.
        """
        used = (self.waits.get(stage.name, 0) + max(self.charges(stage).values(), default=0) for stage in self.stages)
        return self.T + max(used, default=0)


def gathers(stage: Stage) -> bool:
    """Whether early inputs may charge the neurons of a stage: a max-pool needs all of its inputs at the same time."""
    return stage.spiking and not any(isinstance(node.op, MaxPool) for node in stage.nodes)


def gathered(value: Tensor, there: int, lead: int, steps: int) -> Tensor:
    """`steps` steps of an input for a stage that starts `lead` steps after it.

    `value` `[there or 1, N, ...]` is what the input has for them. Anything before the start is added to the first
    step: the neurons could not have fired anyway. Missing steps at the end are silent.
    """
    if lead == 0 and there == steps:
        return value
    found = over_steps(channels_last(value.new_empty(value.shape[1:])), steps)
    filled = 0
    if there:
        early = min(lead + 1, there)
        filled = 1 + there - early
        found[0] = added_up(part(value, 0, early), early)
        found[1:filled] = part(value, early, there)
    found[filled:] = 0
    return found


def part(value: Tensor, start: int, end: int) -> Tensor:
    """Some steps of a value; a constant value stays `[1, N, ...]`."""
    return value if len(value) == 1 else value[start:end]


def added_up(value: Tensor, steps: int) -> Tensor:
    """The sum of `[steps or 1, N, ...]` over `steps` steps."""
    return value.sum(0) if value.shape[0] > 1 else value[0] if steps == 1 else value[0] * steps


def over_steps(like: Tensor, steps: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty `[steps, *like.shape]` whose every step has the memory layout of `like`."""
    strides = like.numel(), *like.stride()
    return torch.empty_strided((steps, *like.shape), strides, dtype=dtype or like.dtype, device=like.device)
