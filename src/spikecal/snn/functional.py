"""The neuron, as pure functions: one step, T steps, and the closed forms behind them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def if_step(current: Tensor, v: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """One step of integrate-and-fire with reset by subtraction: spikes in {0, theta}, and the new potential.

    `v <- v + I(t)`; spike where `v >= theta`; `v <- v - s(t)` (paper, eq. 2 to 4).
    """
    v = v + current
    spikes = torch.where(v >= theta, theta, torch.zeros_like(theta))
    return spikes, v - spikes


def fire(
    current: Tensor, theta: Tensor, bias: Tensor | None, v: Tensor, steps: int, counts: Tensor | None = None
) -> Tensor:
    """`steps` times `if_step`: spikes `[steps, N, ...]` in {0, theta} of a current `[steps or 1, N, ...]`.

    `v` `[N, ...]` is the state: it is overwritten. `theta` and `bias` broadcast against it. The number of spikes of
    each neuron is added to `counts`, where given.
    """
    spikes = _like(v, steps)
    for t, fires in enumerate(firing(current, theta, bias, v, spikes)):
        if counts is not None:
            counts.add_(fires)
        fires.mul_(theta)
        v.sub_(spikes[t])
    return spikes


def count(
    current: Tensor, theta: Tensor, bias: Tensor | None, v: Tensor, steps: int, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """How often each neuron fires in `steps` steps, `[N, ...]`; where `keep`, also when: `[steps, N, ...]` booleans.

    The same spikes as `fire` gives, without writing them out as numbers.
    """
    total = torch.zeros_like(v)
    one = torch.empty_like(v).unsqueeze(0)
    when = _like(v, steps, torch.bool) if keep else None
    for t, fires in enumerate(firing(current, theta, bias, v, one.expand(steps, *v.shape))):
        total.add_(fires)
        if when is not None:
            when[t].copy_(fires)
        v.addcmul_(fires, theta, value=-1)
    return total, when


def firing(current: Tensor, theta: Tensor, bias: Tensor | None, v: Tensor, out: Tensor) -> Iterator[Tensor]:
    """Each step's spikes as 0 and 1 in `out[t]`; whoever takes them subtracts them from `v`, times theta.

    In place and in floats throughout: the loop is bound by memory, and comparisons into booleans are slow. The bias is
    added to all potentials at the end; until then the level to reach falls by it at every step, which is the same.
    """
    steps = len(out)
    constant = current[0] if current.shape[0] == 1 and steps > 1 else None
    for t, level in enumerate(_levels(theta, bias, steps)):
        v.add_(current[t] if constant is None else constant)
        yield torch.ge(v, level, out=out[t])
    if bias is not None:
        v.add_(steps * bias)


def _levels(theta: Tensor, bias: Tensor | None, steps: int) -> Sequence[Tensor]:
    """What the potential without any bias has to reach at each step."""
    if bias is None:
        return [theta] * steps
    passed = torch.arange(1, steps + 1, device=bias.device, dtype=bias.dtype)
    return (theta - passed.reshape(-1, *(1,) * bias.ndim) * bias).unbind(0)


def _like(v: Tensor, steps: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty `[steps, *v.shape]` whose every step has the memory layout of `v`."""
    return torch.empty_strided((steps, *v.shape), (v.numel(), *v.stride()), dtype=dtype or v.dtype, device=v.device)


def clip_floor(z: Tensor, theta: Tensor, T: int) -> Tensor:
    """Mean output of a neuron with constant input z and v(0) = 0: `theta/T clip(floor(T z / theta), 0, T)`."""
    return theta / T * (T * z / theta).floor().clamp(0, T)


def clip_round(z: Tensor, theta: Tensor, T: int) -> Tensor:
    """The same with half a step more: `theta/T clip(floor(T z / theta + 1/2), 0, T)` (paper, eq. of ClipRound)."""
    return theta / T * (T * z / theta + 0.5).floor().clamp(0, T)
