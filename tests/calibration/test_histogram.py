"""Histograms: exact whatever the order and size of batches; percentiles against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikecal.calibration.histogram import BINS, Histogram

CLIP = 20.0  # which the widest channels reach


def activations(n: int, channels: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-3, 2, channels)[None, :, None]
    return torch.randn(n, channels, 37, generator=generator).relu() * spread


def merged(x: torch.Tensor, sizes: list[int]) -> Histogram:
    parts = [Histogram.of(part, 1, CLIP) for part in x.split(sizes)]
    result = parts[0]
    for part in parts[1:]:
        result = result.merge(part)
    return result


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batch_size_and_order_do_not_matter(data: st.DataObject) -> None:
    x = activations(24, 6).clamp(max=CLIP)
    whole = Histogram.of(x, 1, CLIP)
    order = torch.tensor(data.draw(st.permutations(range(24))))
    cut = data.draw(st.integers(1, 23))
    pieces = merged(x[order], [cut, 24 - cut])
    assert torch.equal(pieces.counts, whole.counts)
    assert torch.equal(pieces.exponent, whole.exponent)
    assert torch.equal(pieces.maximum, whole.maximum)
    assert torch.equal(pieces.clipped, whole.clipped)
    assert torch.equal(whole.clipped, (x == CLIP).sum((0, 2))) and whole.clipped[-1] > 0


def test_counts_are_those_of_the_bins() -> None:
    x = activations(8, 3)
    histogram = Histogram.of(x, 1)
    edges = histogram.edges()
    for c in range(3):
        values = x[:, c].flatten().double()
        assert histogram.counts[c].sum() == values.numel()
        assert histogram.counts[c, 0] == (values == 0).sum()
        for j in (1, 2, 100, 517):
            inside = (values > edges[c, j - 1]) & (values <= edges[c, j])
            assert histogram.counts[c, j] == inside.sum()


def test_a_much_larger_value_widens_the_bins_and_loses_no_count() -> None:
    small, large = torch.full((1, 1, 10), 1e-6), torch.full((1, 1, 10), 1e6)
    histogram = Histogram.of(small, 1).merge(Histogram.of(large, 1))
    assert histogram.counts[0, 1] == 10
    assert histogram.counts.sum() == 20
    assert histogram.maximum.item() == pytest.approx(1e6)


def test_a_channel_of_zeros_takes_the_scale_of_whatever_comes() -> None:
    zero, later = torch.zeros(2, 1, 5), torch.rand(2, 1, 5) + 0.1
    both = Histogram.of(zero, 1).merge(Histogram.of(later, 1))
    assert both.counts[0, 0] == 10
    assert torch.equal(both.counts[0, 1:], Histogram.of(later, 1).counts[0, 1:])


@pytest.mark.parametrize("percent", [50, 90, 99, 99.9])
def test_percentile_is_within_a_bin_of_the_exact_one(percent: float) -> None:
    x = activations(64, 4)
    histogram = Histogram.of(x, 1)
    values = x.movedim(1, 0).flatten(1).double()
    below = torch.quantile(values, percent / 100, dim=1, interpolation="lower")
    above = torch.quantile(values, percent / 100, dim=1, interpolation="higher")
    width = torch.ldexp(torch.ones(4, dtype=torch.float64) / BINS, histogram.exponent)
    found = histogram.percentile(percent)
    assert (found >= below - width).all()
    assert (found <= above + width).all()


def test_layer_histogram_is_that_of_all_channels_together() -> None:
    x = activations(16, 5).clamp(max=CLIP)
    layer = Histogram.of(x, 1, CLIP).layer()
    alone = Histogram.of(x.reshape(16, 1, -1), 1, CLIP)
    assert torch.equal(layer.counts, alone.counts)
    assert torch.equal(layer.maximum, alone.maximum)
    assert torch.equal(layer.clipped, alone.clipped)


def test_more_channels_than_float32_can_index_at_once() -> None:
    x = torch.rand(1, 20_000, 2)
    histogram = Histogram.of(x, 1)
    assert (histogram.counts.sum(1) == 2).all()
