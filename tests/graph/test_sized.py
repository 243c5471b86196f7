"""Code that computes with the size of its input: converted for that size, and for no other."""

import logging
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikecal
from spikecal.errors import ConversionError, DataError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import MaxPool


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, padding=1)
        self.function = function

    def forward(self, x):
        return self.function(self.conv(x).relu())


def same_padding(x, kernel=3, stride=2):
    """As TensorFlow pads: what is missing to a whole number of strides, one more on the right."""
    pad = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:]]
    return F.avg_pool2d(
        F.pad(x, [pad[1] // 2, pad[1] - pad[1] // 2, pad[0] // 2, pad[0] - pad[0] // 2]), kernel, stride
    )


def small_images_are_enlarged(x):
    return F.adaptive_avg_pool2d(x, (7, 7)) if x.shape[-2] < 7 or x.size(-1) < 7 else x


def shapes_are_compared(x):
    y = F.avg_pool2d(x, 3, 1)
    return x if x.shape == y.shape else F.pad(y, (1, 1, 1, 1)) + x


def columns_are_summed(x):
    return sum(x[:, :, :, i] for i in range(x.size(dim=3)))


@pytest.mark.parametrize(
    "function",
    [
        same_padding, small_images_are_enlarged, shapes_are_compared, columns_are_summed, nn.AdaptiveMaxPool2d(1),
        nn.AdaptiveMaxPool2d((1, None)), lambda x: F.adaptive_max_pool2d(x, (2, 1)), lambda x: x / x.shape[2] ** 0.5,
        lambda x: x.view(x.size(0), -1, x.size(2) % 3 + 1), lambda x: x[:, :, : int(x.size(2) * 0.5)],
        lambda x: x[..., [2, 0, -1]], lambda x: F.max_pool2d(x, kernel_size=x.size()[2:]),
        lambda x: x.view(x.shape[0], math.prod(x.shape[1:])),
    ],
)  # fmt: skip
def test_agrees_with_the_model_for_every_batch(agree, function):
    agree(Function(function), (3, 8, 6))


def test_says_that_one_size_is_left_and_why(caplog):
    with caplog.at_level(logging.WARNING, "spikecal"):
        lower(Function(small_images_are_enlarged), (torch.randn(2, 3, 12, 10),))
    assert "only inputs of 3×12×10" in caplog.text
    assert "test_sized.py" in caplog.text
    caplog.clear()
    lower(Function(lambda x: F.avg_pool2d(x, 2)), (torch.randn(2, 3, 12, 10),))
    assert not caplog.text


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 6, 4), (3, 4, 16), (3, 16, 4)])
def test_other_sizes_are_an_error_also_with_as_many_pixels(shape, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Function(nn.AdaptiveMaxPool2d(1)), nn.Flatten(), nn.Linear(4, 2)).eval()
    result = spikecal.convert(model, torch.randn(4, 3, 6, 8), T=3)
    result.save(tmp_path / "net.snn")
    images = torch.randn(2, 3, 6, 8)
    for snn in (result.snn, spikecal.load(tmp_path / "net.snn")):
        assert torch.equal(snn(images), result.snn(images))
        with pytest.raises(DataError, match="only inputs of the size it was converted for"):
            snn(torch.randn(2, *shape))


def test_a_global_max_pool_is_a_max_pool():
    graph = lower(Function(nn.AdaptiveMaxPool2d(1)), (torch.randn(2, 3, 12, 16),))
    assert [node.op.kernel for node in graph.nodes.values() if isinstance(node.op, MaxPool)] == [(6, 8)]


def test_what_is_refused_anyway_is_refused_without_complaints_about_sizes():
    model = nn.Sequential(Function(same_padding), nn.SiLU(), nn.GELU())
    with pytest.raises(ConversionError) as error:
        lower(model, (torch.randn(2, 3, 8, 8),))
    assert [e.layer for e in (error.value, *error.value.others)] == ["1", "2"]


class Detector(nn.Module):
    """Sizes are computed with at the beginning, and boxes chosen by their scores at the end."""

    def __init__(self):
        super().__init__()
        self.stem = Function(same_padding)
        self.boxes = nn.Conv2d(4, 5, 1)

    def forward(self, x):
        found = self.boxes(self.stem(x)).flatten(2).transpose(1, 2)
        return [boxes[boxes[:, 4] > 0.5] for boxes in found]


def test_a_refusal_is_of_the_place_where_sizes_no_longer_matter():
    example = (torch.randn(2, 3, 12, 12),)
    with pytest.raises(ConversionError, match=r"for boxes in found") as error:
        lower(Detector(), example)
    assert error.value.layer == "Detector" and "stem" not in str(error.value)
    assert "docs/how-to/detection.md#your-own-network" in error.value.hint
    lower(Detector().stem, example)
