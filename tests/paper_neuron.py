"""Integrate-and-fire as the paper writes it, to hold the package's against."""

import torch
from torch import Tensor


def if_step(current: Tensor, v: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """One step: spikes in {0, theta}, and the new potential."""
    v = v + current
    spikes = torch.where(v >= theta, theta, torch.zeros_like(theta))
    return spikes, v - spikes
