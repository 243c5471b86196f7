"""`keep` leaves parts analog at the end of the network."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower

IMAGES = (torch.randn(2, 3, 8, 8),)


class Gate(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x):
        if x.mean() > 1e6:  # cannot be traced; a kept part need not be
            return x
        return x * torch.sigmoid(self.fc(x.mean((2, 3))))[:, :, None, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.gate, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Gate(4), nn.Linear(4, 5)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        x = self.gate(x)
        return F.softmax(self.fc(x.mean((2, 3))), dim=1)


def test_a_kept_module_and_all_after_it_are_the_head(agree):
    graph = agree(Net(), (3, 8, 8), (3, 9, 7), keep=("gate", "softmax"))
    assert list(graph.nodes) == ["x", "conv", "relu"]
    assert graph.output == ("relu",)
    assert [name for name, _ in graph.head.named_children()] == ["gate", "fc"]


def test_a_kept_call_by_the_name_the_error_gives(agree):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            x = self.conv(x).relu()
            return {"probability": torch.sigmoid(x.mean((2, 3))), "map": torch.sigmoid(x) * 2, "features": x}

    with pytest.raises(ConversionError) as error:
        lower(Last(), IMAGES)
    names = tuple(e.layer for e in (error.value, *error.value.others))
    assert names == ("sigmoid", "sigmoid_2")
    graph = agree(Last(), (3, 8, 8), (3, 5, 9), keep=names)
    assert graph.output == ("mean", "relu")


def test_sizes_constants_and_parts_of_values_reach_the_head(agree):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.scale = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.randn(1, 2, 1, 1))

        def forward(self, x):
            a, b = self.conv(x).chunk(2, 1)
            y = torch.tanh(a * 0.1) * self.scale
            y = F.interpolate(y, size=(x.size(2) * 2, x.shape[3]))
            return y.view(x.size(0), -1), b.relu()

    graph = agree(Last(), (3, 8, 8), (3, 6, 9), keep=("tanh",))
    assert len(graph.output) == 3  # what tanh reads, the input for its size, and the other output


def test_in_place_changes_in_the_head_leave_the_body_alone(agree):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.tanh = nn.Conv2d(3, 4, 3), nn.Tanh()

        def forward(self, x):
            x = self.conv(x)
            before = x * 2
            y = self.tanh(x)
            x += y
            y.mul_(3)
            return x, y, before

    graph = agree(Last(), (3, 6, 6), keep=("tanh",))
    values = [torch.randn(2, 4, 4, 4) for _ in graph.output]
    before = [value.clone() for value in values]
    graph.head(*values)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))


def test_a_kept_module_with_several_outputs(agree):
    class Two(nn.Module):
        def forward(self, x):
            return {"a": x.sigmoid(), "b": [x.tanh(), x.shape[0]]}

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.two = nn.Conv2d(3, 4, 3), Two()

        def forward(self, x):
            out = self.two(self.conv(x).relu())
            return out["a"] + out["b"][0]

    agree(Last(), (3, 6, 6), keep=("two",))


def test_a_layer_that_converts_may_be_kept_too(agree):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    assert list(agree(model, (3, 8, 8), keep=("3",)).nodes) == ["input", "0", "1", "2"]


@pytest.mark.parametrize("keep", [("gate",), ("gate", "fc")])
def test_what_cannot_be_converted_after_a_kept_part_must_be_kept(keep):
    with pytest.raises(ConversionError, match=r"softmax.*kept parts must be at the end.*'softmax'"):
        lower(Net(), IMAGES, keep)


def test_an_activation_after_a_kept_part_is_an_error():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with pytest.raises(ConversionError, match=r"3: an activation after a part that is kept.*at the end") as error:
        lower(model, IMAGES, keep=["1"])
    assert error.value.others == ()


def test_other_offenders_are_still_named():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.Sigmoid())
    with pytest.raises(ConversionError, match="1: SiLU") as error:
        lower(model, IMAGES, keep=["3"])
    assert error.value.others == ()


@pytest.mark.parametrize(
    ("keep", "message"),
    [("gat", "no such part to keep.*gate"), ("softmx", "softmax"), ("fc2", "fc"), ("bn.weight", "no such part")],
)
def test_an_unknown_name_lists_close_ones(keep, message):
    with pytest.raises(ConversionError, match=message):
        lower(Net(), IMAGES, keep=["gate", "softmax", keep])


def test_a_module_that_is_never_called_cannot_be_kept():
    class Uncalled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.layer(x)

    with pytest.raises(ConversionError, match="never calls"):
        lower(Uncalled(), IMAGES, keep=["other"])


def test_the_head_shares_nothing_with_the_callers_model():
    model = Net().eval()
    graph = lower(model, IMAGES, keep=["gate", "softmax"])
    own = {p.data_ptr() for p in model.parameters()}
    assert not own & {p.data_ptr() for p in graph.head.parameters()}
    assert not graph.head.training


def test_a_name_keeps_one_place_and_not_every_method_of_that_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), Sigmoid())

        def forward(self, x):
            return self.inner(x).mean((2, 3)).sigmoid()

    class Sigmoid(nn.Module):
        def forward(self, x):
            return x.sigmoid()

    with pytest.raises(ConversionError, match="inner.1.sigmoid: sigmoid"):
        lower(Two(), IMAGES, keep=["sigmoid"])


class Pyramid(nn.Module):
    """Heads in a list, one of which is only for training."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.heads = nn.ModuleList(
            nn.ModuleDict({"box": nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid()), "score": nn.Conv2d(4, 2, 1)})
            for _ in range(3)
        )

    def forward(self, x):
        x = self.body(x)
        return [(head["box"](x), head["score"](x)) for head in self.heads[:2]]


def test_a_list_of_modules_means_its_members(agree):
    graph = agree(Pyramid(), (3, 8, 8), keep=("heads",))
    assert list(graph.nodes) == ["x", "body.0", "body.1", "body.2", "body.3"]
    with pytest.raises(ConversionError, match="Sigmoid"):
        lower(Pyramid(), IMAGES)


def test_no_input_or_output_is_suggested():
    with pytest.raises(ConversionError) as error:
        lower(Net(), IMAGES, keep=["nope"])
    offered = error.value.hint.removeprefix("did you mean ").removesuffix("?").split(", ")
    assert offered and not {"output", "x"} & set(offered)
