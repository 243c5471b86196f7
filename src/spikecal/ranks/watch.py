"""Watch for lost ranks: each gives signs of life, and if one is lost or stuck, all others end and report it."""

import atexit
import threading
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from spikecal.errors import RankError

PERIOD = 1.0  # seconds between two signs of life
SILENT = 15.0  # seconds without one, after which a rank counts as lost
STUCK = 45.0  # seconds in which a rank neither makes progress nor waits for others
COMPUTED = 0.1  # seconds of processor time since the last sign of life that count as progress
SEEN_OFF = 8.0  # seconds that the first rank waits for others to read the reason
ALARMED = 4.0  # seconds of silence once a connection has broken
ABSENT = 1800.0  # seconds, as in torch: a rank that has not come may be busy with something else
STOPPED = 5.0  # seconds without a look at the clock: the scheduler has suspended the whole job
WAY_OUT = "all ranks end. With a working directory, rerun to resume"


class Clock:
    """Seconds, without those in which this process was suspended: the rest of the job was suspended as well."""

    def __init__(self) -> None:
        self._last, self._stopped = time.monotonic(), 0.0
        self._lock = threading.RLock()  # a signal handler may ask in between

    def now(self) -> float:
        with self._lock:
            before, self._last = self._last, time.monotonic()
            if self._last - before > STOPPED:
                self._stopped += self._last - before
            return self._last - self._stopped


class Watch:
    """Signs of life in the store of torch's ranks. The first rank watches all, and all watch the first.

    A rank that neither waits for others nor computes nor makes progress is stuck, if others wait for it that long.
    Whoever finds that out writes it to the store, and everyone who waits ends.
    """

    def __init__(self, store: Any, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.moves = self.busy = self.calls = 0
        self.waiting: float | None = None  # since when
        self.alarmed = False
        self.verdict: str | None = None
        self.failure = -1, ""  # of a call on another rank
        self._store = dist.distributed_c10d.PrefixStore("spikecal", store)
        self._seen: dict[tuple[int, int], tuple[str, float]] = {}
        self.now = Clock().now
        self._answered = self.now()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Stop before the interpreter does: a thread interrupted inside torch aborts the process."""
        self._closed.set()
        self._thread.join(2 * PERIOD)

    def begin(self) -> None:
        """A call that all ranks make; nested calls are part of it."""
        self.calls += self.busy == 0
        self.busy += 1

    def tell(self, why: str) -> None:
        """Publish why this call failed, for the ranks that wait for it. If all fail in the same way, none waits."""
        with suppress(Exception):
            self._store.set(f"call {self.calls}", why)
            if self.rank == 0:
                self._take_leave()  # its own error is what gets reported
            else:
                self._store.set(f"ended {self.rank}", "")

    def check(self) -> None:
        """Raise if the task cannot go on."""
        answered = True
        if self.verdict is None and not self._answers():
            self.verdict, answered = "rank 0 no longer answers: it was stopped, or its machine is cut off", False
        if self.verdict is None and self.failure[0] == self.calls:
            self.verdict = self.failure[1]
        if self.verdict is not None:
            raise RankError(f"{self.verdict}; {WAY_OUT}", tell=not answered or self._take_leave())

    def leave(self) -> bool:
        """On request of a launcher: tell the others that this rank ends; returns whether it is the one to report it."""
        return not self._answers() or self._take_leave()

    def _answers(self) -> bool:
        return self.now() - self._answered <= SILENT

    def _take_leave(self) -> bool:
        """Tell the others that this rank has heard; returns whether it is the one to report it."""
        try:
            teller = self._store.compare_set("teller", "", f"{self.rank}").decode()
            self._store.set(f"ended {self.rank}", "")
            self._see_off()
            return bool(teller == f"{self.rank}")
        except Exception:
            return True  # no one to ask: better twice than never

    def _see_off(self) -> None:
        """The store may end with the first rank, so that rank waits until the others have read the reason."""
        until = time.monotonic() + SEEN_OFF
        others = [f"ended {rank}" for rank in range(1, self.count)]
        while self.rank == 0 and time.monotonic() < until and not self._store.check(others):
            time.sleep(PERIOD / 10)

    def explained(self) -> RankError:
        """The reason for a broken connection, as soon as it is known."""
        self.alarmed = True
        until = time.monotonic() + 3 * ALARMED
        try:
            while time.monotonic() < until:
                self.check()
                time.sleep(PERIOD / 10)
        except RankError as error:
            return error
        return RankError(f"the connection to another rank broke; {WAY_OUT}")

    def _run(self) -> None:
        ticks, used = 0, 0.0
        try:
            while True:
                ticks += 1
                computed = time.process_time() - time.thread_time()  # of all threads except this one
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
                self._answered = self.now()
                if self._closed.wait(PERIOD):
                    return
        except Exception:  # stores raise different kinds
            self.verdict = "rank 0 is gone, or its launcher is"

    def _look_at(self, other: int) -> None:
        if not self._store.check([str(other)]):
            if self.waiting is not None and self.now() - self.waiting > ABSENT:
                self._store.compare_set("verdict", "", f"rank {other} has not come for {ABSENT / 60:.0f} minutes")
            return
        limits = (ALARMED if self.alarmed else SILENT), STUCK
        reasons = (
            f"rank {other} no longer answers: it was killed or stopped, or its machine is cut off",
            f"rank {other} has made no progress for {STUCK:.0f} seconds",
        )
        now = self.now()
        for kind, told in enumerate(self._store.get(str(other)).decode().split()):
            known, since = self._seen.get((other, kind), ("", 0.0))
            if told != known:
                self._seen[other, kind] = told, now
            elif now - (max(since, self.waiting or now) if kind else since) > limits[kind]:
                self._store.compare_set("verdict", "", reasons[kind])  # the first verdict counts
