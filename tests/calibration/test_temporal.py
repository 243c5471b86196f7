"""A bias for each step: against a loop written out by hand, and wherever a network is run, stored or changed."""

from pathlib import Path

import pytest
import torch
from networks import images, residual
from paper_neuron import if_step
from torch import Tensor, nn
from torch.nn import functional as F
from waiting import calibrated

import spikecal
from spikecal import ConfigError, FileError, Pipeline, SpikingNetwork, TemporalBias
from spikecal.calibration import temporal
from spikecal.calibration.view import StageView
from spikecal.graph.ops import Spike, frozen

T = 5


class Two(nn.Module):
    """The spikes of one layer reach another, and so vary in time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


def neurons(snn: SpikingNetwork) -> list[Spike]:
    return [stage.end.op for stage in snn.stages if isinstance(stage.end.op, Spike)]


def corrected(current: Tensor, target: Tensor, op: Spike, rounds: int, rate: float, wait: int) -> Tensor:
    """`[T, C]` for a current `[T, N, C]`: every step run, corrected and run again."""
    theta, own = op.theta, op.bias
    assert theta is not None and own is not None
    bias = torch.zeros(T, current.shape[2], dtype=current.dtype)
    for _ in range(rounds):
        v = torch.zeros_like(target)
        for t in range(T):
            if t < wait:
                v = v + current[t] + own + bias[t]
                continue
            spikes, _ = if_step(current[t] + own + bias[t], v, theta)
            bias[t] += rate * (target - spikes).mean(0)
            _, v = if_step(current[t] + own + bias[t], v, theta)
    return bias


@pytest.mark.parametrize("wait", [0, 2])
def test_against_a_plain_loop(wait: int) -> None:
    model, x = Two().double().requires_grad_(False), torch.rand(32, 6, dtype=torch.float64)
    calibrator = TemporalBias(rounds=3, rate=0.4, images=32)
    plain = spikecal.convert(model, x, T=T, pipeline=Pipeline()).snn
    first, second = neurons(plain)
    hidden = F.relu(model.first(x))
    layer = model.first(x).expand(T, -1, -1)
    expected = corrected(layer, hidden, first, 3, 0.4, wait)

    found, _ = calibrated(model, x, Pipeline(sweeps=((calibrator,),)), T, wait)
    assert first.step_bias is None and torch.allclose(neurons(found)[0].step_bias, expected)
    # what the second layer gets is what the first one, corrected, emits
    emitted = torch.stack([_emitted(layer, neurons(found)[0], wait, t) for t in range(T)])
    arriving = model.second(emitted)
    expected = corrected(arriving, model(x), second, 3, 0.4, wait)
    assert torch.allclose(neurons(found)[1].step_bias, expected)


def _emitted(current: Tensor, op: Spike, wait: int, step: int) -> Tensor:
    """What is emitted at one step of the window, all steps run anew."""
    v, spikes = torch.zeros_like(current[0]), torch.zeros_like(current[0])
    for t in range(step + wait + 1):
        entering = current[t] + op.bias + op.step_bias[t] if t < T else torch.zeros_like(v)  # type: ignore[index]
        if t < wait:
            v = v + entering
        else:
            spikes, v = if_step(entering, v, op.theta)  # type: ignore[arg-type]
    return spikes


def with_step_biases(wait: int = 0) -> tuple[SpikingNetwork, Tensor]:
    x = images(8)
    snn = spikecal.convert(residual(), x, T=T, pipeline="baseline", joints="analog", records=False).snn
    torch.manual_seed(0)
    for op in neurons(snn):
        assert op.theta is not None
        op.step_bias = frozen(0.3 * torch.randn(T, len(op.theta)) * op.theta)
    names = [stage.name for stage in snn.stages if stage.spiking][:: 2 if wait else 10**6]
    return SpikingNetwork(snn.graph, T, dict.fromkeys(names, wait)), x


@pytest.mark.parametrize("wait", [0, 1])
def test_runs_stores_and_scales_like_any_other_network(tmp_path: Path, wait: int) -> None:
    snn, x = with_step_biases(wait)
    run = snn.run(x)
    assert not torch.allclose(run.outputs[-1], without(snn)(x))
    snn.reset()
    stepped = [snn.step(x) for _ in range(snn.latency)][snn.latency - T :]
    assert torch.allclose(torch.stack(stepped), run.outputs, atol=1e-5)
    assert torch.allclose(snn(x, steps=2), run.outputs[1], atol=1e-5)
    assert torch.allclose(snn.normalized()(x), run.outputs[-1], atol=1e-4)
    snn.save(tmp_path / "n.snn")
    assert torch.equal(spikecal.load(tmp_path / "n.snn").run(x).outputs, run.outputs)
    for op in neurons(snn):
        op.step_bias = None
    assert torch.equal(snn(x), without(snn)(x))


def without(snn: SpikingNetwork) -> SpikingNetwork:
    plain = SpikingNetwork(snn.graph.clone(), T, snn.waits)
    for op in neurons(plain):
        op.step_bias = None
    return plain


def test_files_say_that_they_need_it(tmp_path: Path) -> None:
    snn, _ = with_step_biases()
    snn.save(tmp_path / "n.snn")
    assert b'"format\\": 3' in (tmp_path / "n.snn").read_bytes()
    for op in neurons(snn):
        op.step_bias = frozen(op.step_bias[:3])  # type: ignore[index]
    with pytest.raises(FileError, match="step biases"):
        snn.save(tmp_path / "short.snn")
    assert not (tmp_path / "short.snn").exists()


def test_large_images_are_calibrated_a_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same result as with all steps at once."""
    x = images(12)
    pipeline = Pipeline(sweeps=((TemporalBias(images=12),),))
    whole = spikecal.convert(residual(), x, T=T, pipeline=pipeline).snn
    seen = list[bool]()

    class Tight(temporal._Steps):
        def __init__(self, view: StageView, call: range, fits: bool) -> None:
            seen.append(fits)
            super().__init__(view, call, fits=False)

    monkeypatch.setattr(temporal, "_Steps", Tight)
    parts = spikecal.convert(residual(), x, T=T, pipeline=pipeline).snn
    assert seen and all(seen)
    for one, other in zip(neurons(whole), neurons(parts), strict=True):
        assert torch.allclose(one.step_bias, other.step_bias, atol=1e-6)  # type: ignore[arg-type]


def test_settings() -> None:
    pipeline = Pipeline(sweeps=((TemporalBias(rounds=2),),))
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline
    for wrong in ({"rounds": 0}, {"rate": 0.0}, {"rate": 1.5}, {"rate": float("nan")}):
        with pytest.raises(ConfigError, match="temporal bias"):
            TemporalBias(**wrong)  # type: ignore[arg-type]
