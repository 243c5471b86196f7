"""Loops over torch tensors, for neurons, stored spikes and histograms: run `machine_code` on all threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.kernels import compiled

FEW = 1 << 16  # values for which a second thread does not pay
MOST_LEVELS = 1 << 22  # most values in the levels to reach, over all steps
FLOATS = (torch.float32, torch.float64)


def fire(
    current: Tensor,
    v: Tensor,
    theta: Tensor,
    reached: Tensor,
    steps: int,
    passed: Tensor | None,
    total: Tensor | None,
    levels: Tensor | None,
) -> bool:
    """Run `steps` steps of integrate-and-fire neurons; False if torch must do it.

    `current` is `[steps or 1, N, ...]`, `v` `[N, ...]`; `theta` and the levels `reached` `[steps or 1, ...]` broadcast
    against one image. `passed` and `levels` `[steps, N, ...]` and `total` `[N, ...]` are written if given.
    """
    kernels = compiled()
    tensors = [t for t in (current, v, theta, reached, passed, total, levels) if t is not None]
    if kernels is None or not all(map(_plain, tensors)) or v.dtype not in FLOATS or current.dtype != v.dtype:
        return False
    image, last = v.shape[1:], _channels_last(v)
    nothing = v.new_empty(0)
    flat = [_flat(nothing if t is None else t, last) for t in (v, current, passed, total)]
    flat.append(_flat(nothing.byte() if levels is None else levels.view(torch.uint8), last))
    period = _period(reached[0], image, last)
    if any(t is None for t in flat) or len(reached) * max(period, kernels.BLOCK) > MOST_LEVELS:
        return False
    heights = _row(theta, image, last, period, kernels.BLOCK)
    borders = np.stack([_row(level, image, last, period, kernels.BLOCK) for level in reached])
    _on_threads(
        kernels.integrate_and_fire,
        -(-v.numel() // heights.size),
        v.numel() * steps,
        *flat[:2],
        v.numel() if len(current) > 1 else 0,
        heights,
        borders.ravel(),
        heights.size if len(reached) > 1 else 0,
        steps,
        *flat[2:],
    )
    return True


def unpack(bits: Tensor, skip: int, height: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Spikes `[steps, N, ...]`, channels last, from packed bits without the first `skip`."""
    kernels = compiled()
    if kernels is None or not _plain(bits) or not _plain(height) or height.dtype not in FLOATS:
        return None
    image, last = torch.Size(shape[2:]), len(shape) == 5
    order = (*shape[:2], *shape[3:], shape[2]) if last else shape
    values = torch.empty(order, dtype=height.dtype)
    row = _row(height, image, last, _period(height, image, last), kernels.BLOCK)
    rows = -(-values.numel() // row.size)
    _on_threads(kernels.unpack, rows, values.numel(), bits.numpy(), skip, row, values.view(-1).numpy())
    return values.permute(0, 1, 4, 2, 3) if last else values


def count_into_bins(rows: Tensor, per_unit: Tensor, bins: int) -> Tensor | None:
    """How many values `[n, C]` of each channel fall into each bin `ceil(value * per_unit)`: `[C, bins]`."""
    kernels = compiled()
    if kernels is None or not _plain(rows) or not rows.is_contiguous() or rows.dtype not in FLOATS:
        return None
    channels = rows.shape[1]
    shares = _shares(len(rows), rows.numel())
    counts = np.zeros((len(shares), channels, bins), np.int64)
    outside = np.zeros(len(shares), np.int64)

    def share(number: int) -> None:
        outside[number] = kernels.count_into_bins(rows.numpy(), per_unit.numpy(), counts[number], *shares[number])

    _each(share, len(shares))
    return None if outside.any() else torch.from_numpy(counts.sum(0) if len(counts) > 1 else counts[0])


# -- how values lie in memory ------------------------------------------------------------------------------------


def _plain(x: Tensor) -> bool:
    """Whether numpy can see the memory of a tensor."""
    return x.device.type == "cpu" and not x.requires_grad and type(x) is Tensor


def _channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _flat(x: Tensor, last: bool) -> np.ndarray | None:
    """The values in memory order, images channels last if `last`; None if their order differs."""
    ordered = x.movedim(-3, -1) if last and x.numel() else x
    return ordered.view(-1).numpy() if ordered.is_contiguous() else None


def _period(parameter: Tensor, image: torch.Size, last: bool) -> int:
    """The number of values after which the parameters of a layer repeat."""
    if parameter.numel() == 1:
        return 1
    return image[0] if last and parameter.numel() == image[0] == parameter.shape[-3] else image.numel()


def _row(parameter: Tensor, image: torch.Size, last: bool, period: int, block: int) -> np.ndarray:
    """The parameters for the values of a block, or of a period if that is more, in memory order."""
    if period < image.numel():
        once = parameter.flatten().expand(period)
    else:
        whole = parameter.reshape(parameter.shape[-len(image) :]).expand(image)
        once = (whole.movedim(0, -1) if last else whole).flatten()
    row: np.ndarray = once.repeat(max(1, block // period)).contiguous().numpy()
    return row


# -- threads -----------------------------------------------------------------------------------------------------


def _shares(rows: int, values: int) -> list[tuple[int, int]]:
    """The range of rows for each thread."""
    threads = 1 if values < FEW else max(1, min(torch.get_num_threads(), rows))
    return [(rows * i // threads, rows * (i + 1) // threads) for i in range(threads)]


def _on_threads(loop: Callable[..., Any], rows: int, values: int, *arguments: Any) -> None:
    shares = _shares(rows, values)
    _each(lambda number: loop(*arguments, *shares[number]), len(shares))


def _each(share: Callable[[int], None], count: int) -> None:
    """Run all shares of some work; the first in this thread."""
    others = [_threads().submit(share, number) for number in range(1, count)]
    share(0)
    for other in others:
        other.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="spikecal")


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not survive a fork
