"""Neurons from outside the package: whatever emits integers converts, runs in every way and is counted."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Dyadic, dyadic, dyadic_images
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import (
    Bias,
    ClosedFormWeights,
    ConfigError,
    ConversionError,
    FineTune,
    Pipeline,
    ReadOut,
    RefineThreshold,
    SpikingNetwork,
    TemporalBias,
    Weights,
)
from spikecal.analysis.energy import EnergyMeter
from spikecal.graph.ops import MaxPool, Spike
from spikecal.neurons import Cells, IntegrateAndFire, Neuron, State
from spikecal.pipeline import Phase
from spikecal.snn.execute import Want
from spikecal.snn.walk import Course


@dataclass(frozen=True)
class Ternary(Neuron):
    """Takes a spike back where the potential has fallen below zero and there is one to take back."""

    name = "ternary"
    alphabet = (-1, 0, 1)

    def start(self, cells: Cells, like: Tensor) -> State:
        return {**super().start(cells, like), "sent": torch.zeros_like(like)}

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        for t in range(steps):
            state["v"] += current[t if len(current) > 1 else 0] + (0 if cells.bias is None else cells.bias)
            up, down = state["v"] >= cells.theta, (state["v"] < 0) & (state["sent"] > 0)
            levels = up.to(current.dtype) - down.to(current.dtype)
            state["v"] -= cells.theta * levels
            state["sent"] += levels
            yield levels

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        return IntegrateAndFire().closed_form(current, cells, T)

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        return IntegrateAndFire().slope(current, cells, T)


@dataclass(frozen=True)
class Burst(Neuron):
    """Up to two spikes in a step."""

    name = "burst"
    alphabet = (0, 1, 2)

    def advance(self, current: Tensor, state: State, cells: Cells, steps: int) -> Iterator[Tensor]:
        for t in range(steps):
            state["v"] += current[t if len(current) > 1 else 0] + (0 if cells.bias is None else cells.bias)
            levels = (state["v"] / cells.theta).floor().clamp(0, 2)
            state["v"] -= cells.theta * levels
            yield levels

    def closed_form(self, current: Tensor, cells: Cells, T: int) -> Tensor:
        return cells.charge(current, T).floor().clamp(0, 2 * T)

    def slope(self, current: Tensor, cells: Cells, T: int) -> tuple[Tensor, Tensor]:
        count = cells.charge(current, T).floor()
        return count.clamp(0, 2 * T), (count == count.clamp(0, 2 * T)).to(current.dtype)


class Averaged(Dyadic):
    """Without max-pools, which take no negative spikes."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.depthwise(x) + x)
        trunk = self.trunk(F.avg_pool2d(x, 2))
        return self.fc(torch.cat([F.relu(self.left(trunk)), F.relu(self.right(trunk))], 1).mean((2, 3)))


def network(neuron: Neuron, model: nn.Module, T: int = 8, **settings: object) -> SpikingNetwork:
    """Converted, with thresholds that are powers of two: every sum is exact."""
    pipeline = Pipeline(neuron=neuron, rounding="potential", **settings)  # type: ignore[arg-type]
    snn = spikecal.convert(model, dyadic_images(8), T=T, pipeline=pipeline, joints="analog").snn
    for node in snn.graph.nodes.values():
        if isinstance(node.op, Spike):
            assert node.op.theta is not None and node.op.v_init is not None
            node.op.theta.data = torch.full_like(node.op.theta, 0.5)
            node.op.v_init.data = torch.full_like(node.op.v_init, 0.25)
        elif getattr(node.op, "unit", None) is not None:
            node.op.unit.data = torch.full_like(node.op.unit.data, 0.5)  # type: ignore[union-attr]
    return snn


def averaged() -> Averaged:
    model = Averaged()
    model.load_state_dict(dyadic().state_dict())
    return model.eval().requires_grad_(False)


def levels(snn: SpikingNetwork, x: Tensor, chunk: int) -> dict[str, Tensor]:
    """The levels of every layer over all steps, run so many steps at a time."""
    course, found = Course(snn.windows, snn._shapes_for((x,))), dict[str, list[Tensor]]()
    for start in range(0, snn.T, chunk):
        inputs = {snn.graph.inputs()[0]: x.unsqueeze(0)}
        steps = min(chunk, snn.T - start)
        for stage, emission in course.advance(inputs, steps, want=Want.VALUE | Want.LEVELS):
            if emission.levels is not None:
                found.setdefault(stage.name, []).append(emission.levels)
    return {name: torch.cat(parts).int() for name, parts in found.items()}


@pytest.mark.parametrize(("neuron", "model"), [(Ternary(), averaged()), (Burst(), dyadic())], ids=["ternary", "burst"])
def test_all_ways_of_running_give_the_same_levels(neuron: Neuron, model: nn.Module) -> None:
    snn, x = network(neuron, model), dyadic_images(4, seed=5)
    whole = levels(snn, x, snn.T)
    assert {int(level) for layer in whole.values() for level in layer.unique()} == set(neuron.alphabet)
    for chunk in (3, 1):
        assert all(torch.equal(part, whole[name]) for name, part in levels(snn, x, chunk).items())
    run = snn.run(x)
    assert all(torch.equal(run.spikes[name], whole[name].abs().sum(0)) for name in whole)  # spikes have no sign
    snn.reset()
    assert torch.equal(torch.stack([snn.step(x) for _ in range(snn.T)]), run.outputs)
    assert torch.equal(snn(x), run.outputs[-1])


def test_signed_spikes_carry_negative_values_and_cost_energy_all_the_same() -> None:
    model, x = averaged(), dyadic_images(4, seed=5)
    snn = network(Ternary(), model)
    first = snn.stages[0].name
    negative = levels(snn, x, snn.T)
    name = next(name for name, layer in negative.items() if bool((layer < 0).any()))
    assert name != first  # a constant current never falls
    found = spikecal.evaluate(snn, (x, torch.zeros(4, dtype=torch.int64))).energy
    assert found is not None
    every, signed = EnergyMeter(snn), EnergyMeter(snn)
    every.add((x,), {name: layer.abs().sum(0) for name, layer in negative.items()})
    signed.add((x,), {name: layer.sum(0) for name, layer in negative.items()})
    assert found.sops == every.result().sops > signed.result().sops


@pytest.mark.parametrize("preset", ["lcp", "pc", "acp"])
def test_custom_neurons_are_calibrated(preset: str) -> None:
    """Trains of three levels go through the cache: errors recorded in the sweep equal those of a run."""
    model, x = averaged(), dyadic_images(32)
    base = spikecal.pipeline.PRESETS[preset].changed(Weights, iterations=5)  # type: ignore[attr-defined]
    result = spikecal.convert(model, x, T=8, pipeline=replace(base, neuron=Ternary()))
    plain = spikecal.convert(model, x, T=8, pipeline=base)
    assert result.records[-1].errors[-1][1] < 1
    assert [r.errors for r in result.records[1:]] != [r.errors for r in plain.records[1:]]
    wanted = model(x)
    measured = (wanted - result.snn(x)).square().sum() / wanted.square().sum()
    assert measured.item() == pytest.approx(result.records[-1].errors[-1][1], rel=1e-4)


@pytest.mark.parametrize("neuron", [Ternary(), Burst()])
@pytest.mark.parametrize(
    "phases",
    [
        ((RefineThreshold(images=8, least=0.75, most=0.75, grid=1), TemporalBias(images=8)),),
        ((ClosedFormWeights(images=8), Bias(images=8)),),
        (FineTune(images=8, iterations=2), (Bias(images=8),), ReadOut(images=8)),
    ],
)
def test_methods_past_the_paper_take_custom_neurons(neuron: Neuron, phases: tuple[Phase, ...]) -> None:
    x = dyadic_images(8)
    model = averaged() if neuron.alphabet[0] < 0 else dyadic()
    snn = spikecal.convert(model, x, T=8, pipeline=Pipeline(neuron=neuron, sweeps=phases)).snn
    expected = snn(x[:3])
    stepped = [snn.step(x[:3]) for _ in range(8)]
    assert torch.isfinite(expected).all() and torch.allclose(stepped[-1], expected, atol=1e-4)
    for node in snn.graph.nodes.values():
        if isinstance(node.op, MaxPool) and node.op.unit is not None:  # pools follow the thresholds before them
            before = snn.graph.nodes[node.inputs[0]].op
            assert isinstance(before, Spike) and torch.equal(node.op.unit, before.height(1).expand_as(node.op.unit))


def test_max_pools_take_levels_but_no_negative_ones() -> None:
    with pytest.raises(ConversionError, match="max-pool of ternary neurons"):
        network(Ternary(), dyadic())


def test_a_working_directory_takes_custom_neurons(tmp_path: Path) -> None:
    pipeline = Pipeline(neuron=Burst(), sweeps=((Bias(),),))
    first, second = (
        spikecal.convert(dyadic(), dyadic_images(8), T=2, pipeline=pipeline, workdir=tmp_path / "work")
        for _ in range(2)
    )
    assert torch.equal(first.snn(dyadic_images(4)), second.snn(dyadic_images(4)))


@pytest.mark.parametrize("levels", [(), (0,), (0, 2), (1, 2), (0.0, 1.0), (0, 1, 200), [0, 1]])
def test_an_alphabet_is_neighbouring_integers(levels: Any) -> None:
    class Odd(Neuron):
        alphabet = levels

    with pytest.raises(ConfigError, match="alphabet of Odd"):
        Pipeline(neuron=Odd())


def test_the_names_of_the_package_are_taken() -> None:
    class Mine(Neuron):
        name = "integrate-and-fire"

    with pytest.raises(ConfigError, match="a name of its own"):
        Pipeline(neuron=Mine())


def test_thresholds_are_searched_for_all_levels_a_mean_can_have() -> None:
    pipeline = Pipeline(neuron=Burst())
    result = spikecal.convert(dyadic(), dyadic_images(8), T=4, pipeline=pipeline, joints="analog")
    for name, histogram in result.histograms.items():
        op = result.snn.graph.nodes[name].op
        assert isinstance(op, Spike) and op.theta is not None
        reach = pipeline.threshold.solve(histogram, 8, "round")  # two spikes in each of four steps
        assert torch.allclose(2 * op.theta, reach.to(op.theta))
