"""Thresholds refined by measured error: against trying every factor by hand."""

from dataclasses import replace

import pytest
import torch
from networks import images, residual
from torch import nn

import spikecal
from spikecal import Bias, ConfigError, MaxAct, Pipeline, RefineThreshold
from spikecal.graph.ops import Spike, frozen

T = 4


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval().requires_grad_(False)


def neurons(snn: spikecal.SpikingNetwork) -> list[Spike]:
    return [stage.end.op for stage in snn.stages if isinstance(stage.end.op, Spike)]


@pytest.mark.parametrize("rounding", ["bias", "potential", "floor"])
def test_each_channel_takes_the_factor_with_the_least_variance(rounding: str) -> None:
    x, model = torch.rand(64, 6, dtype=torch.float64), small()
    refine = RefineThreshold(images=64, least=0.6, most=1.2, grid=4)
    base = Pipeline(threshold=MaxAct(per="channel"), rounding=rounding)  # type: ignore[arg-type]
    plain, found = (
        neurons(spikecal.convert(model, x, T=T, pipeline=pipeline).snn)[0]
        for pipeline in (base, replace(base, sweeps=((refine,),)))
    )
    current = model[0](x)
    factors, variances = [1.0, 0.6, 0.8, 1.0, 1.2], []
    assert plain.theta is not None and found.theta is not None
    for factor in factors:
        theta, own = factor * plain.theta, 0.0 if rounding == "floor" else 0.5
        mean = theta / T * (T * current / theta + own).floor().clamp(0, T)
        variances.append((current.relu() - mean).var(0, correction=0))
    best = torch.tensor(factors, dtype=torch.float64)[torch.stack(variances).argmin(0)]
    assert torch.allclose(found.theta / plain.theta, best)
    for name in ("bias", "v_init"):
        before, after = getattr(plain, name), getattr(found, name)
        assert (before is None and after is None) or torch.allclose(after / before, best)  # stays half a step
    assert len(best.unique()) > 1


def test_scaling_neurons_is_scaling_their_current() -> None:
    snn, x = spikecal.convert(residual(), images(8), T=T, pipeline="pc").snn, images(4, seed=3)
    first = snn.stages[0]
    op = first.end.op
    assert isinstance(op, Spike) and op.v_init is not None and op.v_init.ndim == 3
    before = snn.run(x).spikes[first.name]
    for name, tensor in op.scaled(torch.full_like(op.height(1), 2.0)).tensors().items():
        setattr(op, name, frozen(tensor))
    for node in first.weighted():
        for name, tensor in node.op.tensors().items():
            setattr(node.op, name, frozen(2 * tensor))
    assert torch.equal(snn.run(x).spikes[first.name], before)


def test_settings_and_files() -> None:
    pipeline = Pipeline(sweeps=((RefineThreshold(grid=3), Bias()),))
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline
    for wrong in ({"grid": 0}, {"least": 0.0}, {"least": 1.5, "most": 1.0}):
        with pytest.raises(ConfigError):
            RefineThreshold(**wrong)  # type: ignore[arg-type]
