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

SIGNED = SignedIntegrateAndFire()

# Multiples of 1/64 below 64: sums and differences of them are exact in float32.
dyadic = st.integers(-4096, 4096).map(lambda n: n / 64)
positive = st.integers(1, 1024).map(lambda n: n / 64)


def by_hand(currents: list[float], theta: float, v: float = 0.0) -> tuple[list[int], float]:
    """The levels of one neuron, and what is left on its membrane."""
    levels = []
    for current in currents:
        v += current
        level = 1 if v >= theta / 2 else -1 if v < -theta / 2 else 0
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


@given(st.lists(dyadic, min_size=1, max_size=24), positive, dyadic, dyadic)
def test_any_current_bias_and_potential_is_the_loop_by_hand(
    currents: list[float], theta: float, bias: float, v0: float
) -> None:
    expected, left = by_hand([current + bias for current in currents], theta, v0)
    v = double(v0)
    found = fired(double(*currents)[:, None], Cells(double(theta), double(bias)), v, len(currents))
    assert found[:, 0].tolist() == expected
    assert v.item() == left == v0 + sum(currents) + len(currents) * bias - theta * sum(expected)


def test_a_neuron_at_a_tie_falls_silent() -> None:
    """Were -theta/2 to fire as well, it would answer its own spike for ever."""
    assert by_hand([0.5, 0.0, 0.0, 0.0], 1.0)[0] == [1, 0, 0, 0]
    assert fired(double(0.5, 0, 0, 0)[:, None], Cells(double(1.0)), double(0.0), 4)[:, 0].tolist() == [1, 0, 0, 0]


def test_the_slope_is_zero_where_the_sum_is_clipped() -> None:
    levels, slope = SIGNED.slope(double(-3, -1, -0.2, 0, 0.3, 1, 3), Cells(double(1.0)), 4)
    assert levels.tolist() == [-4, -4, -1, 0, 1, 4, 4]
    assert slope.tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_it_is_for_linear_values_alone() -> None:
    with pytest.raises(ConfigError, match='joints="signed"'):
        Pipeline(neuron=SIGNED)
    with pytest.raises(ConfigError, match='joints="signed"'):
        Pipeline.from_dict({"neuron": SIGNED.name})
    with pytest.raises(ValueError, match="negative levels"):
        SignedSpike(neuron=IntegrateAndFire())
    with pytest.raises(ValueError, match="no clip"):
        SignedSpike(clip=6.0)
