"""Firing thresholds from the ANN's activations: maximum, percentile, minimal squared error."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from spikecal.calibration.histogram import BINS, Histogram, merge_bins
from spikecal.errors import ConfigError
from spikecal.settings import check_types, in_python

TOGETHER = 32_768  # numbers per call of the grid search: fits in a processor's cache
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

    With steps of q = theta/T, F(x) how many values lie below x and H its integral from 0, the error of rounding is the
    sum of `(v - theta)^2` over all values v, less `2 q` times the sum of `H((n - 1/2) q)` for n = 1 to T. Flooring has
    `H(n q) - q/2 F(n q)` there. Both are closed forms, as values are taken as spread evenly within each bin.
    """

    grid: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid < 1:
            raise ConfigError(f"the grid must have at least one value, not {self.grid}")

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        device = histogram.counts.device
        shares = torch.arange(1, self.grid + 1, dtype=torch.float32, device=device) / self.grid  # theta / max
        bins = min(BINS, max(LEAST_BINS, BINS_A_STEP * (1 << (T - 1).bit_length())))
        counts = merge_bins(histogram.counts[:, 1:], BINS // bins).double()
        largest = torch.ldexp(histogram.maximum * bins, -histogram.exponent)  # in bins
        # Values at a clip are not spread: they leave their bin and count at their exact value, the maximum.
        lump = histogram.clipped.double()
        top = (largest.ceil().long() - 1).clamp(min=0)
        counts.scatter_add_(1, top[:, None], -lump[:, None])
        rows = max(1, TOGETHER // (self.grid * T))  # channels at a time
        parts = zip(counts.split(rows), largest.split(rows), lump.split(rows), strict=True)
        best = [shares[squared_errors(shares.double(), *part, T, quantiser).argmin(1)] for part in parts]
        return histogram.maximum * torch.cat(best).double()


@dataclass(frozen=True, kw_only=True)
class Learned(MMSE):
    """The clip that a layer was trained with (PACT, QCFS: `clamp(x, 0, alpha)`); without one, the threshold of MMSE."""

    def within(self, theta: Tensor, clip: float | None) -> Tensor:
        return theta if clip is None else torch.full_like(theta, clip)


def squared_errors(
    shares: Tensor, counts: Tensor, largest: Tensor, lump: Tensor, T: int, quantiser: Quantiser
) -> Tensor:
    """The error `[C, thresholds]` of thresholds that are `shares` of the `largest` value, where `lump` values lie."""
    theta = shares * largest[:, None]
    edges = torch.arange(1, T + 1, device=theta.device).double() - (0.5 if quantiser == "round" else 0.0)
    place = (theta[..., None] * (edges / T)).flatten(1)
    bin = place.long().clamp_(max=counts.shape[1] - 1)
    inside = place.sub_(bin)
    up_to = counts.cumsum(1)
    below = up_to - counts  # F at the lower edges of bins
    integral = (below + counts / 2).cumsum(1).sub_(below + counts / 2)  # H there
    own, before = counts.gather(1, bin), below.gather(1, bin)
    each = integral.gather(1, bin).add_(inside * (before + inside * own / 2))
    if quantiser == "floor":
        each.sub_((before + inside * own).mul_((theta / (2 * T)).repeat_interleave(T, 1)))
    middle = torch.arange(counts.shape[1], device=theta.device).double() + 0.5
    first, second = ((counts * moment).sum(1, keepdim=True) for moment in (middle, middle.square() + 1 / 12))
    beyond = theta.square() * up_to[:, -1:] - 2 * theta * first + second
    return (
        beyond + lump[:, None] * (largest[:, None] - theta).square() - 2 * theta / T * each.unflatten(1, (-1, T)).sum(2)
    )
