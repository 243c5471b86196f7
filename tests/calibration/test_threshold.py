"""Thresholds: MMSE against brute force, and the outcomes for channels that never fire."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import spikecal
from spikecal import Bias, ConfigError, Pipeline
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.threshold import MMSE, MaxAct, Percentile
from spikecal.neurons import clip_floor, clip_round


def activations(kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 6, 32, 32, generator=generator)
    if kind == "heavy":  # outliers: what MMSE is for
        x = x * torch.rand(16, 6, 32, 32, generator=generator).pow(-0.3)
    if kind == "clipped":
        return (x * torch.tensor([0.5, 1.0, 1.5, 2.0, 4.0, 8.0])[None, :, None, None]).clamp(0, 6)
    return x.relu() * torch.tensor([0.01, 0.1, 0.5, 1.0, 7.0, 300.0])[None, :, None, None]


def brute_force(x: torch.Tensor, T: int, closed: object) -> tuple[float, torch.Tensor]:
    x = x.double()
    grid = [x.max() * j / 100 for j in range(1, 101)]
    errors = [float((closed(x, theta, T) - x).square().mean()) for theta in grid]  # type: ignore[operator]
    return min(errors), grid[errors.index(min(errors))]


@pytest.mark.parametrize("T", [1, 4, 16, 32])
@pytest.mark.parametrize("kind", ["normal", "heavy", "clipped"])
@pytest.mark.parametrize("quantiser", ["round", "floor"])
def test_mmse_is_within_one_percent_of_brute_force(T: int, kind: str, quantiser: str) -> None:
    x = activations(kind, T)
    clip = float(x.max()) if kind == "clipped" else None
    closed = clip_round if quantiser == "round" else clip_floor
    histogram = Histogram.of(x, 1, clip)
    theta = MMSE(per="channel").solve(histogram, T, quantiser)  # type: ignore[arg-type]
    for c in range(6):
        best, _ = brute_force(x[:, c], T, closed)
        found = float((closed(x[:, c].double(), theta[c], T) - x[:, c]).square().mean())
        assert found <= 1.01 * best
    whole = MMSE(per="layer").solve(histogram, T, quantiser)  # type: ignore[arg-type]
    best, _ = brute_force(x, T, closed)
    assert float((closed(x.double(), whole, T) - x).square().mean()) <= 1.01 * best


def test_mmse_clips_outliers_at_few_steps_and_keeps_them_at_many() -> None:
    histogram = Histogram.of(activations("heavy", 0), 1)
    few, many = (MMSE(per="channel").solve(histogram, T, "round") for T in (4, 1024))
    assert (few < 0.8 * histogram.maximum).all()
    assert (many > 0.9 * histogram.maximum).all()


@pytest.mark.parametrize("method", [MaxAct, Percentile, MMSE])
def test_a_dead_channel_gets_its_layers_threshold_and_a_dead_layer_one(method: type) -> None:
    x = activations("normal", 3)
    x[:, 2] = 0
    histogram = Histogram.of(x, 1)
    theta = method(per="channel").solve(histogram, 8, "round")
    assert theta[2] == method(per="layer").solve(histogram, 8, "round")[0]
    assert (theta > 0).all()
    assert method(per="channel").solve(Histogram.of(torch.zeros(2, 3, 4), 1), 8, "round").tolist() == [1, 1, 1]


def test_maximum_is_exact_and_percentile_below_it() -> None:
    x = activations("heavy", 1)
    histogram = Histogram.of(x, 1)
    assert MaxAct(per="channel").solve(histogram, 8, "round").tolist() == x.double().amax((0, 2, 3)).tolist()
    assert Percentile(percent=90).solve(histogram, 8, "round") < MaxAct().solve(histogram, 8, "round")


def test_bad_settings_are_refused() -> None:
    for make in (lambda: MMSE(per="pixel"), lambda: Percentile(percent=0), lambda: MMSE(grid=0)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            make()


def test_channels_scaled_before_conversion_change_nothing_but_thresholds_per_layer() -> None:
    model = plain_network()
    scaled = deepcopy(model)
    scale = 2.0 ** torch.randint(-3, 4, (6,), generator=torch.Generator().manual_seed(0))
    scaled[0].weight.mul_(scale.reshape(-1, 1, 1, 1))
    scaled[0].bias.mul_(scale)
    scaled[2].weight.div_(scale.reshape(1, -1, 1, 1))
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model(x), scaled(x))
    runs = {
        per: [
            spikecal.convert(network, x, T=8, pipeline=Pipeline(threshold=MMSE(per=per), sweeps=((Bias(),),))).snn.run(
                x
            )
            for network in (model, scaled)
        ]
        for per in ("channel", "layer")
    }
    for per, (first, second) in runs.items():
        assert torch.equal(first.outputs, second.outputs) == (per == "channel")
        for layer, spikes in first.spikes.items():
            assert torch.equal(spikes, second.spikes[layer]) == (per == "channel")


def plain_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)]
    return nn.Sequential(*layers).eval().requires_grad_(False)
