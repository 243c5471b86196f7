"""Signed integrate-and-fire against its closed form and against a loop anyone would write."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spikecal import ConfigError, Pipeline
from spikecal.graph.ops import SignedSpike
from spikecal.neurons import Cells, IntegrateAndFire, SignedIntegrateAndFire
from spikecal.phases import closing_reach

SIGNED = SignedIntegrateAndFire()

# Multiples of 1/64 below 64: sums and differences of them are exact in float32.
dyadic = st.integers(-4096, 4096).map(lambda n: n / 64)
positive = st.integers(1, 1024).map(lambda n: n / 64)
reaches = st.integers(4, 12).map(lambda n: n / 8)


def by_hand(
    currents: list[float], theta: float, v: float = 0.0, reach: list[float] | None = None
) -> tuple[list[int], float]:
    """The levels of one neuron, and what is left on its membrane."""
    levels = []
    for current, r in zip(currents, reach or [0.5] * len(currents), strict=True):
        v += current
        level = 1 if v >= r * theta else -1 if v < -r * theta else 0
        v -= theta * level
        levels.append(level)
    return levels, v


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def fired(currents: Tensor, cells: Cells, v: Tensor, T: int) -> Tensor:
    return torch.stack([levels.clone() for levels in SIGNED.advance(currents, {"v": v}, cells, T)])


@given(c=dyadic, theta=positive, T=st.integers(1, 64))
def test_a_constant_current_is_rounded_and_ties_go_up(c: float, theta: float, T: int) -> None:
    levels, _ = by_hand([c] * T, theta)
    rounded = min(max(math.floor(c * T / theta + 0.5), -T), T)
    assert sum(levels) == rounded
    cells = Cells(double(theta))
    assert SIGNED.closed_form(double(c), cells, T).item() == rounded
    assert fired(double(c)[None], cells, double(0.0), T)[:, 0].tolist() == levels


@given(c=dyadic, theta=positive, T=st.sampled_from([1, 2, 4, 16, 64]))
def test_with_a_dead_zone_that_closes_it_is_rounded_all_the_same(c: float, theta: float, T: int) -> None:
    cells = Cells(double(theta), reach=closing_reach(double(theta), T))
    found = fired(double(c)[None], cells, double(0.0), T)[:, 0]
    assert found.tolist() == by_hand([c] * T, theta, 0.0, [1 - t / (2 * T) for t in range(1, T + 1)])[0]
    assert found.sum() == min(max(math.floor(c * T / theta + 0.5), -T), T)
    if c >= 0:  # spike for spike what integrate-and-fire sends that rounds by bias
        rounding = Cells(double(theta), bias=double(theta / (2 * T)))
        steps = IntegrateAndFire().advance(double(c)[None], {"v": double(0.0)}, rounding, T)
        assert found.tolist() == [levels.item() for levels in steps]


@given(st.lists(st.tuples(dyadic, reaches), min_size=1, max_size=24), positive, dyadic, dyadic)
def test_any_current_bias_potential_and_reach_matches_a_plain_loop(
    steps: list[tuple[float, float]], theta: float, bias: float, v0: float
) -> None:
    currents, reach = [current for current, _ in steps], [r for _, r in steps]
    expected, left = by_hand([current + bias for current in currents], theta, v0, reach)
    v = double(v0)
    cells = Cells(double(theta), double(bias), reach=double(*reach)[:, None])
    found = fired(double(*currents)[:, None], cells, v, len(currents))
    assert found[:, 0].tolist() == expected
    assert v.item() == left == v0 + sum(currents) + len(currents) * bias - theta * sum(expected)


def test_a_neuron_at_a_tie_falls_silent() -> None:
    """If -theta/2 fired as well, the neuron would alternate forever."""
    assert by_hand([0.5, 0.0, 0.0, 0.0], 1.0)[0] == [1, 0, 0, 0]
    assert fired(double(0.5, 0, 0, 0)[:, None], Cells(double(1.0)), double(0.0), 4)[:, 0].tolist() == [1, 0, 0, 0]


def test_a_closing_dead_zone_does_not_answer_unevenness() -> None:
    """Two spikes at once, then none: too much for a moment. Half a threshold away is no reason to take one back."""
    currents = double(0.8, -0.4, 0.1, 0.6, -0.5, 0.2, 0.1, 0.1)[:, None]
    sent = {}
    for name, reach in {"none": None, "closing": closing_reach(double(1.0), 8)}.items():
        sent[name] = fired(currents, Cells(double(1.0), reach=reach), double(0.0), 8)[:, 0]
    assert sent["none"].sum() == sent["closing"].sum() == 1
    assert sent["none"].abs().sum() == 3 and sent["closing"].abs().sum() == 1


def test_the_slope_is_zero_where_the_sum_is_clipped() -> None:
    levels, slope = SIGNED.slope(double(-3, -1, -0.2, 0, 0.3, 1, 3), Cells(double(1.0)), 4)
    assert levels.tolist() == [-4, -4, -1, 0, 1, 4, 4]
    assert slope.tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_it_is_only_for_linear_values() -> None:
    with pytest.raises(ConfigError, match='joints="signed"'):
        Pipeline(neuron=SIGNED)
    with pytest.raises(ConfigError, match='joints="signed"'):
        Pipeline.from_dict({"neuron": SIGNED.name})
    with pytest.raises(ValueError, match="negative levels"):
        SignedSpike(neuron=IntegrateAndFire())
    with pytest.raises(ValueError, match="must not have a clip"):
        SignedSpike(clip=6.0)
