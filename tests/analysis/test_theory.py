"""The theorem's bound: where it holds, where it fails, and what holds always."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import images, residual
from torch import nn

import spikecal
from spikecal.analysis.theory import evaluate_bound, failing_case
from spikecal.errors import ConfigError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Spike
from spikecal.graph.stages import with_joints
from spikecal.snn.network import SpikingNetwork


def perceptron(seed: int, widths: tuple[int, ...], bias: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).eval().requires_grad_(False)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(torch.randn(layer.weight.shape) * (2 / layer.in_features) ** 0.5)
            layer.bias.fill_(bias)
    return net


def test_the_case_where_it_fails() -> None:
    model, x, T, thresholds = failing_case()
    graph = with_joints(lower(model, (torch.cat([x, x]),)))
    spikes = [node.op for node in graph.nodes.values() if isinstance(node.op, Spike)]
    for op, theta in zip(spikes, thresholds, strict=True):
        op.theta = nn.Parameter(torch.tensor([theta]), requires_grad=False)
    snn = SpikingNetwork(graph, T)
    assert snn(x).item() == 0.25
    bound = evaluate_bound(model, snn, x)
    assert bound.left.item() == pytest.approx(2 * 0.25**2)
    assert bound.right.item() == 0
    assert not bound.holds(bound.right)
    assert bound.holds(bound.repaired)
    assert [int(layer.flipped) for layer in bound.layers] == [0, 1, 0]


@settings(max_examples=25, deadline=None)
@example(35204, 1, "floor", 3)  # a neuron that flips on the way and back
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(["floor", "bias", "potential"]), st.integers(1, 4))
def test_bounds_that_always_hold_and_bounds_without_flips(seed: int, T: int, rounding: str, depth: int) -> None:
    net = perceptron(seed, (6, *[7] * depth, 3))
    x = torch.randn(12, 6)
    snn = spikecal.convert(net, x, T=T, pipeline=spikecal.Pipeline(rounding=rounding)).snn  # type: ignore[arg-type]
    bound = evaluate_bound(net, snn, x[:4])
    assert bound.holds(bound.repaired).all()
    assert bound.holds(bound.uniform).all()
    unflipped = sum(layer.flipped for layer in bound.layers) == 0
    assert bound.holds(bound.right)[unflipped].all()
    torch.testing.assert_close(bound.right[unflipped], bound.repaired[unflipped])


def test_without_flips_the_hessian_is_exact() -> None:
    """All neurons far from 0 in both networks: a linear network, where the theorem's terms are exact."""
    net = perceptron(1, (4, 5, 5, 2), bias=20.0)
    x = torch.rand(8, 4)
    snn = spikecal.convert(net, x, T=16, pipeline="baseline").snn
    bound = evaluate_bound(net, snn, x)
    assert all(int(layer.flipped.sum()) == 0 for layer in bound.layers)
    assert bound.holds(bound.right).all()
    for layer in bound.layers:
        torch.testing.assert_close(layer.hessian, layer.exact, atol=1e-9, rtol=1e-6)
    error = net.double()(x.double()) - snn.double()(x.double())
    torch.testing.assert_close(bound.left, 2 * error.square().sum(1), atol=1e-6, rtol=1e-2)


def test_graphs_that_are_not_chains() -> None:
    """A skip, a max-pool, a joint and a cat: the repaired bound is about any stages in running order."""
    x = images(16, 4)
    result = spikecal.convert(residual(), x, T=6, pipeline="lcp")
    bound = evaluate_bound(residual(), result.snn, x[:3])
    assert bound.holds(bound.repaired).all()
    plain = bound.to_dict()
    assert plain["repaired_holds"] == plain["images"] == 3
    assert plain["right"] == pytest.approx(sum(layer["hessian"] for layer in plain["layers"]))
    assert [layer["weight"] for layer in plain["layers"]] == [2.0 ** (6 - i) for i in range(6)]


def test_large_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="smaller network"):
        evaluate_bound(residual(), spikecal.convert(residual(), images(4, 40), T=2).snn, images(1, 40))
