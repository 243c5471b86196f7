"""Several processes at one task, on torch's own distributed engine: what ranks share, sum up, agree on and watch.

Without a process group there is one rank, which does everything itself at no cost. All ranks make the same calls in the
same order; each works on its share, and what they add up comes out the same to the bit however many there are.
"""

import atexit
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from spikecal import __version__
from spikecal.errors import ConfigError, RankError, first_line

PERIOD = 1.0  # seconds between two signs of life
SILENT = 15.0  # seconds without one, after which a rank counts as lost
STUCK = 45.0  # seconds in which a rank neither gets on nor waits for others
COMPUTED = 0.1  # seconds of a processor: a rank that has used so much since its last sign of life gets on
SEEN_OFF = 8.0  # seconds that the first rank waits for others to read why all end
ALARMED = 4.0  # seconds of silence once a connection has broken
FOREVER = timedelta(days=30)  # torch's own limit: the watch knows better who is late and who is lost
CHUNK = 1 << 17  # numbers that are passed on at once: the next rank adds while this one waits for more
WAY_OUT = "all ranks end. With a working directory, rerun to resume"
SCRATCH = "SPIKECAL_SCRATCH"  # a variable: the folder for what the ranks of a command write, but for the first
EFFICIENCY = 0.85  # of ranks at one task, against ranks at one task each

P = ParamSpec("P")
R = TypeVar("R")
Value = TypeVar("Value")


class Refused(ConfigError):
    """A refusal that all ranks have come to together, so that nobody has to be told."""


class Sum:
    """A float64 vector, added up in image order. A part may be shorter: it adds to the beginning."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._total = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, part: Tensor) -> None:
        self._total[: len(part)] += part

    def total(self) -> Tensor:
        return self._total


class Ranks:
    """One rank: it has everything, and nobody to agree with. `Group` is several."""

    rank, count = 0, 1
    neighbours = 1  # ranks on this machine

    @property
    def first(self) -> bool:
        """Whether this rank prints, and decides."""
        return self.rank == 0

    def shown(self, progress: Value) -> Value | None:
        """Progress, where this rank shows it."""
        return progress if self.first else None

    def share(self, parts: int, turn: int = 0) -> range:
        """Which of so many parts are this rank's: neighbours. `turn` moves the shares on, as not all are as large."""
        place = (self.rank + turn) % self.count
        return range(parts * place // self.count, parts * (place + 1) // self.count)

    def each(self, parts: int, turn: int = 0) -> Iterator[int]:
        """This rank's share of so many parts, one by one, for those who watch."""
        for part in self.share(parts, turn):
            self.beat()
            yield part

    def sum(self, size: int, device: torch.device) -> Sum:
        """An empty sum over all ranks' parts, those of the first rank first."""
        return Sum(size, device)

    def counted(self, counts: Tensor) -> Tensor:
        """Whole numbers, added up over ranks."""
        return counts

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over ranks, number by number."""
        return values

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Add tensors up over ranks, in place and in any order: gradients."""

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Give tensors the values that they have on the first rank, in place."""

    def decided(self, value: Value) -> Value:
        """What the first rank says, as plain data."""
        return value

    def gathered(self, tensors: Mapping[str, Tensor], facts: Any = None) -> list[tuple[dict[str, Tensor], Any]]:
        """Tensors and plain data of every rank, in order."""
        return [(dict(tensors), facts)]

    def joined(self, rows: Tensor) -> Tensor:
        """The rows of all ranks as one tensor, in order."""
        return torch.cat([found["rows"] for found, _ in self.gathered({"rows": rows})]) if self.count > 1 else rows

    def agree(self, call: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse to work together with ranks that were given something else."""

    def wait(self) -> None:
        """Until all ranks are here."""

    def beat(self) -> None:
        """Tell those who watch that this rank gets on."""

    def alone(self) -> "Ranks":
        """This rank by itself, while others do something else."""
        return self

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, this rank is watched, and an error here ends the others as well."""
        yield

    def spread(self, costs: Sequence[float]) -> list[int] | None:
        """Which rank does each of some independent tasks by itself; None where all ranks at each of them is faster."""
        return None


class _Apart(Ranks):
    """One rank of a group that works by itself, and is still watched."""

    def __init__(self, watch: "_Watch") -> None:
        self._watch = watch

    def beat(self) -> None:
        self._watch.moves += 1


class Group(Ranks):
    """All ranks of the default process group. `moved` counts the bytes that this rank gave to others."""

    def __init__(self) -> None:
        self.rank, self.count, self.moved = dist.get_rank(), dist.get_world_size(), 0
        self._watch = _Watch(dist.distributed_c10d._get_default_store(), self.rank, self.count)
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # a group of its own: the caller's may have another backend, and its own traffic
        self._group = self._do(lambda: dist.new_group(backend=backend, timeout=FOREVER))
        homes = self._said(socket.gethostname().encode())
        self.neighbours = homes.count(homes[self.rank])

    # -- what ranks add up ---------------------------------------------------------------------------------------------

    def sum(self, size: int, device: torch.device) -> Sum:
        return Sum(size, device) if self.count == 1 else _Passed(self, size, device)

    def counted(self, counts: Tensor) -> Tensor:
        return self._reduced(counts, dist.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        result = values.detach().clone(memory_format=torch.contiguous_format)
        self.moved += result.nbytes
        self._do(lambda: dist.all_reduce(result, how, self._group))
        return result

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        total = self._reduced(flat, dist.ReduceOp.SUM)
        for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def passed_along(self, total: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """The total of the ranks before, these parts added one by one, and passed on; the last one's is everybody's."""
        for start in range(0, len(total), CHUNK):
            self._do(partial(self._pass, total[start : start + CHUNK], parts, start))
        self._do(lambda: dist.broadcast(total, self.count - 1, self._group))
        return total

    def _pass(self, some: Tensor, parts: Sequence[Tensor], start: int) -> None:
        if self.rank > 0:
            dist.recv(some, self.rank - 1, self._group)
            for part in parts:
                own = part[start : start + len(some)]
                some[: len(own)] += own
        if self.rank + 1 < self.count:
            dist.send(some, self.rank + 1, self._group)
        self.moved += some.nbytes

    # -- what ranks tell each other ------------------------------------------------------------------------------------

    def same(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            plain = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._from_first(plain)
            tensor.detach().copy_(plain)

    def decided(self, value: Value) -> Value:
        data = json.dumps(value if self.first else None).encode()
        size = torch.tensor([len(data)])
        self._from_first(size)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.first:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._from_first(content)
        result: Value = json.loads(content.numpy().tobytes())
        return result

    def _from_first(self, tensor: Tensor) -> None:
        self.moved += tensor.nbytes if self.first else 0
        self._do(lambda: dist.broadcast(tensor, 0, self._group))

    def gathered(self, tensors: Mapping[str, Tensor], facts: Any = None) -> list[tuple[dict[str, Tensor], Any]]:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        homes = {name: tensor.device for name, tensor in tensors.items()}
        found = []
        for data, fact in zip(self._said(save(plain)), self._said(json.dumps(facts).encode()), strict=True):
            read = {name: tensor.clone().to(homes.get(name, "cpu")) for name, tensor in load(data).items()}
            found.append((read, json.loads(fact)))
        return found

    def _said(self, data: bytes) -> list[bytes]:
        """What every rank says."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        own = torch.tensor([len(data)])
        self._do(lambda: dist.all_gather(sizes, own, self._group))
        padded = torch.zeros(max(map(int, sizes)), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else padded[:0]
        contents = [torch.empty_like(padded) for _ in range(self.count)]
        self.moved += len(data)
        self._do(lambda: dist.all_gather(contents, padded, self._group))
        return [content[: int(size)].numpy().tobytes() for content, size in zip(contents, sizes, strict=True)]

    def agree(self, call: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        own = {**facts(), "call": call, "version": [__version__, torch.__version__]}
        everyones = [json.loads(said) for said in self._said(json.dumps(own, sort_keys=True).encode())]
        for rank, other in enumerate(everyones):
            for what in ("version", "call", *everyones[0]):
                if other.get(what) != everyones[0].get(what):
                    told = f" ({_told(other.get(what))}, not {_told(everyones[0].get(what))})" if what in NAMED else ""
                    way_out = "give all ranks the same, and each takes its share"
                    raise Refused(f"rank {rank} differs from rank 0 in its {what}{told}: {way_out}")

    def wait(self) -> None:
        self.counted(torch.zeros(1, dtype=torch.int64))

    def spread(self, costs: Sequence[float]) -> list[int] | None:
        loads, where = [0.0] * self.count, [0] * len(costs)
        for index in sorted(range(len(costs)), key=lambda i: -costs[i]):  # the longest first, to whoever is free first
            where[index] = loads.index(min(loads))
            loads[where[index]] += costs[index]
        return where if max(loads) <= sum(costs) / self.count / EFFICIENCY else None

    # -- being watched -------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        self._watch.moves += 1

    def alone(self) -> Ranks:
        return _Apart(self._watch)

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

    def _serve(self) -> None:
        """Talks to other ranks in a thread of its own: the caller can give up waiting, torch cannot."""
        while True:
            order, inference = self._orders.get()
            try:
                with torch.inference_mode(inference):
                    self._done.put((order(), None))
            except Exception as error:
                self._done.put((None, error))

    def _do(self, order: Callable[[], Value]) -> Value:
        self._watch.waiting = time.monotonic()
        self._orders.put((order, torch.is_inference_mode_enabled()))
        try:
            while True:
                try:
                    result, error = self._done.get(timeout=PERIOD / 2)
                except queue.Empty:
                    self._watch.check()
                    continue
                if error is not None:
                    raise self._watch.explained() from error
                value: Value = result
                return value
        finally:
            self._watch.waiting = None
            self._watch.moves += 1


NAMED = ("version", "call")  # facts that say something to people; the others are hashes


def _told(fact: Any) -> str:
    return " ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


class _Passed(Sum):
    """A sum over ranks: what comes before is not known until the end, so all but the first rank hold their parts."""

    def __init__(self, group: Group, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self._group, self._parts = group, list[Tensor]()

    def add(self, part: Tensor) -> None:
        if self._group.first:
            super().add(part)
        else:
            self._parts.append(part)

    def total(self) -> Tensor:
        return self._group.passed_along(self._total, self._parts)


class _Watch:
    """Signs of life in the store that torch's ranks meet at. The first rank looks after all, all look after the first.

    A rank that neither waits for others nor computes nor gets on is stuck, if others wait for it so long. Whoever finds
    that says so in the store, and everybody who waits ends.
    """

    def __init__(self, store: Any, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.moves = self.busy = self.calls = 0
        self.waiting: float | None = None  # since then
        self.alarmed = False
        self.verdict: str | None = None
        self.failure = -1, ""  # of a call on another rank
        self._store = dist.distributed_c10d.PrefixStore("spikecal", store)
        self._seen: dict[tuple[int, int], tuple[str, float]] = {}
        self._answered = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Stop before the interpreter does: a thread that is cut off inside torch aborts the process."""
        self._closed.set()
        self._thread.join(2 * PERIOD)

    def begin(self) -> None:
        """A call that all ranks make; those inside it are part of it."""
        self.calls += self.busy == 0
        self.busy += 1

    def tell(self, why: str) -> None:
        """Why this rank's call failed, for those who wait for it. Where all fail alike, nobody listens."""
        with suppress(Exception):
            self._store.set(f"call {self.calls}", why)
            self._store.set(f"ended {self.rank}", "")

    def check(self) -> None:
        """Raise where the task cannot go on."""
        if self.verdict is None and time.monotonic() - self._answered > SILENT:
            self.verdict = "rank 0 no longer answers: it was stopped, or its machine is cut off"
        if self.verdict is None and self.failure[0] == self.calls:
            self.verdict = self.failure[1]
        if self.verdict is not None:
            with suppress(Exception):
                self._store.set(f"ended {self.rank}", "")
                self._see_off()
            raise RankError(f"{self.verdict}; {WAY_OUT}")

    def _see_off(self) -> None:
        """The store may end with the first rank, so that waits until the others have read there what is wrong."""
        until = time.monotonic() + SEEN_OFF
        others = [f"ended {rank}" for rank in range(1, self.count)]
        while self.rank == 0 and time.monotonic() < until and not self._store.check(others):
            time.sleep(PERIOD / 10)

    def explained(self) -> RankError:
        """The reason for a broken connection, as soon as somebody knows it."""
        self.alarmed = True
        until = time.monotonic() + 3 * ALARMED
        try:
            while time.monotonic() < until:
                self.check()
                time.sleep(PERIOD / 10)
        except RankError as error:
            return error
        return RankError(
            "the connection to another rank broke; all ranks end. With a working directory, rerun to resume"
        )

    def _run(self) -> None:
        ticks, used = 0, 0.0
        try:
            while True:
                ticks += 1
                computed = time.process_time() - time.thread_time()  # by all threads but this one
                if self.waiting is not None or not self.busy or computed - used > COMPUTED:
                    self.moves, used = self.moves + 1, computed
                self._store.set(f"{self.rank}", f"{ticks} {self.moves}")
                if self._store.check(["verdict"]):
                    self.verdict = self._store.get("verdict").decode()
                    return
                call = self.calls
                if self.waiting is not None and self._store.check([f"call {call}"]):
                    self.failure = call, self._store.get(f"call {call}").decode()
                for other in range(self.count) if self.rank == 0 or self.alarmed else (0,):
                    self._look_at(other)
                self._answered = time.monotonic()
                if self._closed.wait(PERIOD):
                    return
        except Exception:  # of whatever kind of store
            self.verdict = "rank 0 is gone, or whoever started it"

    def _look_at(self, other: int) -> None:
        if not self._store.check([str(other)]):
            return  # not here yet
        limits = (ALARMED if self.alarmed else SILENT), STUCK
        reasons = (
            f"rank {other} no longer answers: it was killed or stopped, or its machine is cut off",
            f"rank {other} has not got on for {STUCK:.0f} seconds",
        )
        now = time.monotonic()
        for kind, told in enumerate(self._store.get(str(other)).decode().split()):
            known, since = self._seen.get((other, kind), ("", 0.0))
            if told != known:
                self._seen[other, kind] = told, now
            elif now - (max(since, self.waiting or now) if kind else since) > limits[kind]:
                self._store.compare_set("verdict", "", reasons[kind])  # the first one counts


# -- who this process is -----------------------------------------------------------------------------------------------

_apart: ContextVar[Ranks | None] = ContextVar("apart", default=None)


def current() -> Ranks:
    """The ranks of torch's default process group; one rank where there is none, or inside `apart`."""
    own = _apart.get()
    if own is not None:
        return own
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Ranks()
    return _group_of(dist.group.WORLD)


def writes() -> bool:
    """Whether this process writes results: the first rank does, and those that have a place of their own for them."""
    several = _apart.get() is None and dist.is_available() and dist.is_initialized()
    return not several or dist.get_rank() == 0 or SCRATCH in os.environ


@lru_cache(maxsize=1)
def _group_of(world: Any) -> Group:
    return Group()


@contextmanager
def apart() -> Iterator[Ranks]:
    """Inside, this rank works by itself, whatever the others do."""
    ranks = current().alone()
    token = _apart.set(ranks)
    try:
        yield ranks
    finally:
        _apart.reset(token)


def together(call: Callable[P, R]) -> Callable[P, R]:
    """A function that all ranks call with the same arguments; an error of one ends all."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with current().working():
            return call(*args, **kwargs)

    return run


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The process group of a command that torchrun, or whoever sets its variables, started as one of several."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, _stop)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    ranks = current()
    with ranks.working():
        yield ranks
    dist.destroy_process_group()


def _stop(*_: Any) -> None:
    raise RankError(f"stopped by SIGTERM, as launchers do when another rank has failed; {WAY_OUT}")
