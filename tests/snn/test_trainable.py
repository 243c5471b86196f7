"""Further training: surrogate gradients against plain autograd, a loop on embedded images, and the saved file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Deep, dyadic, dyadic_images, images, residual
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import LCP, PC, FileError, Pipeline, TemporalBias
from spikecal.analysis.evaluate import original
from spikecal.graph.ops import Spike
from spikecal.zoo.models import load_model


class Step(torch.autograd.Function):
    """A spike with the slope of a triangle, as simulators of spiking networks have it."""

    @staticmethod
    def forward(ctx: Any, distance: Tensor) -> Tensor:
        ctx.save_for_backward(distance)
        return (distance >= 0).to(distance.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (distance,) = ctx.saved_tensors
        return gradients[0] * (1 - distance.abs()).clamp(min=0)


def reference(x: Tensor, parts: dict[str, Tensor], T: int, wait: int = 0) -> Tensor:
    """Convolution, neurons, linear layer, step by step; neurons wait, and fire on for as long."""
    current = F.conv2d(x, parts["weight"], parts["conv_bias"]) + parts["bias"].reshape(1, -1, 1, 1)
    v, theta = parts["v_init"], parts["theta"].reshape(1, -1, 1, 1)
    arriving = [current + parts["step_bias"][t].reshape(1, -1, 1, 1) for t in range(T)]
    outputs = []
    for t in range(T):
        if t == 0:
            v = v + torch.stack(arriving[: wait + 1]).sum(0)
        elif t + wait < T:
            v = v + arriving[t + wait]
        spikes = Step.apply(v / theta - 1) * theta
        v = v - spikes
        outputs.append(F.linear(spikes.flatten(1), parts["fc"], parts["fc_bias"]))
    return torch.stack(outputs).mean(0)


@pytest.mark.parametrize("wait", [0, 3])
def test_gradients_are_those_of_a_simulator(wait: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double().eval()
    pipeline = Pipeline(sweeps=((*PC.sweeps[0], TemporalBias(rounds=1)),))  # type: ignore[misc]
    snn = spikecal.convert(model, images(8, 6).double(), T=6, pipeline=pipeline).snn
    snn = spikecal.SpikingNetwork(snn.graph, 6, {"1": wait})
    module = snn.trainable()
    x = images(5, 6, seed=2).double()
    weights = torch.randn(5, 3, dtype=torch.float64)
    (module(x) * weights).sum().backward()
    op, conv, fc = (module.snn.graph.nodes[name].op for name in ("1", "0", "3"))
    ours: dict[str, Any] = {name: getattr(op, name) for name in ("theta", "bias", "v_init", "step_bias")}
    ours |= {"weight": conv.weight, "conv_bias": conv.bias, "fc": fc.weight, "fc_bias": fc.bias}
    theirs = {name: p.detach().clone().requires_grad_() for name, p in ours.items()}
    (reference(x, theirs, 6, wait) * weights).sum().backward()
    torch.testing.assert_close(module(x), reference(x, theirs, 6, wait))
    for name, parameter in ours.items():
        assert parameter.grad is not None and float(parameter.grad.abs().sum()) > 0, name
        torch.testing.assert_close(parameter.grad, theirs[name].grad, msg=name)


def test_a_few_iterations_on_embedded_images_lower_the_loss(tmp_path: Path) -> None:
    from spikecal.data.prepare import Prepared
    from spikecal.data.sources import load_data

    model, card = load_model("resnet20")
    data = load_data("demo", "train")
    assert data.labels is not None
    prepared = Prepared(data, card)
    x, labels = torch.stack([prepared[i] for i in range(24)]), data.labels[:24]
    snn = spikecal.convert(model, x, T=2, pipeline=LCP).snn
    before = {name: p.clone() for name, p in snn.named_parameters()}
    module = snn.trainable()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-4)
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(module(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses
    assert all(torch.equal(p, before[name]) for name, p in snn.named_parameters())  # it has parameters of its own
    module.save(tmp_path / "trained.snn")
    loaded = spikecal.load(tmp_path / "trained.snn")
    with torch.no_grad():
        assert torch.equal(loaded(x), module(x))
    ours, theirs = module.run(x), loaded.run(x)
    assert ours.spikes.keys() == theirs.spikes.keys()
    assert all(torch.equal(ours.spikes[name], theirs.spikes[name]) for name in ours.spikes)
    assert original(loaded) is None  # its weights are not the ANN's


@pytest.mark.parametrize("make", [dyadic, residual])
def test_every_parameter_of_joints_pools_and_skips_has_a_gradient(make: Any) -> None:
    x = dyadic_images(4) if make is dyadic else images(4)
    snn = spikecal.convert(make(), x, T=4, pipeline=LCP).snn
    module = snn.trainable()
    x = x.clone().requires_grad_()
    out = module(x)
    assert torch.equal(out, snn(x))
    out.square().sum().backward()
    assert x.grad is not None and bool(x.grad.any())
    missing = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing


def test_a_custom_surrogate() -> None:
    snn = spikecal.convert(residual(), images(4), T=4, pipeline=LCP).snn
    flat = snn.trainable(lambda distance: torch.zeros_like(distance))
    flat(images(4)).sum().backward()
    grads = dict(flat.snn.graph.nodes["stem"].op.named_parameters())
    assert not bool(grads["weight"].grad.any())  # type: ignore[union-attr]


def test_thresholds_that_became_negative_are_not_written(tmp_path: Path) -> None:
    module = spikecal.convert(residual(), images(4), T=4, pipeline=LCP).snn.trainable()
    op = module.snn.graph.nodes["relu"].op
    assert isinstance(op, Spike) and op.theta is not None
    op.theta.data.neg_()
    with pytest.raises(FileError, match="the thresholds of 'relu' are not positive"):
        module.save(tmp_path / "net.snn")
    assert not list(tmp_path.iterdir())


def test_frames_over_time_train_too() -> None:
    torch.manual_seed(0)
    snn = spikecal.convert(Deep(1).eval(), images(4), T=3, pipeline=LCP).snn
    frames = torch.stack([images(4, seed=s) for s in range(3)])
    assert torch.equal(snn.trainable()(frames, over_time=True), snn(frames, over_time=True))
