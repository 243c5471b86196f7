"""Every way to write an activation becomes a Spike."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikecal
from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Conv, Linear, Spike


def clamp_in_place(x):
    x.clamp_(min=0)
    return x


def spikes(graph):
    return [node.op for node in graph.nodes.values() if isinstance(node.op, Spike)]


class Activated(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.function = function

    def forward(self, x):
        return self.function(self.conv(x)) * 2


@pytest.mark.parametrize(
    ("function", "clip"),
    [
        (nn.ReLU(), None), (nn.ReLU(inplace=True), None), (F.relu, None), (lambda x: F.relu(x, inplace=True), None),
        (lambda x: F.relu(x, True), None), (torch.relu, None), (torch.relu_, None), (lambda x: x.relu(), None),
        (lambda x: x.relu_(), None), (lambda x: x.clamp(min=0), None), (lambda x: x.clamp(0), None),
        (lambda x: torch.clamp(x, min=0.0), None), (lambda x: torch.clamp_min(x, 0), None),
        (lambda x: x.clamp_min_(0), None), (clamp_in_place, None), (lambda x: x.clip(0, 0.5), 0.5),
        (lambda x: torch.clip(x, min=0, max=1), 1), (lambda x: x.clamp(0, 1.5), 1.5), (nn.ReLU6(), 6),
        (F.relu6, 6), (nn.ReLU6(inplace=True), 6), (nn.Hardtanh(0, 0.75), 0.75),
        (lambda x: F.hardtanh(x, 0.0, 1.0), 1), (lambda x: F.hardtanh(x, min_val=0, max_val=2), 2),
        (nn.Threshold(0, 0), None), (lambda x: F.threshold(x, 0, 0), None), (lambda x: F.threshold_(x, 0, 0), None),
    ],
)  # fmt: skip
def test_form(agree, function, clip):
    (spike,) = spikes(agree(Activated(function), (3, 8, 8), (3, 11, 9)))
    assert spike.clip == clip
    assert spike.channel == 1
    assert spike.ndim == 4


class SharedRelu(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
        self.relu = nn.ReLU(inplace)

    def forward(self, x):
        return self.relu(self.c(self.relu(self.b(self.relu(self.a(x))))))


@pytest.mark.parametrize("inplace", [False, True])
def test_one_instance_used_many_times_is_many_layers_with_readable_names(agree, inplace):
    graph = agree(SharedRelu(inplace), (3, 4, 4))
    names = [name for name, node in graph.nodes.items() if isinstance(node.op, Spike)]
    assert names == ["relu", "relu_2", "relu_3"]


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.LeakyReLU(), "LeakyReLU"), (nn.PReLU(), "PReLU"), (nn.SiLU(), "SiLU"), (nn.GELU(), "GELU"),
     (nn.Sigmoid(), "Sigmoid"), (nn.Tanh(), "Tanh"), (nn.ELU(), "ELU"), (nn.Hardtanh(-1, 1), "Hardtanh"),
     (nn.Threshold(0.5, 0), "Threshold")],
)  # fmt: skip
def test_other_activations_are_refused_by_name(layer, name):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), layer, nn.Conv2d(4, 2, 1))
    with pytest.raises(ConversionError, match=f"1: .*{name}.*ReLU.*keep=") as error:
        lower(model, (torch.randn(2, 3, 4, 4),))
    assert error.value.layer == "1"


@pytest.mark.parametrize(
    ("function", "name"),
    [(F.leaky_relu, "leaky_relu"), (torch.sigmoid, "sigmoid"), (lambda x: x.sigmoid(), "sigmoid"), (F.silu, "silu"),
     (lambda x: F.softmax(x, 1), "softmax"), (lambda x: x.clamp(min=0.1), "clamp"), (lambda x: x.clamp(max=1), "clamp"),
     (lambda x: x * torch.sigmoid(x), "sigmoid"), (torch.abs, "abs"), (lambda x: x.pow(2), "pow")],
)  # fmt: skip
def test_other_functions_are_refused_by_name(function, name):
    with pytest.raises(ConversionError, match=name) as error:
        lower(Activated(function), (torch.randn(2, 3, 4, 4),))
    assert error.value.layer == name


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(3, 6, 2, 2), nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        x = F.relu(x)  # [N, L, 6]
        x = F.relu(self.fc1(x))  # [N, L, 8]
        x = F.relu(self.fc2(x).permute(0, 2, 1))  # [N, 4, L]
        return x.mean(2)


def test_channels_are_followed_through_linear_layers_and_permutes(agree):
    found = spikes(agree(Tokens(), (3, 8, 8), (3, 6, 10)))
    assert [(s.channel, s.ndim) for s in found] == [(2, 3), (2, 3), (1, 3)]


def test_activation_of_an_activation_is_one(agree):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.ReLU(), nn.Hardtanh(0, 2), nn.Conv2d(4, 2, 1))
    graph = agree(model, (3, 4, 4))
    assert [type(n.op) for n in graph.nodes.values()][1:] == [Conv, Spike, Conv]
    assert spikes(graph)[0].clip == 2


def test_linear_layers_on_vectors(agree):
    graph = agree(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), (5,))
    assert [type(n.op) for n in graph.nodes.values()][1:] == [Linear, Spike, Linear]
    assert spikes(graph)[0].ndim == 2


class Clipped(nn.Module):
    """An activation whose end is learned: PACT's, or QCFS's."""

    def __init__(self, alpha, function):
        super().__init__()
        self.alpha = nn.Parameter(torch.as_tensor(alpha))
        self.function = function

    def forward(self, x):
        return self.function(x, self.alpha)


FORMS = {
    "clamp": lambda x, alpha: torch.clamp(x, 0, alpha.item()) if alpha.ndim == 0 else x.clamp(0 * alpha, alpha),
    "clamp, keywords": lambda x, alpha: x.clamp(min=torch.zeros(()), max=alpha),
    "clamp of relu": lambda x, alpha: torch.clamp(F.relu(x), max=alpha),
    "minimum": lambda x, alpha: torch.minimum(F.relu(x), alpha),
    "min": lambda x, alpha: torch.min(alpha, x.relu()),
    "unit": lambda x, alpha: torch.clamp(x / alpha, 0, 1) * alpha,
}


@pytest.mark.parametrize("alpha", [0.5, [0.5], [[[0.25]], [[0.5]], [[0.75]], [[1.0]]]])
@pytest.mark.parametrize("form", FORMS)
def test_learned_clips_agree_and_keep_their_thresholds_where_asked(form, alpha):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Clipped(alpha, FORMS[form]), nn.Conv2d(4, 4, 1), nn.ReLU())
    images = torch.randn(8, 3, 8, 6)
    assert torch.allclose(lower(model, (images[:2],)).run(images), model(images), atol=1e-6)
    pipeline = replace(spikecal.LCP, threshold=spikecal.Learned(per="channel"))
    found = spikecal.convert(model, images, T=4, pipeline=pipeline).snn
    first, last = (node.op for node in found.graph.nodes.values() if isinstance(node.op, Spike))
    assert torch.equal(first.theta, torch.full((4,), first.clip)) and last.clip is None
    assert first.clip in (0.5, 1.0)  # itself, or in units of the channel's own
    least = spikecal.convert(model, 1e-3 * images, T=4, pipeline=replace(pipeline, threshold=spikecal.MMSE())).snn
    assert float(least.graph.nodes[next(iter(found.run(images).spikes))].op.theta.max()) < first.clip


def test_learned_clips_are_in_toml_and_files(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Clipped(0.5, FORMS["clamp"]), nn.Flatten(), nn.Linear(16, 2))
    (tmp_path / "p.toml").write_text('preset = "lcp"\n[threshold]\nkind = "learned"\n')
    pipeline = spikecal.Pipeline.from_toml(tmp_path / "p.toml")
    found = spikecal.convert(model, torch.randn(8, 3, 2, 2), T=4, pipeline=pipeline)
    found.save(tmp_path / "net.snn")
    loaded = spikecal.load(tmp_path / "net.snn")
    assert [n.op.theta.unique().tolist() for n in loaded.graph.nodes.values() if isinstance(n.op, Spike)] == [[0.5]]


def test_a_rounded_activation_says_to_leave_the_rounding_out():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Clipped(0.5, lambda x, alpha: torch.floor(x.clamp(0, 1) * 4 + 0.5) / 4))
    with pytest.raises(ConversionError, match="neurons round by themselves"):
        lower(model, (torch.randn(2, 3, 4, 4),))
