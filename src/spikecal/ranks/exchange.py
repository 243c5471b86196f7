"""Communication between ranks: tensors and bytes over torch's process group; every wait ends if a rank is lost."""

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spikecal.ranks.watch import PERIOD, Watch

FOREVER = timedelta(days=30)  # torch's own limit, made infinite: the watch knows better who is late and who is lost
CHUNK = 1 << 17  # numbers passed on at once: the next rank adds them while this one waits for more

Value = TypeVar("Value")


def backend() -> str:
    """The backend: gloo, and NCCL between GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


class Exchange:
    """The connections of one rank. All ranks make the same calls in the same order; `moved` counts the bytes sent."""

    def __init__(self, watch: Watch) -> None:
        self.rank, self.count, self.moved = watch.rank, watch.count, 0
        self._watch = watch
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()
        # a separate group: the caller's may have a different backend, and its own traffic
        self._group = self._do(lambda: dist.new_group(backend=backend(), timeout=FOREVER))

    def reduced(self, values: Tensor, how: Any) -> Tensor:
        """The sum or the maximum over ranks, number by number."""
        result = values.detach().clone(memory_format=torch.contiguous_format)
        self.moved += result.nbytes
        self._do(lambda: dist.all_reduce(result, how, self._group))
        return result

    def passed_along(self, total: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Take the total of the ranks before, add these parts one by one, pass it on; the last total goes to all."""
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

    def from_first(self, tensor: Tensor) -> None:
        """Fill a contiguous tensor with the first rank's."""
        self.moved += tensor.nbytes if self.rank == 0 else 0
        self._do(lambda: dist.broadcast(tensor, 0, self._group))

    def said(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, in order."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        own = torch.tensor([len(data)])
        self._do(lambda: dist.all_gather(sizes, own, self._group))
        padded = torch.zeros(max(map(int, sizes)), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else padded[:0]
        contents = [torch.empty_like(padded) for _ in range(self.count)]
        self.moved += len(data)
        self._do(lambda: dist.all_gather(contents, padded, self._group))
        return [content[: int(size)].numpy().tobytes() for content, size in zip(contents, sizes, strict=True)]

    def _serve(self) -> None:
        """Talks to other ranks in its own thread: the caller can give up waiting, torch cannot."""
        while True:
            order, inference = self._orders.get()
            try:
                with torch.inference_mode(inference):
                    self._done.put((order(), None))
            except Exception as error:
                self._done.put((None, error))

    def _do(self, order: Callable[[], Value]) -> Value:
        self._watch.waiting = self._watch.now()
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
