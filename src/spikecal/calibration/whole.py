"""Phases on a whole network, which a pipeline runs between sweeps, in rounds between which a killed process resumes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from torch import Tensor

from spikecal.calibration.divergence import Outputs, distances
from spikecal.calibration.images import Inputs
from spikecal.calibration.quantised import SetThreshold
from spikecal.errors import ConfigError
from spikecal.graph.graph import Graph
from spikecal.ranks import Ranks
from spikecal.settings import check_types, in_python
from spikecal.snn.network import SpikingNetwork

Value = TypeVar("Value")
State = dict[str, Tensor]  # all that a phase knows after a round; saved and loaded unchanged


@dataclass(frozen=True)
class Whole:
    """What a phase works on. `ann` is the graph before any change; `aim` is what sweeps aim at, initially the ANN.

    `set_threshold` sets the threshold of neurons and the matching half step of rounding.
    """

    ann: Graph
    aim: Graph
    network: SpikingNetwork
    images: Sequence[Inputs]
    seed: int
    set_threshold: SetThreshold
    ranks: Ranks = field(default_factory=Ranks)
    labels: Tensor | None = None  # one number an image, for phases that learn from them

    def share(self, count: int, turn: int = 0) -> slice:
        """Which of `count` parts this process works on: all, if it is the only one. `turn` rotates the shares."""
        own = self.ranks.share(count, turn)
        return slice(own.start, own.stop)

    def distances(self, found: Outputs, targets: Outputs) -> Tensor:
        """`distances` of all images; `found` is this process's share."""
        return distances(found, targets, self.ranks)

    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Combine the gradients of all processes' shares into those of the whole batch, in place."""
        self.ranks.add_up(gradients)

    def decided(self, value: Value) -> Value:
        """A choice that is the same in all processes, as plain data."""
        return self.ranks.decided(value)


@dataclass(frozen=True, kw_only=True)
class NetworkPhase:
    """Base. `images` is how many it looks at, `label` its name on screen; `learns` is whether weights change.

        A phase that `needs_labels` gets those of its images.
    A round draws random numbers from the seed and its own number, so that a resumed phase gives the same bytes.
    """

    images: int = 128
    label: ClassVar[str] = ""
    learns: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.label = cls.label or cls.__name__

    @property
    def rounds(self) -> int:
        """How often `advance` is called."""
        return 1

    def __post_init__(self) -> None:
        check_types(type(self), in_python(self), self.label)
        if self.images < 1 or self.rounds < 1:
            raise ConfigError(f"{self.label} needs at least one image and one round")

    def passes(self, images: int, T: int) -> float:
        """Approximate cost of all rounds in passes of the ANN over one image, estimated before they start."""
        raise NotImplementedError

    def start(self, whole: Whole) -> State:
        """The state before the first round. The network must not change."""
        raise NotImplementedError

    def advance(self, whole: Whole, state: State, number: int) -> State:
        """The state after one more round. The network must not change: a resumed phase starts with a fresh one."""
        raise NotImplementedError

    def finish(self, whole: Whole, state: State) -> Graph:
        """Put the result into the network. Returns what later sweeps aim at: `whole.aim`, or a similar graph."""
        raise NotImplementedError
