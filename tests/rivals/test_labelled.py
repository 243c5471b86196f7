"""Methods that learn from labels, against plain loops with torch's own autograd and Adam."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import images, residual
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spikecal
from spikecal.calibration.calibrators import Bias
from spikecal.calibration.images import collect, labelled
from spikecal.calibration.threshold import MaxAct
from spikecal.errors import ConfigError, DataError
from spikecal.pipeline import HYBRID_TRAIN, QCFS, Pipeline
from spikecal.rivals.labelled import HybridTraining, LearnedClips, SinceLastSpike

LABELS = torch.arange(20) % 4


def chain() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).eval()


def vectors() -> Tensor:
    return torch.randn(20, 6, generator=torch.Generator().manual_seed(0))


def weights(snn: spikecal.SpikingNetwork) -> list[Tensor]:
    return [node.op.tensors()["weight"] for node in snn.graph.nodes.values() if "weight" in node.op.tensors()]


def test_the_slope_falls_with_the_time_since_the_last_spike() -> None:
    levels = (torch.rand(12, 5, generator=torch.Generator().manual_seed(1)) > 0.7).to(torch.int8)
    found = SinceLastSpike(0.3, 0.2).over_time(levels)
    for neuron in range(5):
        last = None
        for t in range(12):
            expected = 0.0 if last is None else 0.3 * 2.718281828 ** (-0.2 * (t - last))
            assert float(found[t, neuron]) == pytest.approx(expected, rel=1e-5)
            last = t if levels[t, neuron] else last


class Spikes(torch.autograd.Function):
    """A single layer of neurons, with slopes that depend only on the time since the last spike."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, theta: float, slope: Tensor) -> Tensor:
        ctx.slope = slope
        return (v >= theta).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * ctx.slope, None, None


def unrolled(model: nn.Sequential, x: Tensor, thetas: list[float], T: int) -> Tensor:
    """The spiking network step by step: what its paper trains, by a plain loop."""
    v = [torch.zeros(len(x), 16), torch.zeros(len(x), 12)]
    slope = [torch.zeros_like(one) for one in v]
    total = torch.zeros(len(x), 4)
    for _ in range(T):
        value = x
        for i, layer in enumerate((model[0], model[2])):
            u = v[i] + layer(value)
            # in units of theta, as the surrogate is
            spikes = Spikes.apply(u / thetas[i], 1.0, slope[i])
            slope[i] = torch.where(
                spikes > 0, 0.3 * torch.exp(torch.tensor(-0.01)), slope[i] * torch.exp(torch.tensor(-0.01))
            )
            v[i] = u - thetas[i] * spikes
            value = thetas[i] * spikes
        total = total + model[4](value)
    return total / T


def test_hybrid_training_is_adam_through_all_steps() -> None:
    model, x, T = chain(), vectors(), 6
    start = Pipeline(threshold=MaxAct(), rounding="floor")
    training = HybridTraining(images=20, batch=20, iterations=3, lr=0.01, shift=0, flip=False)
    before = spikecal.convert(model, (x, LABELS), T=T, pipeline=start).snn
    after = spikecal.convert(model, (x, LABELS), T=T, pipeline=replace(start, sweeps=(training,))).snn
    thetas = [float(s.end.op.height(1).max()) for s in before.stages if s.spiking]  # type: ignore[union-attr]
    order = [int(label) for label in labelled((x, LABELS), 20, 1, 0)[1]]  # type: ignore[union-attr]
    assert sorted(order) == sorted(LABELS.tolist())
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 3)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(unrolled(model, x, thetas, T), LABELS).backward()
        optimiser.step()
        schedule.step()
    for found, expected in zip(weights(after), (model[0].weight, model[2].weight, model[4].weight), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    assert any(not torch.equal(a, b) for a, b in zip(weights(before), weights(after), strict=True))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.floor()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        return (gradients[0],)


def test_learned_clips_are_those_of_qcfs() -> None:
    """`theta clip(floor(L z / theta + 1/2) / L, 0, 1)` by torch's own autograd, theta by its logarithm."""
    model, x, levels = chain(), vectors(), 4
    training = LearnedClips(
        images=20, batch=20, iterations=3, lr=0.01, clip_lr=0.05, levels=levels, shift=0, flip=False
    )
    start = replace(QCFS, threshold=MaxAct(), sweeps=())
    before = spikecal.convert(model, (x, LABELS), T=16, pipeline=start).snn
    after = spikecal.convert(model, (x, LABELS), T=16, pipeline=replace(start, sweeps=(training,))).snn
    thetas = [s.end.op.height(1).log().clone().requires_grad_() for s in before.stages if s.spiking]  # type: ignore[union-attr]
    groups = [{"params": list(model.parameters()), "lr": 0.01}, {"params": thetas, "lr": 0.05}]
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 3)
    for _ in range(3):
        value = x
        for i, layer in enumerate((model[0], model[2])):
            theta = thetas[i].exp()
            value = theta * (Rounded.apply(layer(value) * levels / theta + 0.5) / levels).clamp(0, 1)
        optimiser.zero_grad()
        F.cross_entropy(model[4](value), LABELS).backward()
        optimiser.step()
        schedule.step()
    for found, expected in zip(weights(after), (model[0].weight, model[2].weight, model[4].weight), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    ends = [s.end.op for s in after.stages if s.spiking]
    for op, theta in zip(ends, thetas, strict=True):
        torch.testing.assert_close(op.height(1), theta.detach().exp(), rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]
        torch.testing.assert_close(op.v_init, op.theta / 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("pipeline", [HYBRID_TRAIN, QCFS])
def test_training_on_labels_helps(pipeline: Pipeline, tmp_path: Path) -> None:
    """Labels that are new to the network, learned on the test images themselves."""
    model, x = residual(), images(32)
    labels = (x.mean((1, 2, 3)) > 0).long()
    quick = pipeline.changed(HybridTraining, images=32, iterations=40, lr=3e-3, batch=16)
    quick = quick.changed(LearnedClips, images=32, iterations=40, lr=3e-3, batch=16)
    T = 8 if pipeline is HYBRID_TRAIN else 64  # QCFS learns what many steps give
    plain = spikecal.convert(model, (x, labels), T=T, pipeline=replace(quick, sweeps=quick.sweeps[:-1]))
    result = spikecal.convert(model, (x, labels), T=T, pipeline=quick, workdir=tmp_path / "work")
    before, after = (spikecal.evaluate(r.snn, (x, labels)).accuracy[-1] for r in (plain, result))
    assert after > before + 0.1
    again = spikecal.convert(model, (x, labels), T=T, pipeline=quick, workdir=tmp_path / "work")
    assert all(torch.equal(a, b) for a, b in zip(weights(again.snn), weights(result.snn), strict=True))
    result.save(tmp_path / "net.snn")
    assert torch.equal(spikecal.load(tmp_path / "net.snn")(x), result.snn(x))
    result.report(tmp_path / "page.html")
    assert "32 labelled images" in (tmp_path / "page.html").read_text()


def test_labels_are_those_of_the_images() -> None:
    x, labels = torch.arange(30.0)[:, None].expand(30, 4).contiguous(), torch.arange(30)
    pairs = TensorDataset(x, labels)
    for data in ((x, labels), pairs, DataLoader(pairs, batch_size=7), list(pairs), (x.numpy(), labels.numpy())):
        found, numbers = labelled(data, 12, 1, 5)
        assert numbers is not None and [int(image[0][0, 0]) for image in found] == numbers.tolist()
        assert all(torch.equal(a[0], b[0]) for a, b in zip(found, collect(data, 12, 1, 5), strict=True))
    for data in (x, list(x), DataLoader(x, batch_size=7)):
        found, numbers = labelled(data, 12, 1, 5)
        assert numbers is None and len(found) == 12


def test_data_without_usable_labels_is_refused() -> None:
    model, x = residual(), images(8)
    for name in ("hybrid-train", "qcfs"):
        with pytest.raises(DataError, match="learns from labels: give pairs"):
            spikecal.convert(model, x, T=4, pipeline=name)
    wrong = (x, torch.full((8,), 7))
    quick = Pipeline(sweeps=(HybridTraining(images=8, iterations=1, batch=8), (Bias(),)))
    with pytest.raises(DataError, match="labels are 7 to 7, but the network has 5 classes"):
        spikecal.convert(model, wrong, T=4, pipeline=quick)
    for make in (
        lambda: HybridTraining(surrogate="frob"), lambda: HybridTraining(alpha=0.0), lambda: LearnedClips(levels=0),
        lambda: LearnedClips(clip_lr=0.0), lambda: HybridTraining(batch=0),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make()
