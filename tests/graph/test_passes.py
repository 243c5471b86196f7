"""Each pass preserves the outputs and does its job."""

import copy

import pytest
import torch
from torch import nn

from spikecal.graph import passes
from spikecal.graph.graph import Graph, Node, same_structure
from spikecal.graph.ops import (
    Add,
    AvgPool,
    Cat,
    ChannelAffine,
    Conv,
    ConvTranspose,
    Input,
    Linear,
    MaxPool,
    Pad,
    Permute,
    Reduce,
    Slice,
    Spike,
    Upsample,
)

WHOLE = ("slice", None, None, None)


def conv(inputs, outputs, size=1, groups=1, bias=True):
    weight = torch.randn(outputs, inputs // groups, size, size, dtype=torch.float64)
    return Conv(
        weight=weight, bias=torch.randn(outputs, dtype=torch.float64) if bias else None, stride=(1, 1),
        padding=(size // 2,) * 2, dilation=(1, 1), groups=groups,
    )  # fmt: skip


def transposed(inputs, outputs, groups=1):
    return ConvTranspose(
        weight=torch.randn(inputs, outputs // groups, 2, 2, dtype=torch.float64), stride=(2, 2), padding=(0, 0),
        output_padding=(0, 0), dilation=(1, 1), groups=groups,
    )  # fmt: skip


def linear(inputs, outputs):
    return Linear(weight=torch.randn(outputs, inputs, dtype=torch.float64), bias=torch.randn(outputs).double())


def affine(*shape, scale=True, shift=True):
    return ChannelAffine(
        scale=torch.randn(shape, dtype=torch.float64) if scale else None,
        shift=torch.randn(shape, dtype=torch.float64) if shift else None,
    )


def pool(size=2):
    return MaxPool(kernel=(size, size), stride=(size, size), padding=(0, 0), dilation=(1, 1))


def build(*nodes, output):
    """Nodes as (name, op, *inputs), after an input x."""
    graph = Graph()
    graph.add(Node("x", Input()))
    for name, op, *inputs in nodes:
        graph.add(Node(name, op, tuple(inputs)))
    graph.output = output
    return graph


def kinds(graph):
    return {name: type(node.op).__name__ for name, node in graph.nodes.items()}


@pytest.fixture
def preserved():
    """Apply a pass to a graph, check that outputs stay and that nodes are read only after they run."""

    def check(apply, graph, *shape):
        torch.manual_seed(3)
        x = torch.randn(*shape, dtype=torch.float64)
        expected = copy.deepcopy(graph).run(x)
        apply(graph)
        assert same_structure(graph.run(x), expected, lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-9))
        return graph

    return check


@pytest.mark.parametrize(
    "op",
    [
        ChannelAffine(scale=torch.tensor(1.0), shift=torch.tensor(0.0)), Add(coefficients=(1,)), Pad(pad=(0, 0, 0, 0)),
        AvgPool(kernel=(1, 1), stride=(1, 1), padding=(0, 0)), Permute(dims=(0, 1, 2, 3)), Slice(index=(WHOLE, WHOLE)),
        Upsample(scale=(1.0, 1.0)), Cat(dim=1),
    ],
)  # fmt: skip
def test_drop_identities(preserved, op):
    graph = build(("a", conv(3, 4), "x"), ("b", op, "a"), ("c", op.clone(), "b"), output={"y": "c", "z": "a"})
    assert list(preserved(passes.drop_identities, graph, 2, 3, 4, 4).nodes) == ["x", "a"]
    assert graph.output == {"y": "a", "z": "a"}


def test_widening_ones_are_not_identities(preserved):
    graph = build(("a", ChannelAffine(scale=torch.ones(1, 3, 1, 1, dtype=torch.float64)), "x"), output="a")
    assert "a" in preserved(passes.drop_identities, graph, 2, 1, 4, 4).nodes


@pytest.mark.parametrize(
    ("before", "after", "shape"),
    [
        (conv(3, 4), affine(1, 4, 1, 1), (2, 3, 4, 4)),
        (conv(4, 6, groups=2, bias=False), affine(6, 1, 1), (2, 4, 4, 4)),
        (conv(3, 4), affine(), (2, 3, 4, 4)), (conv(3, 4), affine(1, 4, 1, 1, shift=False), (2, 3, 4, 4)),
        (conv(3, 4, bias=False), affine(1, 4, 1, 1, scale=False), (2, 3, 4, 4)),
        (transposed(3, 4), affine(1, 4, 1, 1), (2, 3, 4, 4)), (transposed(4, 6, 2), affine(1, 6, 1, 1), (2, 4, 3, 3)),
        (linear(3, 5), affine(1, 5), (2, 3)),
        (linear(3, 5), affine(5), (2, 7, 3)),
    ],
)  # fmt: skip
def test_fold_affine(preserved, before, after, shape):
    graph = build(("a", before, "x"), ("b", after, "a"), ("c", affine(), "b"), output="c")
    assert list(preserved(passes.fold_affine, graph, *shape).nodes) == ["x", "a"]


@pytest.mark.parametrize(
    ("before", "after", "shape"),
    [
        (conv(3, 4), affine(1, 4, 4, 4), (2, 3, 4, 4)), (conv(3, 4), affine(1, 1, 4, 1), (2, 3, 4, 4)),
        (conv(3, 1), affine(1, 4, 1, 1), (2, 3, 4, 4)), (conv(3, 4), affine(4), (2, 3, 4, 4)),
        (linear(3, 5), affine(1, 5, 1), (2, 5, 3)), (pool(), affine(), (2, 3, 4, 4)),
    ],
)  # fmt: skip
def test_fold_affine_leaves_what_is_not_per_output_channel(preserved, before, after, shape):
    graph = build(("a", before, "x"), ("b", after, "a"), output="b")
    assert "b" in preserved(passes.fold_affine, graph, *shape).nodes


def test_fold_affine_leaves_a_layer_that_something_else_reads(preserved):
    graph = build(("a", conv(3, 4), "x"), ("b", affine(1, 4, 1, 1), "a"), output=("b", "a"))
    assert "b" in preserved(passes.fold_affine, graph, 2, 3, 4, 4).nodes


def test_merge_affine(preserved):
    nodes = [("a", affine(1, 3, 1, 1), "x"), ("b", affine(), "a"), ("c", affine(3, 1, 1, shift=False), "b")]
    graph = build(*nodes, ("d", affine(1, 3, 1, 1, scale=False), "c"), output="d")
    assert list(preserved(passes.merge_affine, graph, 2, 3, 4, 4).nodes) == ["x", "d"]


def test_merge_affine_leaves_maps_that_would_grow_and_maps_that_are_read(preserved):
    graph = build(("a", affine(1, 3, 1, 1), "x"), ("b", affine(1, 1, 4, 4), "a"), output="b")
    assert len(preserved(passes.merge_affine, graph, 2, 3, 4, 4).nodes) == 3
    graph = build(("a", affine(1, 3, 1, 1), "x"), ("b", affine(), "a"), output=["b", "a"])
    assert len(preserved(passes.merge_affine, graph, 2, 3, 4, 4).nodes) == 3


@pytest.mark.parametrize(
    ("first", "second", "clip"), [(None, None, None), (6, None, 6), (None, 1, 1), (1, 2, 1), (2, 1, 1)]
)
def test_merge_spikes(preserved, first, second, clip):
    graph = build(("a", Spike(clip=first), "x"), ("b", Spike(clip=second), "a"), output="b")
    preserved(passes.merge_spikes, graph, 2, 3, 4, 4)
    assert [node.op.clip for node in graph.nodes.values() if isinstance(node.op, Spike)] == [clip]


def test_merge_spikes_of_one_that_is_read_elsewhere(preserved):
    graph = build(("a", Spike(clip=2), "x"), ("b", Spike(clip=1), "a"), ("c", Spike(), "a"), output=("a", "b", "c"))
    preserved(passes.merge_spikes, graph, 2, 3, 4, 4)
    assert graph.nodes["b"].inputs == ("x",)
    assert graph.output == ("a", "b", "a")


def test_pool_before_spike(preserved):
    graph = build(("a", Spike(clip=1), "x"), ("b", pool(), "a"), ("c", pool(), "b"), ("d", conv(3, 2), "c"), output="d")
    preserved(passes.pool_before_spike, graph, 2, 3, 8, 8)
    assert list(graph.nodes) == ["x", "b", "c", "a", "d"]


def test_pool_before_spike_moves_references_to_the_shape(preserved):
    graph = build(("a", Spike(), "x"), ("b", pool(), "a"), output="u")
    graph.add(Node("u", Upsample(size=(("size", 1, 2), ("size", 1, 3))), ("b",), ("a",)))
    preserved(passes.pool_before_spike, graph, 2, 3, 8, 6)
    assert graph.nodes["u"].inputs == ("a",)
    assert graph.nodes["u"].shape_refs == ("x",)


def test_pool_stays_where_the_spikes_are_read_elsewhere(preserved):
    graph = build(("a", Spike(), "x"), ("b", pool(), "a"), ("c", pool(), "a"), output=("b", "c"))
    assert list(preserved(passes.pool_before_spike, graph, 2, 3, 4, 4).nodes) == ["x", "a", "b", "c"]


def test_mark_spike_pools(preserved):
    graph = build(
        ("s", Spike(), "x"), ("t", Spike(), "x"), ("cat", Cat(dim=1), "s", "t"),
        ("cut", Slice(index=(WHOLE, ("slice", 1, 4, None))), "cat"),
        ("a", pool(), "cut"), ("b", pool(), "a"), ("wide", Cat(dim=2), "s", "t"), ("c", pool(), "wide"),
        ("sum", Add(coefficients=(1, 1)), "s", "t"), ("d", pool(), "sum"), ("e", pool(), "x"),
        ("mixed", Cat(dim=1), "s", "x"),
        ("f", pool(), "mixed"), output=("b", "c", "d", "e", "f"),
    )  # fmt: skip
    preserved(passes.mark_spike_pools, graph, 2, 3, 8, 8)
    found = {name: node.op.of for name, node in graph.nodes.items() if isinstance(node.op, MaxPool)}
    assert found == {"a": "spikes", "b": "spikes", "c": "current", "d": "current", "e": "current", "f": "current"}


def test_drop_dead_keeps_inputs_and_what_only_gives_its_shape(preserved):
    graph = build(("a", conv(3, 4), "x"), ("dead", Spike(), "a"), ("b", pool(), "x"), output="u")
    graph.add(Node("second", Input(index=1)))
    graph.add(Node("u", Upsample(size=(("size", 1, 2), ("size", 1, 3))), ("b",), ("a",)))
    graph.nodes["unread"] = Node("unread", Reduce(dims=(1,)), ("dead",))
    passes.drop_dead(graph)
    assert list(graph.nodes) == ["x", "a", "b", "second", "u"]


@pytest.mark.parametrize(
    ("scale", "readers", "shape"),
    [
        ((1, 4, 1, 1), [conv(4, 3), conv(4, 6, 3, groups=2), transposed(4, 2), transposed(4, 6, 2)], (2, 4, 4, 4)),
        ((), [conv(4, 4, groups=4), transposed(4, 4)], (2, 4, 4, 4)),
        ((1, 4), [linear(4, 3)], (2, 4)),
    ],
)  # fmt: skip
def test_fold_scale_forward(preserved, scale, readers, shape):
    nodes = [(f"r{i}", op, "a") for i, op in enumerate(readers)]
    graph = build(("a", affine(*scale, shift=False), "x"), *nodes, output=tuple(name for name, *_ in nodes))
    assert "a" not in preserved(passes.fold_scale_forward, graph, *shape).nodes


def test_fold_scale_forward_continues_through_a_chain(preserved):
    graph = build(
        ("a", affine(shift=False), "x"), ("b", affine(1, 3, 1, 1, shift=False), "a"), ("c", conv(3, 4), "b"), output="c"
    )
    preserved(passes.fold_scale_forward, graph, 2, 3, 4, 4)
    assert "b" not in graph.nodes


@pytest.mark.parametrize(
    ("op", "reader", "output"),
    [
        (affine(1, 3, 1, 1), conv(3, 4), "r"), (affine(1, 3, 1, 1, shift=False), conv(3, 4), ("r", "a")),
        (affine(1, 3, 1, 1, shift=False), Spike(), "r"), (affine(1, 1, 4, 4, shift=False), conv(3, 4), "r"),
    ],
)  # fmt: skip
def test_fold_scale_forward_leaves_what_it_cannot_express(preserved, op, reader, output):
    graph = build(("a", op, "x"), ("r", reader, "a"), output=output)
    assert "a" in preserved(passes.fold_scale_forward, graph, 2, 3, 4, 4).nodes


def test_every_default_pass_preserves_a_network_on_its_own():
    """On graphs as they come from models: pass after pass, outputs never change."""
    from spikecal.graph.lowering.build import Builder
    from spikecal.graph.lowering.lower import Lowering
    from spikecal.graph.lowering.prepare import prepare
    from spikecal.graph.lowering.trace import trace

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.BatchNorm2d(4),
        nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(),
    ).double()  # fmt: skip
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    working = prepare(model, (x,))
    graph = Lowering(trace(working.model, working.example), Builder(working.dtype, working.device), ()).run()
    expected, sizes = model.eval()(x), [len(graph.nodes)]
    for apply in passes.PASSES:
        apply(graph)
        sizes.append(len(graph.nodes))
        assert torch.allclose(graph.run(x), expected, rtol=0, atol=1e-12), apply.__name__
    assert sizes[0] == 13
    assert kinds(graph) == {
        "input": "Input", "0": "Conv", "4": "MaxPool", "2": "Spike", "7": "ChannelAffine", "8": "Conv", "11": "MaxPool",
        "10": "Spike",
    }  # fmt: skip
