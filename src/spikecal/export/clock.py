"""What depends only on the step: initial potentials, biases, and the gates that keep neurons within their window."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikecal.export.bounds import Range, power_of_two
from spikecal.export.netlist import Clock


@dataclass(frozen=True)
class Window:
    """When a layer of neurons may fire: the `T` steps from `start` on. `arriving` has the first step and the bounds
    of each of its inputs."""

    start: int
    T: int
    arriving: tuple[tuple[int, Range], ...]

    def charge(self, until: int) -> Tensor:
        """The most that can arrive before step `until`, `[C]`."""
        parts = [high * max(0, min(until, first + self.T) - first) for first, (_, high) in self.arriving]
        return torch.stack(parts).sum(0)


def neuron_clock(
    name: str, shape: tuple[int, ...], constant: Tensor, v_init: Tensor, window: Window, gated: bool = True
) -> Clock | None:
    """The clock of a layer of neurons, in units of its threshold; None if it would always be silent.

    Everything a layer has of its own before its window is added at the window's first step: it could not have made it
    fire before. What arrives early from others is held down by -M, given back when the window opens; what is left
    when it ends is held down again. M `[C]` is the smallest power of two that does it. Neurons that are masked need no
    gates.
    """
    start, end = window.start, window.start + window.T
    own, gate = constant.clone(), torch.zeros_like(constant)
    own[start] = v_init + constant[: start + 1].sum(0)
    own[:start] = 0
    if not gated:
        return clock(name, shape, own)
    first = min((step for step, _ in window.arriving), default=start)
    if first < start:
        closed = _holding(window.charge(start))
        gate[first], gate[start] = -closed, closed
    if end < len(gate):
        gate[end] = -_holding(window.charge(end) + own.clamp(min=0).sum(0))
    return clock(name, shape, own, gate)


def clock(name: str, shape: tuple[int, ...], own: Tensor, gate: Tensor | None = None) -> Clock | None:
    """A clock, or None if it would always be zero."""
    gate = torch.zeros_like(own) if gate is None else gate
    return Clock(name=name, shape=shape, own=own, gate=gate) if bool(own.any() or gate.any()) else None


def _holding(charge: Tensor) -> Tensor:
    """What keeps a membrane with this charge below its threshold; zero if it stays below by itself."""
    reaches = charge > 0.99  # rounding must not cause a spike
    return torch.where(reaches, power_of_two(charge.clamp(min=1)), 0)
