"""Time a pass of a network on this machine, for estimates."""

import time
from collections.abc import Callable

import torch

ROUNDS = 3


@torch.no_grad()
def fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs: the first warms up, and other programs may slow down some."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
