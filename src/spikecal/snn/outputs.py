"""Collect what outputs are read from, over the steps of a run and the parts of a batch."""

from typing import Any

import torch
from torch import Tensor

from spikecal.snn.windows import added_up, part


class Sums:
    """Sums of what outputs are read from, over the first `most` steps of each; restarted after `warm_up` steps."""

    def __init__(self, most: int, warm_up: int = 0) -> None:
        self._most, self._warm_up = most, warm_up
        self._found: dict[str, tuple[Tensor, int, int]] = {}  # sum, its first step, the step after its last

    def add(self, name: str, value: Tensor, steps: int) -> None:
        total, first, known = self._found.get(name, (None, 0, 0))
        end = min(known + steps, self._most)
        if end <= known:
            return
        if first < self._warm_up < end:  # forget the steps before
            total, first = None, self._warm_up
        start = max(known, first)
        more = added_up(part(value, start - known, end - known), end - start)
        self._found[name] = (more if total is None else total + more, first, end)

    def means(self) -> dict[str, Tensor]:
        return {name: total / (end - first) for name, (total, first, end) in self._found.items()}


class Parts:
    """All steps of what outputs are read from."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Tensor, int]]] = {}

    def add(self, name: str, value: Tensor, steps: int) -> None:
        if steps > 0:
            self._found.setdefault(name, []).append((value, steps))

    def values(self) -> dict[str, Tensor]:
        """`[T, N, ...]` each, or `[1, N, ...]` for a single constant part."""
        return {
            name: parts[0][0]
            if len(parts) == 1
            else torch.cat([value.expand(steps, *value.shape[1:]) for value, steps in parts])
            for name, parts in self._found.items()
        }


def joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenate the parts; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def side_by_side(parts: list[dict[str, Tensor]], dim: int = 0) -> dict[str, Tensor]:
    """Combine values of several parts of a batch."""
    return {name: joined([part[name] for part in parts], dim) for name in parts[0]}


def running_mean(current: Tensor, T: int, warm_up: int = 0) -> Tensor:
    """Means of `[T or 1, N, ...]` currents over the first 1, 2, ... T steps; restarted after `warm_up` steps."""
    if current.shape[0] == 1:
        return current.expand(T, *current.shape[1:]).clone()
    if warm_up:
        return torch.cat([running_mean(current[:warm_up], warm_up), running_mean(current[warm_up:], T - warm_up)])
    steps = torch.arange(1, T + 1, device=current.device, dtype=current.dtype)
    return current.cumsum(0) / steps.reshape(-1, *(1,) * (current.ndim - 1))


def stack(steps: list[Any]) -> Any:
    """Turn a list of equal structures into one structure of stacked tensors."""
    first = steps[0]
    if isinstance(first, dict):
        return {key: stack([s[key] for s in steps]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(stack(list(part)) for part in zip(*steps, strict=True))
    return torch.stack(steps)
