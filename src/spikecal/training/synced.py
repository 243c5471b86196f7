"""Batch normalisation over the images of all ranks: several ranks train the same network as one."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.ranks import Ranks

Norm = nn.modules.batchnorm._BatchNorm


@contextmanager
def synced(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Let the normalisations of a model in training see the whole batch, of which each rank has a share.

    torch's own `SyncBatchNorm` does so on GPUs alone.
    """
    norms = [module for module in model.modules() if isinstance(module, Norm)] if ranks.count > 1 else []
    for norm in norms:
        norm.forward = partial(_normalised, norm, ranks)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _normalised(norm: Any, ranks: Ranks, x: Tensor) -> Tensor:
    """`(x - mean) / sqrt(var + eps) w + b` with mean and variance over all ranks, also in the running statistics."""
    if not norm.training:
        return type(norm).forward(norm, x)
    dims = [d for d in range(x.ndim) if d != 1]
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    count = ranks.counted(torch.tensor(x.numel() // x.shape[1])).item()
    mean = _Total.apply(x.sum(dims), ranks) / count
    centred = x - mean.view(shape)
    variance = _Total.apply(centred.square().sum(dims), ranks) / count
    _remember(norm, mean.detach(), variance.detach() * (count / max(1, count - 1)))
    result = centred * (variance + norm.eps).rsqrt().view(shape)
    return result * norm.weight.view(shape) + norm.bias.view(shape) if norm.affine else result


@torch.no_grad()
def _remember(norm: Any, mean: Tensor, variance: Tensor) -> None:
    if not norm.track_running_stats:
        return
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean), share)
    norm.running_var.lerp_(variance.to(norm.running_var), share)


class _Total(torch.autograd.Function):
    """A sum over ranks; its gradient is the sum of the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        total = value.detach().clone()
        ranks.add_up([total])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        ctx.ranks.add_up([total])
        return total, None
