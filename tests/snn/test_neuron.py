"""The neuron against its closed form, and the fast loop against the pure step."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from paper_neuron import if_step
from torch import Tensor

from spikecal.neurons import Cells, IntegrateAndFire, clip_floor, clip_round

# Multiples of 1/64 below 64: sums and differences of them are exact in float32.
dyadic = st.integers(-4096, 4096).map(lambda n: n / 64)
positive = st.integers(1, 1024).map(lambda n: n / 64)


def fire(current: Tensor, theta: Tensor, bias: Tensor | None, v: Tensor, T: int) -> Tensor:
    """What T steps pass on; `v` moves on."""
    return torch.stack([theta * s for s in IntegrateAndFire().advance(current, {"v": v}, Cells(theta, bias), T)])


@given(c=dyadic, theta=positive, start=st.integers(0, 63), T=st.integers(1, 64))
def test_spike_count_with_constant_input_is_the_closed_form(c: float, theta: float, start: int, T: int) -> None:
    v0 = theta * start / 64  # 0 <= v(0) < theta
    current = torch.full((1, 1), c, dtype=torch.float64)
    v = torch.full((1,), v0, dtype=torch.float64)
    spikes = fire(current, torch.tensor([theta], dtype=torch.float64), None, v, T)
    expected = min(max((v0 + c * T) // theta, 0), T)
    assert (spikes != 0).sum() == expected
    assert v.item() == v0 + c * T - theta * expected  # charge is conserved
    cells = Cells(torch.tensor([theta], dtype=torch.float64), None, torch.tensor([v0], dtype=torch.float64))
    assert IntegrateAndFire().closed_form(current[0], cells, T).item() == expected


@given(z=dyadic, theta=positive, T=st.integers(1, 64))
def test_clip_floor_and_round_are_means_of_simulated_spikes(z: float, theta: float, T: int) -> None:
    th = torch.tensor([theta], dtype=torch.float64)
    zs = torch.tensor([z], dtype=torch.float64)
    for start, closed in ((0.0, clip_floor), (theta / 2, clip_round)):
        spikes = fire(zs[None], th, None, torch.tensor([start], dtype=torch.float64), T)
        assert torch.allclose(spikes.mean(0), closed(zs, th, T), atol=1e-12)


def test_fire_is_the_pure_step_repeated() -> None:
    generator = torch.Generator().manual_seed(0)
    T, shape = 7, (3, 5, 4, 4)
    current = torch.randint(-64, 128, (T, *shape), generator=generator) / 64
    theta = torch.randint(16, 128, (1, 5, 1, 1), generator=generator) / 64
    bias = torch.randint(-8, 8, (1, 5, 1, 1), generator=generator) / 64
    start = torch.randint(0, 16, shape, generator=generator) / 64
    v, expected = start.clone(), []
    for t in range(T):
        spikes, v = if_step(current[t] + bias, v, theta.expand(shape))
        expected.append(spikes)
    state = start.clone()
    assert torch.equal(fire(current, theta, bias, state, T), torch.stack(expected))
    assert torch.equal(state, v)


def test_constant_current_needs_no_copy_for_every_step() -> None:
    current = torch.rand(1, 2, 3, 4, 4).flatten(0, 1).contiguous(memory_format=torch.channels_last).unsqueeze(0)
    theta = torch.full((1, 3, 1, 1), 0.75)
    once = fire(current, theta, None, torch.zeros(2, 3, 4, 4), 9)
    repeated = fire(current.expand(9, 2, 3, 4, 4).clone(), theta, None, torch.zeros(2, 3, 4, 4), 9)
    assert once.shape == (9, 2, 3, 4, 4)
    assert torch.equal(once, repeated)


def test_uneven_input_can_spike_more_than_the_closed_form_says() -> None:
    """Charge +2 then -2: the mean is zero, and yet one spike has left. This is the unevenness error."""
    current = torch.tensor([[2.0], [-2.0]])
    spikes = fire(current, torch.tensor([1.0]), None, torch.zeros(1), 2)
    assert spikes.flatten().tolist() == [1.0, 0.0]
    assert clip_floor(current.mean(0), torch.tensor([1.0]), 2).item() == 0
