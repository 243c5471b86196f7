"""Several inputs and outputs, in-place operations, names, and what the caller's model looks like afterwards."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikecal
from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Conv, Spike

Pair = namedtuple("Pair", ["left", "right"])


class Outputs(nn.Module):
    def __init__(self, arrange):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, stride=2)
        self.arrange = arrange

    def forward(self, x):
        first = self.a(x).relu()
        return self.arrange(first, self.b(first))


@pytest.mark.parametrize(
    ("arrange", "output"),
    [
        (lambda a, b: b, "b"), (lambda a, b: (a, b), ("relu", "b")), (lambda a, b: [b, a, b], ["b", "relu", "b"]),
        (lambda a, b: {"low": a, "high": b}, {"low": "relu", "high": "b"}), (lambda a, b: (b,), ("b",)),
        (lambda a, b: OrderedDict([("high", b), ("low", a)]), {"high": "b", "low": "relu"}),
        (lambda a, b: {"deep": [a, {"deeper": (b, a)}]}, {"deep": ["relu", {"deeper": ("b", "relu")}]}),
        (lambda a, b: Pair(b, a), ("b", "relu")), (lambda a, b: (b, None), ("b", None)),
        (lambda a, b: {"out": b, "aux": None}, {"out": "b", "aux": None}),
    ],
)  # fmt: skip
def test_outputs_keep_their_structure(agree, arrange, output):
    assert agree(Outputs(arrange), (3, 9, 9), (3, 12, 10)).output == output


@pytest.mark.parametrize("arrange", [lambda a, b: (b, 3), lambda a, b: (b, a.shape), lambda a, b: None])
def test_an_output_that_is_not_a_value_of_the_network_is_refused(arrange):
    with pytest.raises(ConversionError, match="output"):
        lower(Outputs(arrange), (torch.randn(2, 3, 9, 9),))


class Inputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.depth, self.vector = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3), nn.Linear(6, 4)

    def forward(self, image, depth, vector=None, scale=2.0):
        x = self.image(image) + scale * self.depth(depth)
        if vector is not None:
            x = x + self.vector(vector)[:, :, None, None]
        return x.relu()


@pytest.mark.parametrize("count", [2, 3])
def test_several_inputs_some_of_them_optional(agree, count):
    shapes = ((3, 8, 8), (1, 8, 8), (6,))[:count], ((3, 5, 6), (1, 5, 6), (6,))[:count]
    graph = agree(Inputs(), *shapes)
    assert graph.inputs() == ["image", "depth", "vector"][:count]


def test_an_input_nothing_reads_stays_an_input(agree):
    class Unused(nn.Module):
        def forward(self, a, b):
            return b.relu()

    assert agree(Unused(), ((3, 4), (3, 4))).inputs() == ["a", "b"]


class InPlace(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)
        self.function = function

    def forward(self, x):
        return self.function(self, self.conv(x))


def changed_before_it_is_read(self, x):
    y = self.relu(x)
    return x * 2 + y  # x is the ReLU's result too


def statement(self, x):
    x.relu_()
    x.add_(1).mul_(2)
    return x


def skip_through_the_change(self, x):
    identity = x
    out = F.relu(x, inplace=True)
    out = out + 1
    out += identity
    return out


def through_identity(self, x):
    y = F.dropout(x.contiguous(), training=False)
    y.relu_()
    return x - 1


def read_before_and_after(self, x):
    before = x * 1.5
    x.clamp_(min=0, max=0.5)
    return before + x


def augmented(self, x):
    y = x
    x += 1
    x *= 2
    x -= y.relu() / 3
    x /= 4
    return x + y


def parts_are_apart(self, x):
    a, b = x.chunk(2, dim=1)
    a.relu_()
    return torch.cat([a, b], 1)


def a_part_changed_twice(self, x):
    parts = x.split(2, 1)
    parts[0].relu_()
    parts[0].add_(1)
    return parts[0] + parts[1]


def out_of_place_after_in_place(self, x):
    y = x.relu_()
    y = y + 1
    return x + y


def change_of_the_input(self, x):
    x.add_(x)
    return x.relu()


@pytest.mark.parametrize(
    "function",
    [changed_before_it_is_read, statement, skip_through_the_change, through_identity, read_before_and_after, augmented,
     parts_are_apart, a_part_changed_twice, out_of_place_after_in_place, change_of_the_input],
)  # fmt: skip
def test_in_place_operations_change_what_later_readers_see(agree, function):
    agree(InPlace(function), (3, 4, 4), (3, 6, 5))


def test_the_callers_images_are_not_changed():
    class Careless(nn.Module):
        def forward(self, x):
            x.relu_()
            return x + 1

    images = torch.randn(2, 3, 4, 4)
    before = images.clone()
    graph = lower(Careless(), (images,))
    graph.run(images)
    assert torch.equal(images, before)


def through_a_view(self, x):
    x[:, :2].relu_()
    return x


def view_read_after_the_change(self, x):
    flat = x.flatten(1)
    x.relu_()
    return flat


@pytest.mark.parametrize("function", [through_a_view, view_read_after_the_change])
def test_a_value_overwritten_in_part_is_refused_when_read(function):
    with pytest.raises(ConversionError, match="partly overwritten.*out-of-place"):
        lower(InPlace(function), (torch.randn(2, 3, 4, 4),))


def test_writing_into_a_buffer_is_refused():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(1, 3, 4, 4))

        def forward(self, x):
            self.mean.add_(x.mean(0, keepdim=True))
            return x - self.mean

    with pytest.raises(ConversionError, match="its own buffer or parameter"):
        lower(Averaging(), (torch.randn(2, 3, 4, 4),))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Outputs(lambda a, b: b + b.relu()), nn.Sequential(nn.Conv2d(5, 2, 1)))

    def forward(self, image):
        return F.relu(self.blocks(image)) + 1


def test_names_are_paths_and_calls(agree):
    assert list(agree(Named(), (3, 9, 9)).nodes) == [
        "image", "blocks.0.a", "blocks.0.relu", "blocks.0.b", "blocks.0.relu_2", "blocks.0.add", "blocks.1.0", "relu",
        "add",
    ]  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_model_is_bit_identical_afterwards(training):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(True), nn.Conv2d(4, 2, 1))
    model.train(training)
    model[4].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    attributes = [set(m.__dict__) for m in model.modules()]
    graph = lower(model, (torch.randn(4, 3, 8, 8),))
    for node in graph.nodes.values():
        for tensor in node.op.tensors().values():
            tensor.data.fill_(7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [set(m.__dict__) for m in model.modules()] == attributes
    assert all(p.requires_grad for p in model.parameters())


def test_dead_code_does_not_matter(agree):
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.unused = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            assert x.shape[1] == 3, "three channels"
            assert x.shape[2] > 1 and x.shape[3] > 1
            torch._assert(x.dim() == 4, "images")
            torch._assert(x.shape[2] % 2 == 0, "even")
            torch.sigmoid(self.unused(x))
            return self.conv(x).relu()

    graph = agree(Dead(), (3, 4, 4))
    assert [type(n.op) for n in graph.nodes.values()][1:] == [Conv, Spike]


def test_the_channels_of_a_value_are_known_wherever_they_have_been_moved_to() -> None:
    """A joint behind `permute` and `mean` has its channels where they are, and one bias for each of them."""

    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x))).permute(0, 2, 3, 1).mean((1, 2))

    torch.manual_seed(0)
    model, x = Moved().eval().requires_grad_(False), torch.randn(16, 3, 8, 8)
    snn = spikecal.convert(model, x, T=64, pipeline="lcp").snn
    end = snn.stages[-1].end
    assert end.channel == end.op.channel == 1 and end.op.bias.shape == (5,)
    assert torch.allclose(snn(x), model(x), atol=0.02)
