"""A single rank, which has everything; also the interface of all kinds of ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class Sum:
    """A float64 vector, added up in image order. A shorter part adds to the beginning."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._total = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, part: Tensor) -> None:
        self._total[: len(part)] += part

    def total(self) -> Tensor:
        return self._total


class Ranks:
    """A single rank, which has everything and no one to agree with. `Group` is several."""

    rank, count = 0, 1
    neighbours = 1  # ranks on this machine

    @property
    def first(self) -> bool:
        """Whether this rank prints and decides."""
        return self.rank == 0

    def shown(self, progress: Value) -> Value | None:
        """Progress, if this rank shows it."""
        return progress if self.first else None

    def share(self, parts: int, turn: int = 0) -> range:
        """Which of `count` parts are this rank's: consecutive ones. `turn` rotates shares, as their sizes differ."""
        place = (self.rank + turn) % self.count
        return range(parts * place // self.count, parts * (place + 1) // self.count)

    def each(self, parts: int, turn: int = 0) -> Iterator[int]:
        """This rank's share of `count` parts, one by one, reporting progress to the watch."""
        for part in self.share(parts, turn):
            self.beat()
            yield part

    def sum(self, size: int, device: torch.device) -> Sum:
        """An empty sum over all ranks' parts, those of the first rank first."""
        return Sum(size, device)

    def counted(self, counts: Tensor) -> Tensor:
        """Integers, added up over ranks."""
        return counts

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over ranks, number by number."""
        return values

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Add tensors up over ranks, in place and in any order: gradients."""

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with their values on the first rank, in place."""

    def decided(self, value: Value) -> Value:
        """Plain data of the first rank."""
        return value

    def gathered(self, tensors: Mapping[str, Tensor], facts: Any = None) -> list[tuple[dict[str, Tensor], Any]]:
        """Tensors and plain data of every rank, in order."""
        return [(dict(tensors), facts)]

    def each_once(self, costs: Mapping[str, float], task: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The tensors of independent tasks: every rank does some, about as much as any other."""
        return {name: task(name) for name in costs}

    def joined(self, rows: Tensor) -> Tensor:
        """The rows of all ranks as one tensor, in order."""
        return torch.cat([found["rows"] for found, _ in self.gathered({"rows": rows})]) if self.count > 1 else rows

    def agree(self, call: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Raise if other ranks were given something else."""

    def wait(self) -> None:
        """Wait until all ranks are here."""

    def beat(self) -> None:
        """Tell the watch that this rank makes progress."""

    def alone(self) -> "Ranks":
        """This rank alone, while others do something else."""
        return self

    def leave(self) -> bool:
        """Tell the others that this rank ends; whether it is the one to say aloud why."""
        return True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Watch this rank inside; an error here ends the others as well."""
        yield

    def spread(self, costs: Sequence[float]) -> list[int] | None:
        """Which rank does each of some independent tasks alone; None if it is faster for all ranks to share each."""
        return None
