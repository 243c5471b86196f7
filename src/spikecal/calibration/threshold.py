"""Firing thresholds from the ANN's activations: maximum, percentile, minimal squared error."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from spikecal.calibration.histogram import BINS, Histogram, merge_bins
from spikecal.errors import ConfigError
from spikecal.settings import check_types, in_python

TOGETHER = 131_072  # numbers per call of the grid search: fits in a processor's cache
BINS_A_STEP, LEAST_BINS = 64, 512  # finer bins no longer change the result
Per = Literal["layer", "channel"]
Quantiser = Literal["floor", "round"]


class UnusableThreshold(ValueError):
    """The chosen value is not a threshold; the caller knows the layer."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Base: chooses the threshold of a layer (or of each of its channels) from its histogram."""

    per: Per = "layer"
    images: int = 1024

    def __post_init__(self) -> None:
        check_types(type(self), in_python(self), "threshold")
        if self.per not in ("layer", "channel"):
            raise ConfigError(f"thresholds must be per 'layer' or 'channel', not per {self.per!r}")
        if self.images < 1:
            raise ConfigError(f"a threshold needs at least one image, not {self.images}")

    def solve(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        """`theta` `[1]` or `[C]`, always positive. A channel that was never active gets its layer's."""
        if self.per == "channel":
            theta = self._chosen(histogram, T, quantiser)
            if (theta > 0).all():
                return theta
        whole = self._chosen(histogram.layer(), T, quantiser)
        whole = torch.where(whole > 0, whole, torch.ones_like(whole))
        return whole if self.per == "layer" else torch.where(theta > 0, theta, whole)

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        """`[C]`: one threshold per channel of the histogram. It may be 0 for channels that were never active."""
        raise NotImplementedError

    def within(self, theta: Tensor, clip: float | None) -> Tensor:
        """The same for a layer whose activation is clipped at `clip`: no value lies beyond."""
        return theta if clip is None else theta.clamp(max=clip)

    def _chosen(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        found: Any = self.choose(histogram, T, quantiser)
        channels = len(histogram.maximum)
        if not isinstance(found, Tensor) or found.shape != (channels,):
            kind = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UnusableThreshold(f"gave {kind}, not a tensor of {channels} thresholds")
        if not bool(found.isfinite().all()):
            raise UnusableThreshold("gave a threshold that is NaN or infinite")
        return found.to(histogram.maximum)


@dataclass(frozen=True, kw_only=True)
class MaxAct(Threshold):
    """The largest activation seen (Diehl et al.): clips nothing, but floors coarsely."""

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        return histogram.maximum


@dataclass(frozen=True, kw_only=True)
class Percentile(Threshold):
    """The `percent`-th percentile of the activations (Rueckauer et al.)."""

    percent: float = 99.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percent <= 100:
            raise ConfigError(f"a percentile must be in (0, 100], not {self.percent}")

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        return histogram.percentile(self.percent)


@dataclass(frozen=True, kw_only=True)
class MMSE(Threshold):
    """The best of `grid` values in (0, max] by mean squared error of the simulated quantiser (Algorithm 1).

    If values are spread evenly within each bin, the error has a closed form. In units of the step q = theta/T, with n
    the level of u and d = u - n, the integral of the squared error from 0 to u is `n/12 + d^3/3` for rounding and
    `n/3 + d^3/3` for flooring, on both sides of the clip.
    """

    grid: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid < 1:
            raise ConfigError(f"the grid must have at least one value, not {self.grid}")

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        maximum = histogram.maximum.clamp(min=torch.finfo(torch.float32).tiny)
        factor = max(1, BINS // max(LEAST_BINS, BINS_A_STEP * (1 << (T - 1).bit_length())))
        counts = merge_bins(histogram.counts[:, 1:], factor).double()
        edges = histogram.edges()[:, ::factor]
        # Values at a clip are not spread: they leave their bin and count at their exact value, the maximum.
        lump = histogram.clipped.double()
        top = ((maximum / edges[:, 1]).ceil().long() - 1).clamp(min=0)
        counts.scatter_add_(1, top[:, None], -lump[:, None])
        shares = torch.arange(1, self.grid + 1, dtype=torch.float32, device=edges.device) / self.grid  # theta / max
        rows = max(1, TOGETHER // counts.shape[1])  # channels at a time
        best = [
            self._best(shares, *parts, T, quantiser)
            for parts in zip(counts.split(rows), edges.split(rows), maximum.split(rows), lump.split(rows), strict=True)
        ]
        return histogram.maximum * torch.cat(best)

    def _best(
        self, shares: Tensor, counts: Tensor, edges: Tensor, maximum: Tensor, lump: Tensor, T: int, quantiser: Quantiser
    ) -> Tensor:
        """The share of the maximum with the least squared error, for some channels."""
        relative, weights = (edges / maximum[:, None]).float(), counts.float()
        totals = []
        for some in shares.split(max(1, TOGETHER // counts.numel())):
            error = squared_error(relative * (T / some)[:, None, None], T, quantiser)
            theta = some.double()[:, None] * maximum
            total = torch.linalg.vecdot(weights, error.diff()).double() * (theta / T) ** 3 / edges[:, 1]
            totals.append(total + lump * (maximum - theta).square())
        return shares[torch.cat(totals).argmin(0)].double()


@dataclass(frozen=True, kw_only=True)
class Learned(MMSE):
    """The clip that a layer was trained with (PACT, QCFS: `clamp(x, 0, alpha)`); without one, the threshold of MMSE."""

    def within(self, theta: Tensor, clip: float | None) -> Tensor:
        return theta if clip is None else torch.full_like(theta, clip)


def squared_error(u: Tensor, T: int, quantiser: Quantiser) -> Tensor:
    """Integral from 0 to u of `(v - clip(round(v) or floor(v), 0, T))^2 dv`."""
    offset, share = (0.5, 12) if quantiser == "round" else (0.0, 3)
    level = (u + offset).floor_().clamp_(0, T)
    distance = u - level
    return (distance * distance).mul_(distance).div_(3).add_(level, alpha=1 / share)
