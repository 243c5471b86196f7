"""The neurons of other methods: hard resets and temporal switches, against loops over single neurons."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import dyadic, dyadic_images
from torch import Tensor

import spikecal
from spikecal.analysis.energy import measure_energy
from spikecal.neurons import Cells, IntegrateAndFire, Neuron, ResetToZero, TemporalSwitch
from spikecal.pipeline import MAXACT
from spikecal.snn.execute import switched
from spikecal.snn.network import SpikingNetwork

SIXTEENTHS = st.integers(-32, 32).map(lambda n: n / 16)


def fired(neuron: Neuron, current: Tensor, cells: Cells, steps: int) -> Tensor:
    state = neuron.start(cells, current[0])
    return torch.stack([levels.clone() for levels in neuron.advance(current, state, cells, steps)])


@given(st.lists(SIXTEENTHS, min_size=1, max_size=12), SIXTEENTHS, SIXTEENTHS, st.integers(1, 24))
def test_a_hard_reset_forgets_what_is_above_the_threshold(
    currents: list[float], bias: float, v_init: float, sixteenths: int
) -> None:
    theta = sixteenths / 16
    cells = Cells(*(torch.tensor([[value]]) for value in (theta, bias, v_init)))
    v, expected = v_init, []
    for current in currents:
        v += current + bias
        expected.append(1.0 if v >= theta else 0.0)
        v = 0.0 if v >= theta else v
    found = fired(ResetToZero(), torch.tensor(currents)[:, None, None], cells, len(currents))
    assert found.flatten().tolist() == expected


@given(SIXTEENTHS, SIXTEENTHS, st.integers(0, 15), st.integers(1, 24), st.integers(1, 20))
def test_its_closed_form_is_what_a_constant_current_gives(
    current: float, bias: float, v_init: int, sixteenths: int, T: int
) -> None:
    theta = sixteenths / 16
    cells = Cells(*(torch.tensor([[value]]) for value in (theta, bias, min(v_init, sixteenths - 1) / 16)))
    constant = torch.tensor([[current]])
    count = fired(ResetToZero(), constant[None], cells, T).sum(0)
    assert torch.equal(ResetToZero().closed_form(constant, cells, T), count)
    levels, slope = ResetToZero().slope(constant, cells, T)
    assert torch.equal(levels, count) and torch.equal(slope, ((count > 0) & (count < T)).float())


def test_switches_pass_on_the_same_and_send_their_changes() -> None:
    model, x = dyadic(), dyadic_images(12)
    pipelines = [replace(MAXACT, neuron=neuron) for neuron in (IntegrateAndFire(), TemporalSwitch())]
    plain, coded = (
        spikecal.convert(model, dyadic_images(8, seed=4), T=8, pipeline=one, joints="analog") for one in pipelines
    )
    names = [stage.name for stage in plain.snn.stages if stage.spiking]
    a, b = plain.snn.run(x, record=names), coded.snn.run(x, record=names)
    assert torch.equal(a.outputs, b.outputs)
    for name in names:
        train = torch.cat([torch.zeros_like(a.trains[name][:1]), a.trains[name]]).int()
        assert torch.equal(b.spikes[name], train.diff(dim=0).abs().sum(0))
    coded.snn.reset()
    for _ in range(8):
        found = coded.snn.step(x)
    torch.testing.assert_close(found, a.outputs[-1])


def test_a_neuron_that_waits_for_all_of_its_input_switches_at_most_twice() -> None:
    snn = spikecal.convert(dyadic(), dyadic_images(8), T=8, pipeline="tsc", joints="analog").snn
    waiting = SpikingNetwork(snn.graph, 8, {stage.name: 7 for stage in snn.stages if stage.spiking})
    x = dyadic_images(12, seed=3)
    spikes = waiting.run(x).spikes
    assert max(int(counts.max()) for counts in spikes.values()) == 2
    energy = measure_energy(waiting, x)
    assert energy.spikes == pytest.approx(sum(int(counts.sum()) for counts in spikes.values()) / 12)


def test_steps_in_parts_count_the_same_switches() -> None:
    value = (torch.rand(9, 3, 4, generator=torch.Generator().manual_seed(0)) > 0.5).float() * 0.7
    whole, parts, on = torch.zeros(3, 4), torch.zeros(3, 4), torch.zeros(3, 4)
    whole = switched(value, torch.zeros(3, 4))
    parts = switched(value[:4], on) + switched(value[4:], on)
    assert torch.equal(whole, parts)
