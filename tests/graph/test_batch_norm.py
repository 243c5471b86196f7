"""Batch norm becomes an affine map, folded where something takes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import ChannelAffine


def kinds(graph):
    return [type(node.op).__name__ for node in graph.nodes.values()]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8, affine=False)), (4, 8, 8)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), (3, 8)),
        (nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), (3, 5, 6, 7)),
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), (6,)),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)), (3, 5, 5)),
        (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6, eps=0.1)), (4, 5, 5)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4)), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(), nn.Identity(), nn.BatchNorm2d(4), nn.BatchNorm2d(4)),
         (3, 8, 8)),
    ],
)  # fmt: skip
def test_is_folded_into_the_layer_before(agree, model, shape):
    graph = agree(model, shape)
    assert len(graph.nodes) == 2
    assert list(graph.nodes)[1] == "0"


def test_before_a_convolution_stays(agree):
    graph = agree(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)), (3, 8, 8), (3, 5, 6))
    assert kinds(graph) == ["Input", "ChannelAffine", "Conv"]
    affine = next(n.op for n in graph.nodes.values() if isinstance(n.op, ChannelAffine))
    assert affine.scale.shape == affine.shift.shape == (1, 3, 1, 1)


def test_on_the_length_of_a_sequence_is_not_folded_into_its_features(agree):
    graph = agree(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), (5, 6))
    assert kinds(graph) == ["Input", "Linear", "ChannelAffine"]


class AfterAdd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.bn = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.a(x) + self.b(x)).relu()


def test_after_an_add(agree):
    assert "ChannelAffine" in kinds(agree(AfterAdd(), (3, 4, 4), (3, 6, 5)))


class ConvReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return self.bn(x).relu() + x


def test_after_a_convolution_that_something_else_reads_stays(agree):
    assert kinds(agree(ConvReadTwice(), (3, 6, 6), (3, 7, 9))).count("ChannelAffine") == 1


class TwoNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn1, self.bn2 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return self.bn1(x).relu() + self.bn2(x).relu()


def test_two_norms_of_one_convolution(agree):
    assert kinds(agree(TwoNorms(), (3, 6, 6))).count("ChannelAffine") == 2


class Frozen(nn.Module):
    """As torchvision's FrozenBatchNorm2d computes it: from buffers, at run time."""

    def __init__(self, channels):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x):
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


class FunctionalNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, self.training, 0.1, 1e-3)


class NormActivation(nn.BatchNorm2d):
    """A subclass with its own forward, as some libraries have."""

    def forward(self, x):
        return F.relu(super().forward(x))


@pytest.mark.parametrize("norm", [Frozen(4), FunctionalNorm(4)])
def test_other_forms_fold_too(agree, norm):
    assert kinds(agree(nn.Sequential(nn.Conv2d(3, 4, 3), norm), (3, 6, 6), (3, 7, 8))) == ["Input", "Conv"]


def test_a_subclass_is_followed_into_its_forward(agree):
    graph = agree(nn.Sequential(nn.Conv2d(3, 4, 3), NormActivation(4)), (3, 6, 6))
    assert kinds(graph) == ["Input", "Conv", "Spike"]


@pytest.mark.parametrize("depth", [1, 2])
def test_without_running_statistics_is_refused_with_a_sentence(depth):
    layers = [nn.BatchNorm2d(4, track_running_stats=False) for _ in range(depth)]
    with pytest.raises(ConversionError, match="no running statistics.*depends on the batch") as error:
        lower(nn.Sequential(nn.Conv2d(3, 4, 3), *layers), (torch.randn(2, 3, 6, 6),))
    assert [e.layer for e in (error.value, *error.value.others)] == ["1", "2"][:depth]


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 4, 4])])
def test_other_norms_are_refused(norm):
    with pytest.raises(ConversionError, match="BatchNorm"):
        lower(nn.Sequential(nn.Conv2d(3, 4, 3), norm), (torch.randn(2, 3, 6, 6),))
