"""The error and its parts: identities that hold exactly, and numbers counted another way."""

from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal.analysis.errors import PARTS, NetworkErrors, measure_errors
from spikecal.calibration.calibrators import Bias, Weights
from spikecal.errors import ConfigError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.stages import with_joints
from spikecal.pipeline import ACP, LCP


def chain(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 4),
    )
    return net.eval().requires_grad_(False)


def pipeline(name: str) -> Any:
    return {
        "baseline": "baseline",
        "floor": spikecal.Pipeline(rounding="floor"),
        "lcp": LCP.changed(Bias, images=16),
        "acp": ACP.changed(Weights, iterations=20, images=16, lr=1e-3),
    }[name]


@pytest.fixture(scope="module", params=["baseline", "floor", "lcp", "acp"])
def measured(request: pytest.FixtureRequest) -> tuple[str, spikecal.Result, NetworkErrors]:
    result = spikecal.convert(residual(), images(16), T=6, pipeline=pipeline(request.param))
    return request.param, result, measure_errors(residual(), result.snn, images(16))


def test_parts_add_up(measured: tuple[str, spikecal.Result, NetworkErrors]) -> None:
    name, _, found = measured
    for layer in found.layers:
        mean = {part: layer.parts[part].mean for part in PARTS}
        scale = float(layer.squared.max().sqrt())
        torch.testing.assert_close(mean["total"], mean["input"] + mean["local"], atol=1e-6 * scale, rtol=0)
        local = mean["flooring"] + mean["clipping"] + mean["unevenness"] + mean["weights"]
        torch.testing.assert_close(mean["local"], local, atol=1e-6 * scale, rtol=0)
        changed = float(layer.parts["weights"].squared.sum())
        if name in ("baseline", "floor"):
            assert changed < 1e-9 * float(layer.squared.sum())
    if name == "acp":
        assert any(layer.share("weights") > 1e-6 for layer in found.layers)


def test_relative_errors_are_those_of_the_conversion(measured: tuple[str, spikecal.Result, NetworkErrors]) -> None:
    _, result, found = measured
    assert [layer.stage for layer in found.layers] == [record.stage for record in result.records]
    for layer, record in zip(found.layers, result.records, strict=True):
        assert layer.share() == pytest.approx(record.errors[-1][1], rel=1e-3)
        if record.rate is not None:
            assert layer.rate is not None and layer.saturated is not None and layer.dead is not None
            assert float(layer.rate.mean()) == pytest.approx(record.rate, rel=1e-3)
            assert float(layer.saturated.mean()) == pytest.approx(record.saturated, rel=1e-3, abs=1e-3)
            assert float(layer.dead.mean()) == pytest.approx(record.dead, rel=1e-3, abs=1e-3)


def test_on_dyadic_numbers_everything_is_exact() -> None:
    """One image, so that nothing is summed: the parts of each number add up to the bit."""
    x = dyadic_images(16)
    result = spikecal.convert(
        dyadic(), x, T=4, pipeline=spikecal.Pipeline(threshold=spikecal.MaxAct(), rounding="floor")
    )
    for node in result.snn.graph.nodes.values():
        if "theta" in node.op.tensors():
            node.op.theta = nn.Parameter(torch.ones(1), requires_grad=False)
    found = measure_errors(dyadic(), result.snn, x[:1])
    for layer in found.layers:
        mean = {part: layer.parts[part].mean for part in PARTS}
        assert torch.equal(mean["total"], mean["input"] + mean["local"])
        assert torch.equal(mean["local"], mean["flooring"] + mean["clipping"] + mean["unevenness"])
        assert not mean["weights"].any()


def test_against_torch_alone() -> None:
    """x from torch's own modules, the SNN's means from its spike counts, the closed form by hand."""
    net, x = chain(), images(12, 8)
    snn = spikecal.convert(net, images(32, 8), T=5, pipeline="baseline").snn
    run, found = snn.run(x), measure_errors(net, snn, x)
    first, second, last = found.layers
    thetas = [snn.graph.nodes[layer.stage].op.theta.double() for layer in (first, second)]  # type: ignore[union-attr]
    z1 = net[0](x).double()
    x1 = F.relu(z1)
    s1 = run.spikes[first.stage] * thetas[0].reshape(1, -1, 1, 1) / 5
    over = (0, 2, 3)
    torch.testing.assert_close(first.relative, (x1 - s1).square().sum(over) / x1.square().sum(over))
    torch.testing.assert_close(first.parts["total"].mean, (x1 - s1).mean(over), atol=1e-7, rtol=1e-5)
    assert float(first.parts["input"].squared.sum()) == 0  # the image is no spike
    assert first.share("unevenness") < 1e-4  # a constant current has the closed form, up to rounding
    clipped = (x1 - thetas[0].reshape(1, -1, 1, 1)).clamp(min=0)
    torch.testing.assert_close(first.parts["clipping"].squared, clipped.square().sum(over) / 12)
    r2 = F.relu(net[2](s1.float())).double()
    x2 = F.relu(net[2](x1.float())).double()
    s2 = run.spikes[second.stage] * thetas[1].reshape(1, -1, 1, 1) / 5
    torch.testing.assert_close(second.parts["input"].squared, (x2 - r2).square().sum(over) / 12, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(second.parts["local"].squared, (r2 - s2).square().sum(over) / 12, atol=1e-6, rtol=1e-4)
    output = net(x).double() - snn(x).double()
    torch.testing.assert_close(last.parts["total"].squared, output.square().sum(0) / 12, atol=1e-6, rtol=1e-4)
    assert (last.rate, last.threshold) == (None, None)
    counts = run.spikes[second.stage]
    assert second.rate is not None and second.dead is not None and second.saturated is not None
    torch.testing.assert_close(second.rate, counts.double().mean(over) / 5)
    torch.testing.assert_close(second.saturated, (counts == 5).double().mean(over))
    torch.testing.assert_close(second.dead, (counts == 0).all(0).double().mean((1, 2)))
    squares = [float(layer.parts["local"].squared.sum()) for layer in found.layers]
    assert found.objective == pytest.approx(8 * squares[0] + 4 * squares[1] + 2 * squares[2])


def test_a_longer_run_reduces_it() -> None:
    result = spikecal.convert(residual(), images(32), T=[4, 64], pipeline="baseline")
    short, long = (measure_errors(residual(), result.at(T), images(32)) for T in (4, 64))
    assert long.objective < short.objective / 4
    assert long.layers[0].share("flooring") < short.layers[0].share("flooring") / 4


def test_images_of_two_sizes_and_plain_data() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    mixed: list[Tensor] = [*images(4, 8), *images(3, 6)]
    snn = spikecal.convert(net, mixed, T=4, pipeline="baseline").snn
    found = measure_errors(net, snn, mixed)
    counts = [snn.run(x).spikes[found.layers[0].stage] for x in (images(4, 8), images(3, 6))]
    rate = sum(int(c.sum()) for c in counts) / (4 * sum(c.numel() for c in counts))
    assert found.layers[0].rate is not None
    assert float(found.layers[0].rate.mean()) == pytest.approx(rate)
    plain = found.to_dict()
    assert plain["layers"][0]["share"]["total"] == found.layers[0].share()
    assert len(plain["layers"][0]["channels"]["relative"]) == 4
    assert found.layer(found.layers[0].stage) is found.layers[0]
    with pytest.raises(KeyError):
        found.layer("frob")


def test_a_silent_channel_is_not_a_number() -> None:
    net = chain()
    net[0].weight[0].zero_()  # type: ignore[operator, index]
    net[0].bias[0] = -1  # type: ignore[index]
    snn = spikecal.convert(net, images(8, 8), T=4, pipeline="baseline").snn
    found = measure_errors(net, snn, images(8, 8))
    assert found.layers[0].relative[0].isnan()
    assert found.to_dict()["layers"][0]["channels"]["relative"][0] is None
    assert found.layers[0].dead is not None
    assert found.layers[0].dead[0] == 1


def test_another_model_is_refused() -> None:
    snn = spikecal.convert(chain(), images(8, 8), T=4).snn
    with pytest.raises(ConfigError, match="different source model"):
        measure_errors(residual(), snn, images(8, 8))
    graph = with_joints(lower(chain(), (images(2, 8),)))
    assert measure_errors(graph, snn, images(8, 8)).images == 8
    with pytest.raises(ConfigError, match="different source model"):
        measure_errors(chain(), snn.normalized(), images(8, 8))
