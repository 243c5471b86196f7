"""Convolutions in all their forms, linear layers, sums and constants."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Add, ChannelAffine, Conv


class Function(nn.Module):
    """A function after a convolution, so that its input is a value of the network."""

    def __init__(self, function, inputs=3, channels=4):
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.function = function

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Conv2d(4, 8, 3, groups=4, stride=2),
        nn.Conv2d(4, 5, 3, dilation=2), nn.Conv2d(4, 5, (3, 1), padding=(1, 0), stride=(2, 1), bias=False),
        nn.Conv2d(4, 5, 3, padding="same"), nn.Conv2d(4, 5, (2, 4), padding="same", dilation=(1, 3)),
        nn.Conv2d(4, 5, 3, padding="valid"), nn.Conv2d(4, 5, 3, padding=2, padding_mode="reflect"),
        nn.Conv2d(4, 5, 3, padding=(1, 2), padding_mode="replicate"),
        nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular", stride=2),
        nn.Conv2d(4, 5, (4, 3), padding="same", padding_mode="circular"),
        nn.ConvTranspose2d(4, 5, 3), nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2),
        nn.ConvTranspose2d(4, 5, 3, stride=3, output_padding=(1, 2), dilation=2, bias=False),
        nn.ZeroPad2d(1), nn.ConstantPad2d((1, 2, 0, 3), 0.7), nn.ReflectionPad2d(2), nn.ReplicationPad2d((1, 0, 2, 1)),
        nn.CircularPad2d(1), nn.Dropout(), nn.Identity(), nn.AlphaDropout(), nn.PixelShuffle(2), nn.PixelUnshuffle(2),
        nn.ChannelShuffle(2), nn.Upsample(scale_factor=2), nn.UpsamplingBilinear2d(scale_factor=2),
        nn.Upsample(size=(7, 5), mode="bilinear"), nn.UpsamplingNearest2d(size=6),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using padding")  # torch's own, of even kernels
def test_layer(agree, layer):
    agree(nn.Sequential(nn.Conv2d(3, 4, 1), layer), (3, 8, 8), (3, 10, 12))


@pytest.mark.parametrize(
    ("layer", "shape", "other"),
    [
        (nn.Conv1d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 8), (3, 11)),
        (nn.Conv3d(3, 4, 3, padding="same"), (3, 5, 6, 7), (3, 4, 4, 5)),
        (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (3, 8), (3, 9)),
        (nn.ConvTranspose3d(3, 2, 2, stride=2), (3, 3, 4, 3), (3, 2, 2, 2)),
        (nn.ReflectionPad1d(2), (3, 8), (3, 7)), (nn.ConstantPad3d(1, 0.5), (3, 4, 4, 4), (3, 5, 4, 3)),
        (nn.Linear(6, 4), (6,), (6,)), (nn.Linear(6, 4), (5, 6), (7, 6)), (nn.Linear(6, 4), (2, 3, 6), (4, 1, 6)),
        (nn.Upsample(scale_factor=2, mode="linear"), (3, 5), (3, 6)),
        (nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True), (3, 3, 4, 3), (3, 2, 2, 2)),
    ],
)  # fmt: skip
def test_one_and_three_dimensions(agree, layer, shape, other):
    agree(nn.Sequential(layer, nn.ReLU()), shape, other)


class Weights(nn.Module):
    """Weights that are not in a layer."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(s) for s in shapes])
        self.function = function

    def forward(self, x):
        return self.function(x, *self.weights)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), [(4, 3, 3, 3)]),
        (lambda x, w, b: F.conv2d(x, w, b, 2, "valid"), [(4, 3, 3, 3), (4,)]),
        (lambda x, w: F.conv2d(x, w, padding="same"), [(4, 3, 2, 2)]),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(3, 4, 2, 2)]),
        (lambda x, w, b: F.linear(x.mean((2, 3)), w, b), [(5, 3), (5,)]),
        (lambda x, w: x.mean((2, 3)) @ w, [(3, 5)]),
        (lambda x, w: torch.matmul(x.permute(0, 2, 3, 1), w), [(3, 5)]),
        (lambda x, w: F.conv2d(x, (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)),
         [(4, 3, 3, 3)]),
        (lambda x, s: F.relu(x * s.view(1, -1, 1, 1)), [(3,)]), (lambda x, s: x + s, [(3, 1, 1)]),
        (lambda x, s: x + F.interpolate(s, scale_factor=2), [(1, 3, 4, 4)]),
    ],
)  # fmt: skip
def test_weights_from_parameters_and_functions_of_them(agree, function, shapes):
    agree(Weights(function, *shapes), (3, 8, 8))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x.relu(), lambda x: torch.add(x, x.relu(), alpha=3), lambda x: x - x.relu(), lambda x: x.add(x),
        lambda x: torch.sub(x, x.relu(), alpha=0.5), lambda x: x.sub(x.relu()), lambda x: 1 - x, lambda x: x - 1,
        lambda x: x * 0.1, lambda x: 0.1 * x, lambda x: x / 3, lambda x: x.div(2), lambda x: -x, lambda x: +x,
        lambda x: torch.mul(x, 2), lambda x: x.mul(2.5).add(1), lambda x: torch.neg(x), lambda x: torch.rsub(x, 2),
        lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1), lambda x: torch.add(x, 2, alpha=3),
        lambda x: x + torch.arange(4).view(1, 4, 1, 1), lambda x: sum([x, x.relu(), 1]), lambda x: 5 + x - 5,
        lambda x: torch.cat([x, torch.zeros_like(x)], 1), lambda x: torch.cat([x, x.mul(0)], dim=1),
        lambda x: x + torch.ones_like(x), lambda x: x / torch.tensor(4.0), lambda x: x.true_divide(4),
        lambda x: F.dropout(x, 0.5, training=False), lambda x: F.dropout2d(x, 0.3, False), lambda x: x * True,
    ],
)  # fmt: skip
def test_arithmetic(agree, function):
    agree(Function(function), (3, 8, 8), (3, 6, 9))


def test_subtraction_is_an_addition_with_a_coefficient(agree):
    graph = agree(Function(lambda x: x.relu() - x), (3, 4, 4))
    (add,) = (node.op for node in graph.nodes.values() if isinstance(node.op, Add))
    assert add.coefficients == (1, -1)


def test_scaling_disappears_into_the_convolution(agree):
    graph = agree(Function(lambda x: (x * 2 + 1) / 4 - 3), (3, 4, 4))
    assert [type(node.op) for node in graph.nodes.values()][1:] == [Conv]


def test_one_number_per_place_stays_an_affine_map(agree):
    graph = agree(Function(lambda x: x + torch.ones(1, 4, 8, 8).cumsum(2)), (3, 8, 8))
    assert any(isinstance(node.op, ChannelAffine) for node in graph.nodes.values())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * x, "product of two values"), (lambda x: x * x.relu(), "product of two values"),
        (lambda x: x @ x.transpose(2, 3), "matrix product of two values"), (lambda x: 1 / x, "division by a value"),
        (lambda x: x // 2, "floordiv"), (lambda x: x**2, "pow"), (lambda x: x > 0, "gt"),
        (lambda x: x + torch.randn(2, 4, 4, 4), "differs between the images"),
        (lambda x: F.avg_pool2d(x, 2) + x.mean((2, 3))[:, :2], "mixes the images"),
        (lambda x: F.dropout(x, 0.5, True), "active in eval"),
        (lambda x: F.dropout(x), "active in eval"), (lambda x: F.conv2d(x, x[:1]), "batch"),
        (lambda x: x * x.shape[0], "size that depends on the input"), (lambda x: x.max(), "max"),
        (lambda x: F.linear(x, x.mean((0, 1))), "batch"),
    ],
)  # fmt: skip
def test_refused(function, message):
    with pytest.raises(ConversionError, match=message):
        lower(Function(function), (torch.randn(2, 3, 4, 4),))


def test_a_module_called_twice_gives_two_layers_that_share_no_memory(agree):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x).relu())

    graph = agree(Twice(), (3, 5, 5), (3, 8, 6))
    first, second = graph.nodes["conv"].op, graph.nodes["conv_2"].op
    assert torch.equal(first.weight, second.weight)
    assert first.weight.data_ptr() != second.weight.data_ptr()


def test_weight_norm_and_spectral_norm_are_their_result(agree):
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    agree(nn.Sequential(conv, nn.ReLU()), (3, 5, 5))
