"""What a layer of neurons does with its current: the interface, integrate-and-fire, and its other forms.

A neuron emits integers, its *levels*: 0 is no spike, 1 is a spike. A layer passes on theta times the
level. Everything is pure except `advance`, which updates the state in place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikecal.errors import ConfigError, DataError
from spikecal.kernels import loops
from spikecal.tensors import channels_last

State = dict[str, Tensor]  # what a neuron remembers between steps, `[N, ...]` each


@dataclass(frozen=True)
class Cells:
    """The parameters of one layer of neurons, shaped to broadcast against its current `[N, ...]`."""

    theta: Tensor
    bias: Tensor | None = None  # added at every step
    v_init: Tensor | None = None
    step_bias: Tensor | None = None  # `[T, ...]`, one per step; already part of the current given to `advance`
    reach: Tensor | None = None  # `[T, ...]`, of signed neurons; `advance` receives the rows of its own steps

    def own_charge(self, T: int) -> Tensor:
        """What initial potential and bias add in `T` steps."""
        own = torch.zeros_like(self.theta) if self.v_init is None else self.v_init
        own = own if self.step_bias is None else own + self.step_bias[:T].sum(0)
        return own if self.bias is None else own + T * self.bias

    def charge(self, current: Tensor, T: int) -> Tensor:
        """Everything that `T` steps of a constant current add, in units of theta."""
        return (T * current + self.own_charge(T)) / self.theta


@dataclass(frozen=True)
class Neuron:
    """Base of all neurons. A neuron has no parameters of its own: those of its layer are in `Cells`."""

    name: ClassVar[str] = ""  # in files; by default that of the class
    alphabet: ClassVar[tuple[int, ...]] = (0, 1)  # the levels it can emit, consecutive integers
    floors: ClassVar[bool] = True  # whether its sum of levels is rounded down, which loses half a level on average
    switches: ClassVar[bool] = False  # whether it sends the changes of its level, and not the level itself

    def __init_subclass__(cls) -> None:
        cls.name = cls.name or cls.__name__

    def start(self, cells: Cells, like: Tensor) -> State:
        """The state before the first step of a current like `like` `[N, ...]`."""
        return {"v": initial_potential(cells.v_init, like)}

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        """Yield the levels of each step `[N, ...]` in the current's dtype, each valid until the next.

        `current` is `[steps, N, ...]`, or `[1, N, ...]` if it is the same at every step. `state` is updated in place.
        """
        raise self._lacks("advance")

    def advance_at_once(
        self,
        current: Tensor,
        state: State,
        cells: Cells,
        steps: int,
        total: Tensor | None,
        value: Tensor | None,
        levels: Tensor | None,
        sent: Tensor | None = None,
    ) -> bool:
        """`advance` by a compiled loop, for kinds that have one, bit for bit; returns whether it ran.

        The levels are added to `total` `[N, ...]`, their magnitudes to `sent`; they are written to `levels`
        `[steps, N, ...]`, and times theta to `value`.
        """
        return False

    def potential(self, state: State, cells: Cells, steps: int) -> Tensor:
        """The membrane potential `[N, ...]` right after `advance` has yielded the levels of `steps` steps."""
        return state["v"]

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        """The sum of levels after `T` steps of a constant current `[N, ...]`."""
        raise self._lacks("closed_form")

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        """The closed form, and the slope of `theta / T` times it in the current, treating the floor as linear."""
        raise self._lacks("slope")

    def _lacks(self, method: str) -> ConfigError:
        return ConfigError(f"{self.name} neurons cannot do this: {type(self).__name__} has no {method}()")


@dataclass(frozen=True)
class IntegrateAndFire(Neuron):
    """`v <- v + I(t) + b`; a spike where `v >= theta`; `v <- v - theta` there (paper, eq. 2 to 4)."""

    name = "integrate-and-fire"
    alphabet: ClassVar[tuple[int, ...]] = (0, 1)

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        """Integrate, fire, subtract.

        In place and in floats throughout: the loop is memory-bound, and comparisons into booleans are slow. The
        bias is added to all potentials at the end; until then, equivalently, it lowers the threshold.
        """
        v, fires = state["v"], torch.empty_like(state["v"])
        constant = current[0] if current.shape[0] == 1 and steps > 1 else None
        for t, reached in enumerate(_falling([cells.theta] * steps, cells.bias)):
            v.add_(current[t] if constant is None else constant)
            torch.ge(v, reached, out=fires)
            v.addcmul_(fires, cells.theta, value=-1)
            yield fires
        if cells.bias is not None:
            v.add_(steps * cells.bias)

    def advance_at_once(
        self,
        current: Tensor,
        state: State,
        cells: Cells,
        steps: int,
        total: Tensor | None,
        value: Tensor | None,
        levels: Tensor | None,
        sent: Tensor | None = None,
    ) -> bool:
        """The same in one loop; a subclass with another `advance` needs a loop of its own."""
        signed = type(self).advance is SignedIntegrateAndFire.advance and cells.reach is None
        if not signed and type(self).advance is not IntegrateAndFire.advance:
            return False
        return loops.fire(current, state["v"], cells.theta, cells.bias, steps, signed, value, total, sent, levels)

    def potential(self, state: State, cells: Cells, steps: int) -> Tensor:
        """Includes the bias of the steps so far, which `advance` adds only at its end."""
        return state["v"] if cells.bias is None else state["v"] + steps * cells.bias

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        """`clip(floor((T I + v(0) + T b) / theta), 0, T)` (paper, eq. of ClipFloor)."""
        return cells.charge(current, T).floor_().clamp_(0, T)

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        """The slope is 0 where the count is clipped: no weight moves it there."""
        count = (current * (T / cells.theta)).add_(channels_last(cells.own_charge(T) / cells.theta)).floor_()
        clipped = count.clamp(0, T)
        return clipped, count.eq_(clipped)


@dataclass(frozen=True)
class SignedIntegrateAndFire(IntegrateAndFire):
    """`v <- v + I(t) + b`; +1 where `v >= r theta`, -1 where `v < -r theta`; `v <- v - theta` times the level.

    For linear values, which have both signs. `r` is the reach of the step, 1/2 if cells have none. It ends at 1/2,
    so the remainder is in `[-theta/2, theta/2)`: the sum of levels is rounded without a half step, and ties go up.
    If `v = -theta/2` fired as well, a neuron at a tie would alternate between +1 and -1 forever.
    """

    name = "signed integrate-and-fire"
    alphabet = (-1, 0, 1)
    floors = False

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        """Integrate, fire, subtract; in place and in floats, with the bias as in `IntegrateAndFire`."""
        v, levels, below = state["v"], torch.empty_like(state["v"]), torch.empty_like(state["v"])
        reaches = [cells.theta / 2] * steps if cells.reach is None else (cells.reach * cells.theta).unbind(0)
        for t, (reached, reach) in enumerate(zip(_falling(reaches, cells.bias), reaches, strict=True)):
            v.add_(current[t if len(current) > 1 else 0])
            torch.ge(v, reached, out=levels)
            torch.lt(v, reached - 2 * reach, out=below)
            levels.sub_(below)
            v.addcmul_(levels, cells.theta, value=-1)
            yield levels
        if cells.bias is not None:
            v.add_(steps * cells.bias)

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        """`clip(floor((T I + v(0) + T b) / theta + 1/2), -T, T)`."""
        return cells.charge(current, T).add_(0.5).floor_().clamp_(-T, T)

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        """The slope is 0 where the sum is clipped at either end."""
        count = cells.charge(current, T).add_(0.5).floor_()
        clipped = count.clamp(-T, T)
        return clipped, count.eq_(clipped)


@dataclass(frozen=True)
class TemporalSwitch(IntegrateAndFire):
    """Integrate-and-fire, whose level is a switch: a spike turns it on, another one off, and in between none is sent.

    That is temporal switch coding (Han and Roy, Deep spiking neural network: energy efficiency through time based
    coding, ECCV 2020), where synapses go on adding their weight until they are switched off. A neuron that fires n
    times in a row sends 2 spikes in place of n. If it fires without a break, as all do where every layer waits for all
    of its input (`latency`), it sends at most 2 however many steps there are.
    """

    name = "temporal switch"
    switches = True

    def start(self, cells: Cells, like: Tensor) -> State:
        """With all switches off."""
        return {**super().start(cells, like), "on": torch.zeros_like(like)}


@dataclass(frozen=True)
class ResetToZero(Neuron):
    """`v <- v + I(t) + b`; a spike where `v >= theta`; there `v <- 0`, even if v exceeded theta (a hard reset).

    What networks were converted to before soft resets (Sengupta et al., Going deeper in spiking neural networks, 2019).
    """

    name = "reset to zero"

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        """Integrate, fire, forget; in place and in floats."""
        v, stays = state["v"], torch.empty_like(state["v"])
        for t in range(steps):
            v.add_(current[t if len(current) > 1 else 0])
            if cells.bias is not None:
                v.add_(cells.bias)
            torch.lt(v, cells.theta, out=stays)
            v.mul_(stays)
            yield stays.neg_().add_(1)

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        """The first spike comes after `ceil((theta - v(0)) / c)` steps, the others after `ceil(theta / c)` each."""
        v_init = torch.zeros_like(cells.theta) if cells.v_init is None else cells.v_init
        each = current if cells.bias is None else current + cells.bias
        each = each if cells.step_bias is None else each + cells.step_bias[:T].mean(0)
        first, between = _steps_to(cells.theta - v_init, each), _steps_to(cells.theta, each)
        return torch.where(first <= T, 1 + ((T - first) / between).floor(), torch.zeros_like(each))

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        """The slope is taken for 1 where the neuron fires at some steps and not at all of them."""
        count = self.closed_form(current, cells, T)
        return count, ((count > 0) & (count < T)).to(current)


def _steps_to(distance: Tensor, each: Tensor) -> Tensor:
    """How many steps of a constant current it takes to come so far; infinity, where it never does."""
    found = (distance / each.clamp(min=torch.finfo(each.dtype).tiny)).ceil()
    found = found - ((found - 1) * each >= distance).to(each)  # the quotient may have been rounded up,
    found = found + (found * each < distance).to(each)  # or down
    return torch.where((each > 0) | (each >= distance), found.clamp(min=1), torch.full_like(found, torch.inf))


def _falling(levels: Sequence[Tensor], bias: Tensor | None) -> Sequence[Tensor]:
    """The threshold at each step for a potential without its bias, for each of `levels` with it."""
    return levels if bias is None else [level - passed * bias for passed, level in enumerate(levels, 1)]


def initial_potential(v_init: Tensor | None, like: Tensor) -> Tensor:
    """v(0) for every neuron, in the memory layout of `like` `[N, ...]`."""
    if v_init is None:
        return torch.zeros_like(like)
    if v_init.ndim == like.ndim - 1 and v_init.shape != like.shape[1:]:
        raise DataError(
            f"the initial potential was calibrated per neuron for {list(v_init.shape)}, but the input gives "
            f"{list(like.shape[1:])}: use images of the calibration's size, or calibrate potentials per channel"
        )
    return torch.empty_like(like).copy_(v_init.expand(like.shape))


NEURONS: dict[str, Neuron] = {
    neuron.name: neuron for neuron in (IntegrateAndFire(), SignedIntegrateAndFire(), TemporalSwitch(), ResetToZero())
}


def check_neuron(neuron: Any) -> None:
    """Raise for anything but a neuron, and for one whose name or levels files could not hold."""
    if not isinstance(neuron, Neuron):
        raise ConfigError(f"a pipeline's neuron must be an object such as IntegrateAndFire(), not {neuron!r}")
    kind, levels = type(neuron).__name__, neuron.alphabet
    if NEURONS.get(neuron.name, neuron) != neuron:
        raise ConfigError(f"{kind} has the name {neuron.name!r} of a neuron of spikecal: give it a name of its own")
    first = levels[0] if isinstance(levels, tuple) and levels and type(levels[0]) is int else None
    neighbours = first is not None and levels == tuple(range(first, first + len(levels)))
    if not neighbours or not {0, 1} <= set(levels) or not -128 <= levels[0] <= levels[-1] < 128:
        raise ConfigError(f"the alphabet of {kind} must be consecutive integers such as (0, 1), not {levels!r}")


# -- closed forms of the paper -------------------------------------------------------------------------------------


def clip_floor(z: Tensor, theta: Tensor, T: int) -> Tensor:
    """Mean output of a neuron with constant input z and v(0) = 0: `theta/T clip(floor(T z / theta), 0, T)`."""
    return theta / T * (T * z / theta).floor().clamp(0, T)


def clip_round(z: Tensor, theta: Tensor, T: int) -> Tensor:
    """The same with half a step more: `theta/T clip(floor(T z / theta + 1/2), 0, T)` (paper, eq. of ClipRound)."""
    return theta / T * (T * z / theta + 0.5).floor().clamp(0, T)
