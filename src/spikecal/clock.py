"""How long a pass of a network takes here, for estimates."""

import time
from collections.abc import Callable

import torch

ROUNDS = 3


@torch.no_grad()
def fastest(run: Callable[[], object]) -> float:
    """Seconds of the quickest of a few runs: the first one warms up, and others may be using the machine."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
