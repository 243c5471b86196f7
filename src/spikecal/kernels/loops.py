"""Loops over torch tensors, for neurons, spikes and histograms: run `machine_code` on all threads."""

import os
from collections.abc import Callable
from threading import Event, Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.kernels import compiled

FEW = 1 << 16  # values for which a second thread does not pay
FLOATS = (torch.float32, torch.float64)
_NOTHING = {dtype: torch.empty(0, dtype=dtype).numpy() for dtype in (*FLOATS, torch.int8)}


def fire(
    current: Tensor,
    v: Tensor,
    theta: Tensor,
    bias: Tensor | None,
    steps: int,
    signed: bool,
    passed: Tensor | None,
    total: Tensor | None,
    sent: Tensor | None,
    levels: Tensor | None,
) -> bool:
    """Run `steps` steps of integrate-and-fire neurons, `signed` or not; False if torch must do it.

    `current` is `[steps or 1, N, ...]`, `v` `[N, ...]`; `theta` and `bias` broadcast against one image. If given,
    `passed`, maybe `current`, and `levels` `[steps, N, ...]` are written, `total` and `sent` `[N, ...]` added to.
    """
    kernels = compiled()
    if kernels is None or v.dtype not in FLOATS or current.dtype != v.dtype or not _plain(theta):
        return False
    if bias is not None and not _plain(bias):
        return False
    image, last = v.shape[1:], _channels_last(v)
    flat = [_NOTHING[v.dtype] if t is None else _flat(t, last) for t in (v, current, passed, total, sent)]
    flat.append(_NOTHING[torch.int8] if levels is None else _flat(levels.view(torch.int8), last))
    if any(t is None for t in flat):
        return False
    period = max(_period(theta, image, last), 1 if bias is None else _period(bias, image, last))
    heights = _row(theta, image, last, period, kernels.BLOCK)
    own = _NOTHING[v.dtype] if bias is None else _row(bias, image, last, period, kernels.BLOCK)
    arguments = [*flat[:2], v.numel() if len(current) > 1 else 0, heights, own, steps, signed, *flat[2:]]
    rows = -(-v.numel() // heights.size)
    _run(kernels.integrate_and_fire, kernels.integrate_and_fire_shared, arguments, rows, v.numel() * steps)
    return True


def unpack(bits: Tensor, lowest: int, skip: int, height: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Levels times height `[steps, N, ...]`, channels last, from rows of packed bits without the first `skip`."""
    kernels = compiled()
    if (
        kernels is None
        or len(bits) > 2
        or (len(bits) == 1 and lowest)
        or not _plain(bits)
        or not _plain(height)
        or height.dtype not in FLOATS
    ):
        return None
    image, last = torch.Size(shape[2:]), len(shape) == 5
    order = (*shape[:2], *shape[3:], shape[2]) if last else shape
    values = torch.empty(order, dtype=height.dtype)
    row = _row(height, image, last, _period(height, image, last), kernels.BLOCK)
    rows = -(-values.numel() // row.size)
    arguments = [bits[0].numpy(), bits[1:].view(-1).numpy(), lowest, skip, row, values.view(-1).numpy()]
    _run(kernels.unpack, kernels.unpack_shared, arguments, rows, values.numel())
    return values.permute(0, 1, 4, 2, 3) if last else values


def count_into_bins(rows: Tensor, per_unit: Tensor, bins: int) -> Tensor | None:
    """How many values `[n, C]` of each channel fall into each bin `ceil(value * per_unit)`: `[C, bins]`."""
    kernels = compiled()
    if kernels is None or not _plain(rows) or not rows.is_contiguous() or rows.dtype not in FLOATS:
        return None
    shares = _shares(len(rows), rows.numel())
    counts = np.zeros((shares, rows.shape[1], bins), np.int64)
    outside = np.zeros(shares, np.int64)
    if shares == 1:
        outside[0] = kernels.count_into_bins(rows.numpy(), per_unit.numpy(), counts[0], 0, len(rows))
    else:
        with _one_at_a_time:
            kernels.count_into_bins_shared(rows.numpy(), per_unit.numpy(), counts, outside, len(rows), shares)
    return None if outside.any() else torch.from_numpy(counts.sum(0) if shares > 1 else counts[0])


def tally(rows: Tensor, most: int, fired: Tensor) -> tuple[int, int] | None:
    """The sum of whole numbers `[N, M]` and how many equal `most`; `fired` `[M]` becomes true where any is positive."""
    kernels = compiled()
    if kernels is None or not _plain(rows) or not rows.is_contiguous() or rows.dtype not in FLOATS:
        return None
    shares = _shares(rows.shape[1], rows.numel())
    found = np.zeros((shares, 2), np.int64)
    if shares == 1:
        kernels.tally(rows.numpy(), most, fired.numpy(), found[0], 0, rows.shape[1])
    else:
        with _one_at_a_time:
            kernels.tally_shared(rows.numpy(), most, fired.numpy(), found, shares)
    return int(found[:, 0].sum()), int(found[:, 1].sum())


# -- how values lie in memory ------------------------------------------------------------------------------------


def _plain(x: Tensor) -> bool:
    """Whether numpy can see the memory of a tensor."""
    return x.device.type == "cpu" and not x.requires_grad and type(x) is Tensor


def _channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _flat(x: Tensor, last: bool) -> np.ndarray | None:
    """The values in memory order, images channels last if `last`; None if numpy cannot see them in that order."""
    if not _plain(x):
        return None
    ordered = x.permute(*range(x.ndim - 3), -2, -1, -3) if last else x
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
    return np.broadcast_to(once.numpy(), (max(1, block // period), period)).flatten()


# -- threads -----------------------------------------------------------------------------------------------------

_one_at_a_time = Lock()  # without OpenMP, numba's pool takes no second caller
_forked = Event()  # numba's threads do not survive a fork
os.register_at_fork(after_in_child=_forked.set)


def _shares(rows: int, values: int) -> int:
    """How many threads share the work."""
    return 1 if _forked.is_set() or values < FEW else max(1, min(torch.get_num_threads(), rows))


def _run(loop: Callable[..., Any], shared: Callable[..., Any], arguments: list[Any], rows: int, values: int) -> None:
    if (shares := _shares(rows, values)) == 1:
        loop(*arguments, 0, rows)
    else:
        with _one_at_a_time:
            shared(*arguments, rows, shares)
