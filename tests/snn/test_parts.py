"""Large images run some steps at a time: the same spikes as all at once, in calibration and afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, residual
from torch import Tensor, nn

import spikecal
from spikecal.calibration import view
from spikecal.calibration.calibrators import Weights
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.threshold import Quantiser, Threshold
from spikecal.errors import DataError
from spikecal.pipeline import Pipeline
from spikecal.snn import execute, network, walk

PIPELINE = spikecal.ACP.changed(Weights, iterations=3, batch=2)


@pytest.fixture
def few_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 12 x 12 pixels were a large image: three steps at a time."""
    monkeypatch.setattr(execute, "STEP_FLOATS", 3 * 2 * 8 * 12 * 12)


def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of every call that moves a stage on, as they come."""
    taken: list[int] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: taken.append(args[2]) or function(*args)  # type: ignore[func-returns-value]

    monkeypatch.setattr(view, "emit", watched(execute.emit))
    monkeypatch.setattr(walk, "advance", watched(execute.advance))
    return taken


@dataclass(frozen=True, kw_only=True)
class PowerOfTwo(Threshold):
    """Thresholds that divide without rounding."""

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        return torch.exp2(histogram.maximum.log2().ceil())


def images(count: int = 2, size: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-8, 9, (count, 3, size, size), generator=generator) / 8


def test_the_outputs_are_those_of_all_steps_at_once(few_floats: None, monkeypatch: pytest.MonkeyPatch) -> None:
    snn = spikecal.convert(residual(), images(8), T=8, pipeline="lcp", micro_batch=2).snn
    taken = steps_taken(monkeypatch)
    parts = snn(images())
    assert taken == [steps for steps in (3, 3, 2) for _ in snn.stages]
    monkeypatch.setattr(execute, "STEP_FLOATS", 1 << 26)
    assert torch.allclose(parts, snn(images()), atol=1e-5)


def test_dyadic_values_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dyadic_images(8, 16)
    thresholds = Pipeline(threshold=PowerOfTwo())
    monkeypatch.setattr(execute, "STEP_FLOATS", 3 * 2 * 4 * 16 * 16)
    small = spikecal.convert(dyadic(), given, T=8, pipeline=thresholds, micro_batch=2)
    parts = small.snn(given[:2])
    monkeypatch.setattr(execute, "STEP_FLOATS", 1 << 26)
    whole = spikecal.convert(dyadic(), given, T=8, pipeline=thresholds, micro_batch=2)
    assert [record.errors for record in small.records] == [record.errors for record in whole.records]
    assert [record.rate for record in small.records] == [record.rate for record in whole.records]
    assert torch.equal(parts, whole.snn(given[:2]))


def test_calibration_in_parts_agrees(few_floats: None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = steps_taken(monkeypatch)
    small = spikecal.convert(residual(), images(8), T=7, pipeline=PIPELINE, micro_batch=2)
    assert {3, 1} <= set(taken)
    monkeypatch.setattr(execute, "STEP_FLOATS", 1 << 26)
    whole = spikecal.convert(residual(), images(8), T=7, pipeline=PIPELINE, micro_batch=2)
    for a, b in zip(small.records, whole.records, strict=True):
        assert a.stage == b.stage and [e for _, e in a.errors] == pytest.approx([e for _, e in b.errors], rel=0.02)
    assert torch.allclose(small.snn(images()), whole.snn(images()), atol=0.02)


def test_a_network_can_be_read_after_some_steps() -> None:
    snn = spikecal.convert(residual(), images(8), T=6, pipeline="lcp").snn
    outputs = snn.run(images()).outputs
    for steps in (1, 4, 6):
        assert torch.allclose(snn(images(), steps=steps), outputs[steps - 1], atol=1e-5)
    with pytest.raises(DataError, match="after 7 steps"):
        snn(images(), steps=7)


class Active(nn.Module):
    """A network whose outputs are activations."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.one(x).relu()
        return {"a": first, "b": self.two(first).relu()}


@pytest.mark.parametrize("unit", [False, True])
def test_mean_spikes_are_multiples_of_the_threshold(unit: bool) -> None:
    torch.manual_seed(0)
    snn = spikecal.convert(Active(), images(8), T=4, pipeline="baseline").snn
    thetas = {name: op.theta for name, op in snn.ops.items() if getattr(op, "theta", None) is not None}
    passed_on = snn(images())
    snn.readout = "spikes"
    used = snn.normalized() if unit else snn
    found, stepwise = used(images()), None
    for _ in range(4):
        stepwise = used.step(images())
    for name, theta in zip(("a", "b"), thetas.values(), strict=True):
        counts = found[name] / (theta.reshape(-1, 1, 1) / 4)
        assert torch.allclose(counts, counts.round(), atol=1e-3) and counts.max() > 0
        assert torch.allclose(stepwise[name], found[name], atol=1e-5)
        assert torch.allclose(used.run(images()).outputs[name][-1], found[name], atol=1e-5)
        assert not torch.allclose(passed_on[name], found[name], atol=1e-3)


@pytest.mark.parametrize("readout", ["current", "spikes"])
def test_outputs_that_are_activations_are_read_the_same_in_parts(
    readout: network.Readout, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    snn = spikecal.convert(Active(), images(8), T=8, pipeline="baseline").snn
    snn.readout = readout
    whole = snn(images())
    steps = snn.run(images()).outputs
    monkeypatch.setattr(execute, "STEP_FLOATS", 3 * 2 * 3 * 12 * 12)
    assert execute.steps_per_call(snn._shapes_for((images(),)), 2) == 3
    parts, early = snn(images()), snn(images(), steps=5)
    for name in ("a", "b"):
        assert torch.allclose(parts[name], whole[name], atol=1e-6)
        assert torch.allclose(early[name], steps[name][4], atol=1e-6)


def test_only_what_is_used_is_looked_at() -> None:
    """The limit is read where it is defined: the fixture above would change nothing otherwise."""
    assert view.steps_per_call is execute.steps_per_call is network.steps_per_call
