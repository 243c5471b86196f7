"""Each calibrator lowers its own objective; weights agree with a small independent re-implementation."""

import math
from collections.abc import Iterator

import pytest
import torch
from networks import images, residual
from paper_neuron import if_step
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import LCP, Bias, ConfigError, Pipeline, Potential, SpikingNetwork, Weights
from spikecal.calibration import samples
from spikecal.calibration.calibrators import curvature, mean_current
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.samples import Sample, Samples
from spikecal.calibration.threshold import Quantiser
from spikecal.graph.ops import Spike


def only(*calibrators: object, **settings: object) -> Pipeline:
    return Pipeline(sweeps=(calibrators,), **settings)  # type: ignore[arg-type]


class Small(nn.Module):
    """One layer of neurons between two layers of weights: what arrives at the second varies in time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.skip, self.fc = nn.Conv2d(3, 5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.first(x))) + self.skip(x))
        return self.fc(y.mean((2, 3)))


def small(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small().eval().requires_grad_(False)


def mean_errors(model: nn.Module, snn: SpikingNetwork, x: Tensor) -> dict[str, Tensor]:
    """Mean of x - mean spikes per channel, from the outside: hooks on the model, spike counts of a run."""
    targets: dict[str, Tensor] = {}
    graph = spikecal.graph.lowering.lower.lower(model, (x[:2],))  # type: ignore[attr-defined]
    values = {"x": x}
    from spikecal.graph.graph import apply_node

    for node in graph.nodes.values():
        if node.inputs:
            values[node.name] = apply_node(node, values)
        if isinstance(node.op, Spike):
            targets[node.name] = values[node.name]
    run = snn.run(x)
    errors = {}
    for name, target in targets.items():
        theta = snn.graph.nodes[name].op.theta.reshape(1, -1, 1, 1)  # type: ignore[union-attr,operator]
        errors[name] = (target - run.spikes[name] * theta / snn.T).mean((0, 2, 3))
    return errors


def test_bias_calibration_lowers_the_mean_error_of_every_layer() -> None:
    model, x = residual(), images(64)
    before = mean_errors(model, spikecal.convert(model, x, T=8, pipeline="baseline").snn, x)
    after = mean_errors(model, spikecal.convert(model, x, T=8, pipeline="lcp").snn, x)
    for name in before:
        assert after[name].abs().sum() < before[name].abs().sum()


class Roomy(spikecal.MaxAct):
    """Thresholds that nothing comes near."""

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        return 2 * histogram.maximum


def test_bias_calibration_is_exact_to_one_spike_where_all_neurons_are_active() -> None:
    """Positive weights and images: no neuron is silent; high thresholds: none saturates."""
    model = small()
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
    x = images(32).abs() * 0.2 + 0.5
    pipeline = only(Bias(), threshold=Roomy(per="channel"), rounding="floor")
    result = spikecal.convert(model, x, T=16, pipeline=pipeline)
    assert all(r.saturated == 0 and r.dead == 0 for r in result.records if r.kind == "neurons")
    for name, error in mean_errors(model, result.snn, x).items():
        theta = result.snn.graph.nodes[name].op.theta
        assert (error.abs() <= theta / 16).all()  # type: ignore[operator]


@pytest.mark.parametrize("per", ["neuron", "channel"])
def test_potential_calibration_lowers_the_error_it_averages(per: str) -> None:
    model, x = small(), images(64)
    result = spikecal.convert(model, x, T=8, pipeline=only(Potential(per=per), rounding="floor"))  # type: ignore[arg-type]
    for record in result.records:
        if record.kind == "neurons":
            assert dict(record.errors)["potential"] < dict(record.errors)["before"]
    shapes = [tuple(s.end.op.v_init.shape) for s in result.snn.stages if s.spiking]  # type: ignore[union-attr]
    assert shapes == ([(6, 8, 8), (5, 8, 8)] if per == "neuron" else [(6,), (5,)])


def test_weights_calibration_lowers_the_error_and_says_so() -> None:
    model, x = small(), images(64)
    result = spikecal.convert(model, x, T=8, pipeline=only(Weights(iterations=200, lr=1e-3)))
    for record in result.records:
        assert record.errors[-1][1] <= record.errors[0][1]
    assert any(r.errors[-1][1] < 0.9 * r.errors[0][1] for r in result.records)


def test_weights_that_would_do_harm_are_not_kept() -> None:
    model, x = small(), images(32)
    result = spikecal.convert(model, x, T=8, pipeline=only(Weights(iterations=20, lr=100.0, optimiser="adam")))
    plain = spikecal.convert(model, x, T=8, pipeline="baseline")
    for record, reference in zip(result.records, plain.records, strict=True):
        assert record.errors[-1][1] == reference.errors[-1][1]
        assert "left unchanged" in record.notes[0]
    assert torch.equal(result.snn(x), plain.snn(x))


def test_images_too_large_for_one_gradient_are_learned_from_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), images(24, 8)
    pipeline = only(Weights(iterations=20, batch=8, lr=2e-5))
    whole = spikecal.convert(model, x, T=4, pipeline=pipeline)
    drawn: list[float] = []
    draw = Samples.draw

    def watched(self: Samples, size: int) -> Iterator[tuple[Sample, float]]:
        for sample, share in draw(self, size):
            drawn.append(share)
            yield sample, share

    monkeypatch.setattr(samples, "LEARNED_FLOATS", 3 * 6 * 8 * 8)  # three images of the first stage
    monkeypatch.setattr(Samples, "draw", watched)
    parts = spikecal.convert(model, x, T=4, pipeline=pipeline)
    assert drawn[:3] == [3 / 8, 3 / 8, 2 / 8]
    for node, other in zip(whole.snn.graph.nodes.values(), parts.snn.graph.nodes.values(), strict=True):
        for name, tensor in node.op.tensors().items():
            assert torch.allclose(tensor, other.op.tensors()[name], atol=1e-5), (node.name, name)


def fired(current: Tensor, op: Spike) -> Tensor:
    """What neurons without rounding pass on `[T, N, ...]`, step by step as the paper writes it."""
    theta = op.theta.reshape(-1, 1, 1).expand_as(current[0])  # type: ignore[union-attr]
    v = torch.zeros_like(current[0]) if op.v_init is None else op.v_init.expand_as(current[0])
    spikes = []
    for arriving in current:
        emitted, v = if_step(arriving, v, theta)
        spikes.append(emitted)
    return torch.stack(spikes)


def test_potential_and_weights_calibration_are_those_of_a_small_reimplementation() -> None:
    """The second layer, written out by hand: the mean error of the spikes, then SGD with a straight-through floor.

    Of the result it takes only the first layer, which is done by then, and the threshold.
    """
    model, x, T = small(), images(16), 8
    settings = {"iterations": 25, "batch": 4, "lr": 2e-5}
    pipeline = only(Potential(), Weights(**settings), rounding="floor")  # type: ignore[arg-type]
    snn = spikecal.convert(model, x, T=T, pipeline=pipeline, seed=3).snn
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    x = x[order]
    names = [s.name for s in snn.stages]
    first, second = (snn.graph.nodes[n].op for n in names[:2])
    assert isinstance(first, Spike) and isinstance(second, Spike)
    theta = second.theta.reshape(1, -1, 1, 1)  # type: ignore[union-attr]
    with torch.no_grad():
        target = F.relu(model.second(F.relu(model.first(x))) + model.skip(x))
        constant = F.conv2d(x, snn.graph.nodes["first"].op.weight, model.first.bias, padding=1)  # type: ignore[arg-type]
        train = fired(constant.expand(T, *constant.shape), first)
        before = fired(torch.stack([model.second(step) + model.skip(x) for step in train]), Spike(theta=second.theta))
        inputs, v_init = train.mean(0), T * (target - before.mean(0)).mean(0)
    assert torch.allclose(second.v_init, v_init, atol=1e-4)  # type: ignore[arg-type]
    weight, skip = (m.weight.detach().clone().requires_grad_() for m in (model.second, model.skip))
    velocity = [torch.zeros_like(weight), torch.zeros_like(skip)]
    generator = torch.Generator().manual_seed(3 + 1)  # the second stage
    for i in range(25):
        torch.multinomial(torch.ones(1), 1, generator=generator)
        chosen = torch.randint(16, (4,), generator=generator)
        current = F.conv2d(inputs[chosen], weight, model.second.bias, padding=1)
        current = current + F.conv2d(x[chosen], skip, model.skip.bias)
        charge = (T * current + v_init) / theta
        count = charge + (charge.floor() - charge).detach()
        loss = (
            (target[chosen] - theta / T * count.clamp(0, T)).square().sum((1, 2, 3)).mean()
        )  # the paper's norm, per image
        gradients = torch.autograd.grad(loss, [weight, skip])
        lr = 2e-5 * (1 + torch.cos(torch.tensor(torch.pi * i / 25)).item()) / 2
        with torch.no_grad():
            for p, g, v in zip((weight, skip), gradients, velocity, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(lr * v)
    assert torch.allclose(snn.graph.nodes["second"].op.weight, weight, atol=1e-5)  # type: ignore[arg-type]
    assert torch.allclose(snn.graph.nodes["skip"].op.weight, skip, atol=1e-5)  # type: ignore[arg-type]
    assert not torch.allclose(weight, model.second.weight, atol=1e-4)


def test_the_steepest_direction_is_that_of_the_whole_second_derivative() -> None:
    """Two branches that meet: the largest eigenvalue of the explicit matrix, by autograd."""
    model, x = small(), images(6)
    snn = spikecal.convert(model, x, T=4, pipeline="baseline").snn
    stage = snn.stages[1]
    inputs = {"x": x, snn.stages[0].name: F.relu(model.first(x))}
    sample = Sample(inputs, torch.zeros(6, 5, 8, 8), {name: tuple(value.shape) for name, value in inputs.items()})
    weights = {node.name: node.op.tensors()["weight"] for node in stage.weighted()}
    flat = torch.cat([w.flatten() for w in weights.values()])

    def loss(values: Tensor) -> Tensor:
        parts = values.split([w.numel() for w in weights.values()])
        learned = {name: part.view_as(w) for (name, w), part in zip(weights.items(), parts, strict=True)}
        return mean_current(stage, sample, learned).square().sum() / len(x)

    exact = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))[-1]  # type: ignore[no-untyped-call]
    assert curvature(stage, sample, weights, 0) == pytest.approx(float(exact), rel=0.02)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_rate_is_lowered_to_half_of_where_sgd_diverges_and_not_before(share: float) -> None:
    """On a quadratic of curvature c, SGD with momentum m diverges from a rate of 2 (1 + m) / c on."""
    model, x = small(), images(8).abs()  # one direction is by far the steepest
    steepest = 2 * torch.linalg.eigvalsh(second_moments(x))[-1].item() / len(x)
    limit = 2 * (1 + 0.9) / steepest
    pipeline = only(Weights(iterations=1, batch=8, lr=share * limit))
    record = spikecal.convert(model, x, T=2, pipeline=pipeline).records[0]
    lowered = [note for note in record.notes if f"used {limit / 2:.2g}" in note]
    assert len(lowered) == (share > 1)


def second_moments(x: Tensor) -> Tensor:
    """Of the patches that a 3x3 convolution sees: the second derivative of its squares, but for a factor."""
    patches = F.unfold(x, 3, padding=1).transpose(1, 2).flatten(0, 1)
    return patches.T @ patches


def test_a_stage_that_nothing_arrives_at_has_no_steepest_direction() -> None:
    model, x = small(), images(16)
    with torch.no_grad():
        model.first.bias.fill_(-100)  # type: ignore[union-attr]
        model.skip.weight.zero_()
    result = spikecal.convert(model, x, T=2, pipeline=only(Weights(iterations=2)))
    assert all(math.isfinite(record.errors[-1][1]) for record in result.records)
    assert bool(torch.isfinite(result.snn(x)).all())


class Everything(nn.Module):
    """Weights in front of each operation that a stage may have between them and its neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(F.max_pool2d(self.a(F.relu(self.a(x)[:, :3])), 2))
        y = F.interpolate(self.b(F.avg_pool2d(y, 2)), scale_factor=2, mode="bilinear", align_corners=False)
        return F.relu(torch.cat([F.pad(y, (1, 1, 1, 1)), F.interpolate(self.b(y), 10)], 1)).mean((2, 3))


def test_weights_are_learned_through_every_kind_of_operation() -> None:
    torch.manual_seed(0)
    model, x = Everything().eval(), images(16)
    result = spikecal.convert(model, x, T=2, pipeline=only(Weights(iterations=20, lr=1e-3), rounding="floor"))
    assert any(record.errors[-1][1] < record.errors[0][1] for record in result.records)


def test_a_rate_that_would_diverge_is_lowered_and_reported() -> None:
    """Larger images have a steeper loss; learning still lowers the error, at a rate that the record names."""
    model, x = small(), images(16, 32)
    pipeline = only(Weights(iterations=100, batch=8, lr=0.1), rounding="floor")  # leaves room for weights to improve
    result = spikecal.convert(model, x, T=2, pipeline=pipeline)
    second = result.records[1]
    assert "would diverge at a learning rate of 0.1" in second.notes[0]
    assert second.errors[-1][1] < 0.9 * second.errors[0][1]


def test_calibration_sees_the_spikes_of_layers_already_calibrated() -> None:
    """A second sweep of the same calibrator finds less to do than the first."""
    model, x = residual(), images(64)
    result = spikecal.convert(model, x, T=8, pipeline=Pipeline(sweeps=((Bias(),), (Bias(),))))
    first = sum(r.errors[0][1] for r in result.records if r.sweep == 0)
    second = sum(r.errors[0][1] for r in result.records if r.sweep == 1)
    assert second < first
    assert LCP.sweeps == ((Bias(),),)


def test_bad_settings_are_refused() -> None:
    for make in (
        lambda: Potential(per="layer"),  # type: ignore[arg-type]
        lambda: Weights(iterations=0),
        lambda: Weights(lr=-1.0),
        lambda: Weights(optimiser="lion"),  # type: ignore[arg-type]
        lambda: Bias(images=0),
        lambda: Pipeline(rounding="up"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            make()
