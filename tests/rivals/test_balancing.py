"""Thresholds of other methods, each against its own rule written as plain loops."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import images, residual
from torch import Tensor, nn
from waiting import calibrated

import spikecal
from spikecal.calibration.finetune import FineTune
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.threshold import MaxAct
from spikecal.errors import ConfigError
from spikecal.neurons import IntegrateAndFire, ResetToZero
from spikecal.pipeline import RIVALS, Pipeline, resolve, title_of
from spikecal.rivals.balancing import ResidualThreshold, SpikeNorm
from spikecal.rivals.local import LocalBalancing


def chain() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def thetas(snn: spikecal.SpikingNetwork) -> list[float]:
    return [float(stage.end.op.height(1).max()) for stage in snn.stages if stage.spiking]  # type: ignore[union-attr]


def simulated(v: Tensor, current: Tensor, theta: float, soft: bool) -> tuple[Tensor, Tensor]:
    """One step of a layer: the new potential, and what is passed on."""
    v = v + current
    spikes = (v >= theta).float() * theta
    return (v - spikes if soft else v * (spikes == 0)), spikes


def test_spike_norm_balances_on_the_networks_own_maximal_input() -> None:
    """Layer by layer, as its paper has it: simulate, take the largest weighted input, go on to the next layer."""
    model, x, T = chain(), torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), 12
    first, second = model[0], model[2]
    theta = float(first(x).max())
    v, largest = torch.zeros(20, 16), 0.0
    for _ in range(T):
        v, spikes = simulated(v, first(x), theta, soft=False)
        largest = max(largest, float(second(spikes).max()))
    snn = spikecal.convert(model, x, T=T, pipeline="spike-norm").snn
    assert thetas(snn) == pytest.approx([theta, largest], rel=1e-5)
    assert all(stage.end.op.neuron == ResetToZero() for stage in snn.stages if stage.spiking)  # type: ignore[union-attr]


class Block(nn.Module):
    """A convolution and a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return (self.two(self.one(x).relu()) + x).relu().mean((2, 3))


def test_after_a_branch_thresholds_may_be_the_height_of_the_spikes() -> None:
    """Residual blocks have thresholds of 1 for spikes of 1, in the units of the layers before them."""
    torch.manual_seed(0)
    model, x = Block().eval().requires_grad_(False), images(8)
    pipeline = Pipeline(threshold=MaxAct(), rounding="floor", sweeps=((SpikeNorm(factor=0.7, residual="height"),),))
    assert thetas(spikecal.convert(model, x, T=9, pipeline=pipeline).snn) == pytest.approx(
        3 * [0.7 * float(model.stem(x).max())], rel=1e-5
    )
    top = 3 * [float(model.stem(x).max())]
    assert thetas(spikecal.convert(model, x, T=9, pipeline="spike-norm").snn) == pytest.approx(top, rel=1e-5)
    straight, rows = chain(), torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    found = [
        thetas(spikecal.convert(straight, rows, T=9, pipeline=one).snn)
        for one in (pipeline, pipeline.changed(SpikeNorm, residual="balanced"))
    ]
    assert found[0] == found[1] and found[0][0] != found[0][1]  # without a branch, all layers are balanced


class Deep(nn.Module):
    """Six residual blocks of linear layers, with biases or without."""

    def __init__(self, bias: bool, width: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(10, width, bias=bias)
        self.one, self.two = (nn.ModuleList(nn.Linear(width, width, bias) for _ in range(6)) for _ in range(2))
        self.fc = nn.Linear(width, 5, bias=bias)
        for layer in (part for part in self.modules() if isinstance(part, nn.Linear)):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if bias:
                nn.init.normal_(layer.bias, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for one, two in zip(self.one, self.two, strict=True):
            x = (two(one(x).relu()) + x).relu()
        return self.fc(x)


def test_hard_resets_are_for_networks_without_biases() -> None:
    """They pass on a part of every input: without biases all shrink alike; biases outweigh the signal in the end."""
    generator = torch.Generator().manual_seed(1)
    x, tested = torch.randn(32, 10, generator=generator), torch.randn(128, 10, generator=generator)

    def agreement(bias: bool, pipeline: Pipeline) -> float:
        model = Deep(bias).eval().requires_grad_(False)
        snn = spikecal.convert(model, x, T=256, pipeline=pipeline, records=False).snn
        return spikecal.evaluate(snn, tested, ann=model).agreement[-1]

    hard, soft = RIVALS["spike-norm"], replace(RIVALS["spike-norm"], neuron=IntegrateAndFire())
    assert agreement(False, hard) > 0.75 and min(agreement(bias, soft) for bias in (False, True)) > 0.85
    assert agreement(True, hard) < 0.5
    # balanced in all layers, thresholds grow with depth until hardly a spike gets through
    assert agreement(False, hard.changed(SpikeNorm, residual="balanced")) < 0.2


def test_in_parts_of_the_steps_it_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = thetas(spikecal.convert(residual(), images(8), T=9, pipeline="rmp").snn)
    monkeypatch.setattr("spikecal.snn.execute.STEP_FLOATS", 4096)
    assert thetas(spikecal.convert(residual(), images(8), T=9, pipeline="rmp").snn) == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("wait", [1, 3])
def test_layers_that_wait_are_balanced_on_single_steps(monkeypatch: pytest.MonkeyPatch, wait: int) -> None:
    pipeline = Pipeline(sweeps=((SpikeNorm(),),))  # of all layers
    whole = thetas(calibrated(residual(), images(8), pipeline, 8, wait)[0])
    monkeypatch.setattr("spikecal.snn.execute.STEP_FLOATS", 4096)  # some steps at a time: each by itself
    assert thetas(calibrated(residual(), images(8), pipeline, 8, wait)[0]) == pytest.approx(whole, rel=1e-4)


def test_the_residual_decides_how_far_a_threshold_falls() -> None:
    model, x, T, lost, grid = chain(), torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), 12, 0.02, 10
    current = model[0](x)

    def share(theta: float) -> float:
        v = torch.zeros(20, 16)
        for _ in range(T):
            v, _ = simulated(v, current, theta, soft=True)
        return float((v - theta).clamp(min=0).sum() / (T * current).clamp(min=0).sum())

    top = float(current.max())
    allowed = [part for part in range(1, grid + 1) if all(share(top * p / grid) <= lost for p in range(part, grid + 1))]
    pipeline = Pipeline(
        threshold=RIVALS["rmp"].threshold, rounding="floor", sweeps=((ResidualThreshold(lost=lost, grid=grid),),)
    )  # fmt: skip
    found = thetas(spikecal.convert(model, x, T=T, pipeline=pipeline).snn)
    assert min(allowed) < grid
    assert found[0] == pytest.approx(top * min(allowed) / grid, rel=1e-5)


@pytest.mark.parametrize("rounds", [1, 30, 4000])
def test_local_balancing_is_gradient_descent_on_the_clip(rounds: int) -> None:
    z = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [0.2], [3.0]])
    histogram = Histogram.of(z.clamp(min=0), 0)
    found = LocalBalancing(rounds=rounds, per="channel").solve(histogram, 8, "round")
    for channel, values in enumerate(z.double()):
        theta = 0.0
        for _ in range(rounds):
            theta += 2 * float((values - theta).clamp(min=0).mean())
        assert float(found[channel]) == pytest.approx(theta, rel=2e-3)
    whole = LocalBalancing(rounds=rounds).solve(histogram, 8, "round")
    assert whole.shape == (1,) and float(whole) > 0


@pytest.mark.parametrize("name", RIVALS)
def test_each_is_a_pipeline_like_ours(name: str, tmp_path: Path) -> None:
    """By name, with records, a file that loads without more, a summary and a report's worth of facts."""
    model, x, T = residual(), images(24), 128 if name == "spike-norm" else 8  # hard resets take many steps
    pipeline = RIVALS[name].changed(FineTune, iterations=2)
    result = spikecal.convert(model, (x, torch.arange(24) % 5), T=T, pipeline=pipeline)
    assert title_of(RIVALS[name]) == name.upper()
    assert [record.stage for record in result.records] == [stage.name for stage in result.snn.stages]
    assert all(math.isfinite(error) for record in result.records for _, error in record.errors)
    result.save(tmp_path / "net.snn")
    loaded = spikecal.load(tmp_path / "net.snn")
    assert torch.equal(loaded(x), result.snn(x))
    assert Pipeline.from_dict(RIVALS[name].to_dict()) == RIVALS[name] == resolve(name)
    found = spikecal.evaluate(loaded, x, ann=model)
    assert found.energy is not None and found.spikes > 0
    assert RIVALS[name].needs_labels or found.agreement[-1] >= 0.3  # those labels are not its answers


def test_invalid_settings() -> None:
    for make in (
        lambda: LocalBalancing(rate=0.0), lambda: LocalBalancing(rounds=0), lambda: ResidualThreshold(lost=1.0),
        lambda: ResidualThreshold(grid=0), lambda: SpikeNorm(images=0),
        lambda: SpikeNorm(residual="none"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make()
