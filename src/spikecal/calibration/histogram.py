"""Streaming histograms of activations, one per channel. Merging them in any order gives bitwise identical counts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikecal.kernels import loops

BINS = 2048
PARTS = ("counts", "exponent", "maximum", "clipped")  # the parts of a histogram in files


@dataclass
class Histogram:
    """Counts `[C, 1 + BINS]` of non-negative values: bin 0 holds the zeros, bin j the interval ((j-1) w, j w].

    The width w of a channel is a power of two, `2**exponent / BINS`, and grows by merging neighbours when a larger
    value arrives. Powers of two make the bin of a value exact, so neither batch order nor batch size matters.
    A clipped activation has many values at exactly its clip: `clipped` is how many of the counts those are.
    """

    counts: Tensor  # [C, 1 + BINS] int64
    exponent: Tensor  # [C] int32
    maximum: Tensor  # [C] float64
    clipped: Tensor  # [C] int64

    @classmethod
    def of(cls, values: Tensor, channel: int, clip: float | None = None) -> "Histogram":
        """The histogram of one batch, channels at dimension `channel`, of an activation clipped at `clip`."""
        rows = values.movedim(channel, -1)
        channels = rows.shape[-1]
        rows = rows.reshape(-1, channels)
        maximum = _column_maximum(rows).double()
        if not bool(maximum.isfinite().all()):
            raise ValueError("there are NaN or infinite values")
        exponent = _exponent(maximum)
        per_unit = torch.ldexp(torch.full_like(maximum, BINS), -exponent).to(rows.dtype)
        clipped = torch.zeros_like(exponent, dtype=torch.int64) if clip is None else (rows >= clip).sum(0)
        counts = loops.count_into_bins(rows, per_unit, BINS + 1)
        if counts is not None:
            return cls(counts, exponent, maximum, clipped)
        # float32 is exact for indices up to 2**24; wider layers are counted one block of channels at a time
        block = (1 << 24) // (BINS + 1)
        parts = []
        for start in range(0, channels, block):
            part = rows[:, start : start + block]
            width = part.shape[1]
            offset = torch.arange(width, device=rows.device, dtype=rows.dtype) * (BINS + 1)
            index = (part * per_unit[start : start + block]).ceil_().add_(offset).to(torch.int32)
            parts.append(torch.bincount(index.flatten(), minlength=width * (BINS + 1)).reshape(width, BINS + 1))
        return cls(torch.cat(parts), exponent, maximum, clipped)

    @classmethod
    def empty(cls, channels: int, device: torch.device) -> "Histogram":
        """An empty histogram."""
        maximum = torch.zeros(channels, dtype=torch.float64, device=device)
        counts = torch.zeros(channels, 1 + BINS, dtype=torch.int64, device=device)
        return cls(counts, _exponent(maximum), maximum, torch.zeros_like(counts[:, 0]))

    def merge(self, other: "Histogram") -> "Histogram":
        exponent = torch.maximum(self.exponent, other.exponent)
        counts = self.widened(exponent) + other.widened(exponent)
        maximum = torch.maximum(self.maximum, other.maximum)
        return Histogram(counts, exponent, maximum, self.clipped + other.clipped)

    def layer(self) -> "Histogram":
        """All channels merged into one."""
        exponent = self.exponent.max().expand_as(self.exponent)
        counts = self.widened(exponent).sum(0, keepdim=True)
        return Histogram(counts, exponent[:1], self.maximum.max()[None], self.clipped.sum()[None])

    def edges(self) -> Tensor:
        """Zero, and the upper edge of every bin: `[C, 1 + BINS]` float64."""
        width = torch.ldexp(torch.ones_like(self.maximum) / BINS, self.exponent)
        return width[:, None] * torch.arange(BINS + 1, device=width.device)

    def percentile(self, percent: float) -> Tensor:
        """The value below which `percent` % of all values lie, zeros included: `[C]` float64."""
        below = self.counts.cumsum(1).double()
        rank = below[:, -1:] * (percent / 100)
        bin = torch.searchsorted(below, rank).clamp_(max=BINS)
        before = torch.where(bin > 0, below.gather(1, (bin - 1).clamp_(min=0)), 0.0)
        inside = (rank - before) / self.counts.gather(1, bin).clamp(min=1)
        edges = self.edges()
        upper = edges.gather(1, bin)
        lower = edges.gather(1, (bin - 1).clamp_(min=0))
        return torch.minimum((lower + (upper - lower) * inside)[:, 0], self.maximum)

    def widened(self, exponent: Tensor) -> Tensor:
        """The counts for bins of width `2**exponent / BINS`."""
        growth = exponent - self.exponent
        if not growth.any():
            return self.counts
        counts = self.counts.clone()
        for step in growth.unique().tolist():
            if step > 0:
                rows = torch.nonzero(growth == step)[:, 0]
                merged = merge_bins(counts[rows, 1:], 1 << min(step, 40))
                counts[rows, 1:] = torch.nn.functional.pad(merged, (0, BINS - merged.shape[1]))
        return counts


def merge_bins(counts: Tensor, factor: int) -> Tensor:
    """`[C, n]` counts, merging `factor` neighbours each, a power of two."""
    if factor >= counts.shape[1]:
        return counts.sum(1, keepdim=True)
    return counts.reshape(len(counts), -1, factor).sum(2)


def _column_maximum(rows: Tensor) -> Tensor:
    """`rows.amax(0)`, in two steps: torch is slow if the rows are short."""
    count, width = rows.shape
    group = max(1, min(count, 4096 // width))
    whole = count - count % group
    first = rows[:whole].reshape(-1, group * width).amax(0).reshape(group, width).amax(0)
    return first if whole == count else torch.maximum(first, rows[whole:].amax(0))


def _exponent(maximum: Tensor) -> Tensor:
    """The smallest e with max < 2**e; a channel of zeros gets a tiny one that any value raises."""
    _, exponent = torch.frexp(maximum)
    return torch.where(maximum > 0, exponent, torch.full_like(exponent, -60))
