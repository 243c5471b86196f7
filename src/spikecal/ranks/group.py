"""Several ranks: how they share work, add up and agree."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from spikecal import __version__
from spikecal.errors import ConfigError, RankError, first_line
from spikecal.ranks.exchange import Exchange
from spikecal.ranks.one import Ranks, Sum, Value
from spikecal.ranks.watch import Watch

EFFICIENCY = 0.85  # of ranks that share one task, relative to one task per rank
NAMED = ("version", "call")  # facts that people can read; the others are hashes


class Refused(ConfigError):
    """A refusal that all ranks reach together, so that none needs to be notified."""


class Group(Ranks):
    """All ranks of the default process group."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._watch = Watch(dist.distributed_c10d._get_default_store(), self.rank, self.count)
        self._exchange = Exchange(self._watch)
        homes = self._exchange.said(socket.gethostname().encode())
        self.neighbours = homes.count(homes[self.rank])

    @property
    def moved(self) -> int:
        """Bytes that this rank sent to others."""
        return self._exchange.moved

    # -- what ranks add up ---------------------------------------------------------------------------------------------

    def sum(self, size: int, device: torch.device) -> Sum:
        return Sum(size, device) if self.count == 1 else _Passed(self._exchange, size, device)

    def counted(self, counts: Tensor) -> Tensor:
        return self._exchange.reduced(counts, dist.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        return self._exchange.reduced(values, dist.ReduceOp.MAX)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        total = self.counted(torch.cat([tensor.detach().flatten() for tensor in tensors]))
        for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    # -- what ranks tell each other ------------------------------------------------------------------------------------

    def same(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            plain = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._exchange.from_first(plain)
            tensor.detach().copy_(plain)

    def decided(self, value: Value) -> Value:
        data = json.dumps(value if self.first else None).encode()
        size = torch.tensor([len(data)])
        self._exchange.from_first(size)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.first:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._exchange.from_first(content)
        result: Value = json.loads(content.numpy().tobytes())
        return result

    def gathered(self, tensors: Mapping[str, Tensor], facts: Any = None) -> list[tuple[dict[str, Tensor], Any]]:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        homes = {name: tensor.device for name, tensor in tensors.items()}
        contents, told = self._exchange.said(save(plain)), self._exchange.said(json.dumps(facts).encode())
        found = []
        for data, fact in zip(contents, told, strict=True):
            read = {name: tensor.clone().to(homes.get(name, "cpu")) for name, tensor in load(data).items()}
            found.append((read, json.loads(fact)))
        return found

    def agree(self, call: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        own = {**facts(), "call": call, "version": [__version__, torch.__version__]}
        everyones = [json.loads(said) for said in self._exchange.said(json.dumps(own, sort_keys=True).encode())]
        for rank, other in enumerate(everyones):
            for what in ("version", "call", *everyones[0]):
                if other.get(what) != everyones[0].get(what):
                    told = f" ({_told(other.get(what))}, not {_told(everyones[0].get(what))})" if what in NAMED else ""
                    way_out = "give all ranks the same; each takes its share"
                    raise Refused(f"rank {rank} differs from rank 0 in its {what}{told}: {way_out}")

    def wait(self) -> None:
        self.counted(torch.zeros(1, dtype=torch.int64))

    def spread(self, costs: Sequence[float]) -> list[int] | None:
        where, longest = _placed(costs, self.count)
        return where if longest <= sum(costs) / self.count / EFFICIENCY else None

    def each_once(self, costs: Mapping[str, float], task: Callable[[str], Tensor]) -> dict[str, Tensor]:
        where, _ = _placed(list(costs.values()), self.count)
        own = {name: task(name) for name, rank in zip(costs, where, strict=True) if rank == self.rank}
        found = {name: tensor for tensors, _ in self.gathered(own) for name, tensor in tensors.items()}
        return {name: found[name] for name in costs}

    # -- being watched -------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        self._watch.moves += 1

    def leave(self) -> bool:
        return self._watch.leave()

    def alone(self) -> Ranks:
        return _Apart(self._watch, self.neighbours)

    @contextmanager
    def working(self) -> Iterator[None]:
        self._watch.begin()
        try:
            yield
        except (RankError, Refused):
            raise
        except Exception as error:
            self._watch.tell(f"rank {self.rank}: {first_line(error)}")
            raise
        finally:
            self._watch.busy -= 1


def _placed(costs: Sequence[float], count: int) -> tuple[list[int], float]:
    """Which of `count` ranks does each task, longest first to whichever is free first; and how long that takes."""
    loads, where = [0.0] * count, [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        where[index] = loads.index(min(loads))
        loads[where[index]] += costs[index]
    return where, max(loads)


def _told(fact: Any) -> str:
    return " ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


class _Passed(Sum):
    """A sum over ranks: the preceding total arrives only at the end, so all but the first rank keep their parts."""

    def __init__(self, exchange: Exchange, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self._exchange, self._parts = exchange, list[Tensor]()

    def add(self, part: Tensor) -> None:
        if self._exchange.rank == 0:
            super().add(part)
        else:
            self._parts.append(part)

    def total(self) -> Tensor:
        return self._exchange.passed_along(self._total, self._parts)


class _Apart(Ranks):
    """One rank of a group that works by itself, but is still watched."""

    def __init__(self, watch: Watch, neighbours: int) -> None:
        self._watch, self.neighbours = watch, neighbours

    def beat(self) -> None:
        self._watch.moves += 1
