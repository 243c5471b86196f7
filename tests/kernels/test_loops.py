"""Compiled loops equal torch's operations, bit for bit, and leave to torch what they cannot do."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikecal import kernels
from spikecal.calibration.cache import Train
from spikecal.calibration.histogram import BINS, Histogram
from spikecal.errors import ConfigError
from spikecal.kernels import loops
from spikecal.neurons import Cells, IntegrateAndFire, Neuron, SignedIntegrateAndFire
from spikecal.snn.execute import whole_numbers
from spikecal.snn.windows import over_steps
from spikecal.tensors import channels_last

SHAPES = [(3, 5), (2, 4, 3, 3), (1, 16, 5, 7), (2, 1, 4, 4), (2, 3, 40), (1, 1300), (2, 1030, 1, 2)]  # [N, ...]
SMALL_NETWORK = """
import sys, torch, spikecal
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 3), torch.nn.BatchNorm2d(20), torch.nn.ReLU(), torch.nn.AvgPool2d(2),
                          torch.nn.Conv2d(20, 9, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(9 * 25, 4))
result = spikecal.convert(net.eval(), torch.randn(40, 3, 16, 16), T=6, pipeline="lcp", latency=8)
print(spikecal.kernels.described())
result.save(sys.argv[1])
"""

FORKED = """
import os, torch
from spikecal.neurons import Cells, IntegrateAndFire
current, cells = torch.full((1, 4096, 1), 0.3), Cells(torch.ones(1, 1))  # too few values for threads of torch

def potentials():
    state = {"v": torch.zeros(4096, 1)}
    assert IntegrateAndFire().advance_at_once(current, state, cells, 64, None, None, None)
    return state["v"]

torch.set_num_threads(2)
expected = potentials()
child = os.fork()
if child == 0:
    os._exit(0 if (potentials().numpy() == expected.numpy()).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(autouse=True)
def _numba() -> None:
    assert kernels.compiled() is not None, "the tests need numba: pip install numba"


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_steps(neuron: Neuron, current: Tensor, v: Tensor, cells: Cells, steps: int) -> tuple[Tensor, Tensor]:
    """The levels of each step and the last potential, by torch."""
    state = {"v": v.clone()}
    levels = [sent.clone() for sent in neuron.advance(current, state, cells, steps)]
    return torch.stack(levels), state["v"]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    steps=st.integers(1, 5),
    constant=st.booleans(),
    bias=st.sampled_from(["none", "channel", "neuron", "layer"]),
    one_threshold=st.booleans(),
    wanted=st.sets(st.sampled_from(["total", "value", "levels"])),
    neuron=st.sampled_from([IntegrateAndFire(), SignedIntegrateAndFire()]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_neurons_fire_as_by_torch(
    shape: tuple[int, ...],
    steps: int,
    constant: bool,
    bias: str,
    one_threshold: bool,
    wanted: set[str],
    neuron: Neuron,
    dtype: torch.dtype,
    seed: int,
) -> None:
    channels = [1, shape[1], *(1,) * (len(shape) - 2)]
    many = 1 if constant else steps
    current = channels_last(drawn(seed, many * shape[0], *shape[1:], dtype=dtype)).unflatten(0, (many, shape[0]))
    theta = drawn(seed + 1, *([1] * len(shape) if one_threshold else channels), dtype=dtype).abs() + 0.1
    sizes = {"none": None, "channel": channels, "neuron": shape[1:], "layer": [1] * len(shape)}[bias]
    cells = Cells(theta, None if sizes is None else 0.1 * drawn(seed + 2, *sizes, dtype=dtype))
    before = torch.empty_like(current[0]).copy_(drawn(seed + 3, *shape, dtype=dtype))
    expected, potential = by_steps(neuron, current, before, cells, steps)
    state, total = {"v": before.clone()}, torch.ones_like(before) if "total" in wanted else None
    sent = None if total is None else total.clone()
    value = over_steps(before, steps) if "value" in wanted else None
    levels = over_steps(before, steps, whole_numbers(neuron)) if "levels" in wanted else None
    assert neuron.advance_at_once(current, state, cells, steps, total, value, levels, sent)
    assert torch.equal(state["v"], potential)
    assert total is None or torch.equal(total, 1 + expected.sum(0))
    assert sent is None or torch.equal(sent, 1 + expected.abs().sum(0))
    assert value is None or torch.equal(value, expected * theta)
    assert levels is None or torch.equal(levels, expected.to(levels.dtype))


def test_what_is_not_for_the_loop_is_left_to_torch() -> None:
    cells, current = Cells(torch.ones(1, 3, 1, 1)), drawn(0, 2, 4, 3, 5, 5)
    mixed = {"v": torch.zeros(4, 3, 5, 5)}
    turned = current.transpose(3, 4)  # in an order of memory that is neither plain nor channels last
    assert not IntegrateAndFire().advance_at_once(turned, dict(mixed), cells, 2, None, None, None)
    assert not IntegrateAndFire().advance_at_once(current.half(), dict(mixed), cells, 2, None, None, None)
    learned = Cells(torch.ones(1, 3, 1, 1, requires_grad=True))
    assert not IntegrateAndFire().advance_at_once(current, dict(mixed), learned, 2, None, None, None)
    closing = replace(cells, reach=torch.ones(2, 1, 1, 1))
    assert not SignedIntegrateAndFire().advance_at_once(current, dict(mixed), closing, 2, None, None, None)
    assert torch.equal(mixed["v"], torch.zeros(4, 3, 5, 5))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(3, *shape) for shape in SHAPES]),
    start=st.integers(0, 2),
    per=st.sampled_from(["one", "each"]),
    signed=st.booleans(),
)
def test_stored_spikes_come_back(shape: tuple[int, ...], start: int, per: str, signed: bool) -> None:
    levels = drawn(1, *shape).round().clamp(-1, 1).to(torch.int8) if signed else drawn(1, *shape) > 0.4
    sizes = [1, shape[2] if per == "each" else 1, *(1,) * (len(shape) - 3)]
    height = drawn(2, *sizes).abs() + 0.5
    train, steps = Train.pack(levels, height, (-1, 0, 1) if signed else (0, 1)), shape[0] - start
    found = train.unpack(start, steps)
    assert torch.equal(found, levels[start:] * height)
    assert found.movedim(2, -1).is_contiguous() if found.ndim == 5 else found.is_contiguous()


@pytest.mark.parametrize("threads", [1, 2])
def test_spikes_are_counted_as_by_torch(threads: int) -> None:
    rows = drawn(0, 3, 50_000).round().clamp(-1, 2)
    fired, before = torch.zeros(50_000, dtype=torch.bool), torch.get_num_threads()
    fired[:7] = True
    expected = fired | (rows.amax(0) > 0)
    torch.set_num_threads(threads)
    assert loops.tally(rows, 2, fired) == (int(rows.sum(dtype=torch.float64)), int((rows == 2).sum()))
    torch.set_num_threads(before)
    assert torch.equal(fired, expected)
    assert loops.tally(rows.t(), 2, fired) is None


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 200), channels=st.integers(1, 70), seed=st.integers(0, 99))
def test_histograms_have_the_counts_of_a_plain_loop(rows: int, channels: int, seed: int) -> None:
    values = drawn(seed, rows, channels).relu() * 2.0 ** (seed % 7 - 3)
    found = Histogram.of(values, 1)
    expected = np.zeros((channels, BINS + 1), np.int64)
    widths = np.ldexp(1.0 / BINS, found.exponent.numpy())
    for row in values.double().numpy():
        expected[np.arange(channels), np.ceil(row / widths).astype(int)] += 1
    assert np.array_equal(found.counts.numpy(), expected)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_values_in_no_bin_are_never_counted(bad: float) -> None:
    values = torch.ones(5, 3)
    values[2, 1] = bad
    assert loops.count_into_bins(values, torch.full((3,), 8.0), 17) is None


def test_threads_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    current, cells = drawn(3, 4, 7, 33), Cells(torch.full((1, 33), 0.3), torch.full((1, 33), 0.01))
    expected, potential = by_steps(IntegrateAndFire(), current, torch.zeros(7, 33), cells, 4)
    monkeypatch.setattr(loops, "FEW", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(kernels.compiled(), "BLOCK", 33)
    state, total = {"v": torch.zeros(7, 33)}, torch.zeros(7, 33)
    assert IntegrateAndFire().advance_at_once(current, state, cells, 4, total, None, None)
    assert torch.equal(state["v"], potential)
    assert torch.equal(total, expected.sum(0))
    assert torch.equal(Histogram.of(current[0].abs(), 1).counts.sum(1), torch.full((33,), 7))


def test_a_forked_process_works_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "0"


def test_both_ways_write_the_same_file(tmp_path: Path) -> None:
    for way, said in (("torch", "torch"), ("numba", "numba ")):
        command: list[Any] = [sys.executable, "-c", SMALL_NETWORK, tmp_path / f"{way}.snn"]
        environment = {**os.environ, kernels.VARIABLE: way}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(said)
    assert (tmp_path / "torch.snn").read_bytes() == (tmp_path / "numba.snn").read_bytes()


def test_a_choice_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "cuda")
    with pytest.raises(ConfigError, match="SPIKECAL_KERNELS is 'cuda': it must be torch or numba"):
        kernels.compiled.__wrapped__()


def test_numba_requested_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "spikecal.kernels.machine_code")
    monkeypatch.delattr(kernels, "machine_code")
    assert kernels.compiled.__wrapped__() is None
    monkeypatch.setenv(kernels.VARIABLE, "numba")
    with pytest.raises(ConfigError, match="pip install numba"):
        kernels.compiled.__wrapped__()
