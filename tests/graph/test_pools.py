"""Average, adaptive and max pooling; where max-pools go."""

import pytest
import torch
from networks import Function
from torch import nn
from torch.nn import functional as F

import spikecal
from spikecal.errors import ConversionError, DataError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import AdaptiveAvgPool, Cat, MaxPool, Spike


def pools(graph):
    return [node.op.of for node in graph.nodes.values() if isinstance(node.op, MaxPool)]


@pytest.mark.parametrize(
    "function",
    [
        nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d((3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.AvgPool2d(2, divisor_override=3),
        lambda x: F.avg_pool2d(x, 3, stride=1, padding=1), lambda x: F.avg_pool2d(x, kernel_size=2),
        lambda x: F.avg_pool2d(x, x.size()[2:]), lambda x: F.avg_pool2d(x, (x.size(2), x.shape[3])),
        nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((2, None)), nn.AdaptiveAvgPool2d((3, 2)),
        lambda x: F.adaptive_avg_pool2d(x, (1, 1)), lambda x: F.adaptive_avg_pool2d(x, output_size=2),
        lambda x: x.mean((2, 3)), lambda x: x.mean([-2, -1], keepdim=True), lambda x: torch.mean(x, dim=(2, 3)),
        lambda x: x.mean(-1).mean(-1), lambda x: x.sum((2, 3)) / 64, lambda x: x.mean(1), lambda x: x.sum(3, True),
        lambda x: x.mean(dim=(2, 3), dtype=torch.float32), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, stride=1, dilation=2, ceil_mode=True), lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, kernel_size=3, stride=2, padding=1), lambda x: torch.max_pool2d(x, 2),
        lambda x: F.max_pool2d(F.relu(x), 2), lambda x: F.relu(F.max_pool2d(x, 2)),
    ],
)  # fmt: skip
def test_pool(agree, function):
    agree(Function(function), (3, 8, 8), (3, 9, 6))


def test_a_pool_across_channels_that_are_not_the_first_dimension():
    """Its neurons have thresholds of their own along what is pooled: spikes of a window differ in height."""

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.pooled, self.all = nn.Linear(6, 8), nn.Linear(20, 3), nn.Linear(40, 3)
            self.layer.weight.data *= torch.logspace(-1, 1, 8)[:, None]

        def forward(self, x):
            y = F.relu(self.layer(x))
            return self.pooled(F.max_pool1d(y, 2).flatten(1)) + self.all(y.flatten(1))

    torch.manual_seed(0)
    model, x = Features().requires_grad_(False), torch.randn(32, 5, 6)
    snn = spikecal.convert(model, x, T=256, pipeline="baseline").snn
    assert (snn(x) - model(x)).norm() < 0.02 * model(x).norm()
    for _ in range(256):
        last = snn.step(x)
    assert torch.allclose(last, snn(x), atol=1e-3)


@pytest.mark.parametrize("layer", [nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3), nn.MaxPool1d(3, 2, 1)])
def test_one_dimension(agree, layer):
    agree(nn.Sequential(nn.Conv1d(3, 4, 3), layer), (3, 11), (3, 16))


@pytest.mark.parametrize("layer", [nn.AvgPool3d(2), nn.AdaptiveAvgPool3d((1, None, 2)), nn.MaxPool3d(2)])
def test_three_dimensions(agree, layer):
    agree(nn.Sequential(nn.Conv3d(3, 4, 1), layer), (3, 4, 6, 5), (3, 6, 4, 4))


def test_a_pool_as_large_as_the_image_is_adaptive(agree):
    graph = agree(Function(lambda x: F.avg_pool2d(x, x.size(3))), (3, 8, 8), (3, 5, 5))
    assert any(isinstance(node.op, AdaptiveAvgPool) for node in graph.nodes.values())
    with pytest.raises(DataError, match="square"):  # the model itself would not average all of it
        graph.run(torch.zeros(1, 3, 8, 6))


def test_moves_before_a_relu_that_feeds_nothing_else(agree):
    graph = agree(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.MaxPool2d(2), nn.MaxPool2d(2)), (3, 16, 16))
    assert list(graph.nodes) == ["input", "0", "2", "3", "1"]
    assert pools(graph) == ["current", "current"]
    assert graph.output == "1"


def test_between_two_activations_leaves_one_layer_of_neurons(agree):
    graph = agree(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()), (3, 9, 9))
    assert [type(node.op).__name__ for node in graph.nodes.values()] == ["Input", "Conv", "MaxPool", "Spike"]


def test_stays_after_a_relu_that_something_else_reads(agree):
    graph = agree(Function(lambda x: F.max_pool2d(F.relu(x), 2) if x.dim() < 4 else _two_readers(x)), (3, 8, 8))
    assert pools(graph) == ["spikes"]


def _two_readers(x):
    x = F.relu(x)
    return F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)


def _of_cat(x):
    return F.max_pool2d(torch.cat([x.relu(), (x * 2).relu()], 1), 2)


def _of_cat_with_current(x):
    return F.max_pool2d(torch.cat([x.relu(), x], 1), 2)


def _of_pool_of_spikes(x):
    x = x.relu()
    return F.max_pool2d(F.max_pool2d(x, 3, 1, 1)[:, 1:], 2) + F.max_pool2d(x[:, 1:], 2)


def _of_average(x):
    return F.max_pool2d(F.avg_pool2d(x.relu(), 2), 2)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(_of_cat, ["spikes"]), (_of_cat_with_current, ["current"]), (_of_pool_of_spikes, ["spikes"] * 3),
     (_of_average, ["current"])],
)  # fmt: skip
def test_knows_whether_it_pools_spikes(agree, function, expected):
    graph = agree(Function(function), (3, 8, 8), (3, 12, 8))
    assert pools(graph) == expected
    assert any(isinstance(node.op, Spike) for node in graph.nodes.values())
    if function is _of_cat:
        assert any(isinstance(node.op, Cat) for node in graph.nodes.values())


@pytest.mark.parametrize(
    ("layer", "message"),
    [(nn.AdaptiveMaxPool2d(3), "from 8 to 3"), (nn.MaxPool2d(2, return_indices=True), "indices"),
     (nn.LPPool2d(2, 2), "LPPool2d"), (nn.FractionalMaxPool2d(2, output_ratio=0.5), "Fractional")],
)  # fmt: skip
def test_other_pools_are_refused(layer, message):
    with pytest.raises(ConversionError, match=message):
        lower(nn.Sequential(nn.Conv2d(3, 4, 1), layer), (torch.randn(2, 3, 8, 8),))
