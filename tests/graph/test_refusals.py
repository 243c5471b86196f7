"""What cannot be converted is named, all of it at once, with the way out."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spikecal.errors import ConversionError, DataError
from spikecal.graph.lowering.lower import lower

IMAGES = (torch.randn(2, 3, 8, 8),)


class Gate(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x):
        weights = torch.sigmoid(self.fc(x.mean((2, 3))))
        return x * weights[:, :, None, None]


class Offending(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act, self.gate = nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.1), Gate(4)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        x = self.norm(self.gate(self.act(self.conv(x))))
        return F.softmax(x.relu().flatten(1), dim=1)


def test_all_offenders_at_once():
    with pytest.raises(ConversionError) as error:
        lower(Offending(), IMAGES)
    offenders = (error.value, *error.value.others)
    assert [e.layer for e in offenders] == ["act", "gate.sigmoid", "gate.mul", "norm", "softmax"]
    assert [word in e.found for e, word in zip(offenders, ["LeakyReLU", "sigmoid", "product", "GroupNorm", "softmax"],
                                               strict=True)] == [True] * 5  # fmt: skip
    assert [word in e.hint for e, word in zip(offenders, ["ReLU", "ReLU", "spiking", "BatchNorm", "arg-max"],
                                              strict=True)] == [True] * 5  # fmt: skip
    assert all(f"keep=[{e.layer!r}]" in e.hint for e in offenders)
    assert len(str(error.value).splitlines()) == 5


@pytest.mark.parametrize(
    "clip", [lambda x: 0.5 * (x.abs() - (x - 2).abs() + 2), lambda x: torch.where(x < 2, x.relu(), 2.0)]
)
def test_other_forms_of_clips_are_refused_with_the_one_that_converts(clip):
    class Clipped(nn.Module):
        def forward(self, x):
            return clip(x)

    with pytest.raises(ConversionError, match=r"such as PACT's, write x.relu\(\).clamp\(max=alpha\), which converts"):
        lower(Clipped(), IMAGES)


@pytest.mark.parametrize(
    "layer",
    [nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 16), nn.LSTM(8, 4), nn.GRU(8, 4), nn.Softmax(1),
     nn.LayerNorm(8), nn.Softplus(), nn.GLU(), nn.Bilinear(8, 8, 3)],
)  # fmt: skip
def test_layers_are_refused_by_name(layer):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            x = x.mean(1)
            several = {"MultiheadAttention": 3, "Bilinear": 2}.get(type(layer).__name__, 1)
            out = self.layer(*[x] * several)
            return out[0] if isinstance(layer, (nn.MultiheadAttention, nn.LSTM, nn.GRU)) else out

    with pytest.raises(ConversionError, match=f"layer: {type(layer).__name__}"):
        lower(Wrapped(), IMAGES)


class Inner(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.function(self, self.conv(x))


def branch_on_data(self, x):
    return x if x.mean() > 0 else -x


def branch_on_batch_size(self, x):
    return x[:, :, 1:] if x.shape[0] > 100 else x


def loop_over_images(self, x):
    return torch.stack([image.relu() for image in x])


def number_from_data(self, x):
    return x * float(x.mean())


def ceiling_of_the_batch_size(self, x):
    return F.pad(x, (0, math.ceil(x.size(0) / 3)))


def length(self, x):
    return x / len(x)


@pytest.mark.parametrize(
    "function",
    [branch_on_data, branch_on_batch_size, loop_over_images, number_from_data, length],
)
def test_control_flow_that_depends_on_data_names_module_and_line(function):
    model = nn.Sequential(nn.Identity(), Inner(function))
    with pytest.raises(ConversionError, match="torch.fx cannot trace") as error:
        lower(model, IMAGES)
    assert error.value.layer == "1"
    assert "test_refusals.py:" in error.value.found
    assert "keep=['1']" in error.value.hint


def test_arithmetic_with_sizes_that_a_graph_cannot_hold_is_named_once_where_it_is_used():
    with pytest.raises(ConversionError, match=r"pad: the result of truediv for the size") as error:
        lower(Inner(ceiling_of_the_batch_size), IMAGES)
    assert error.value.others == ()


def test_control_flow_on_what_is_fixed_is_followed(agree):
    def fixed(self, x):
        if x.dim() == 4 and x.is_floating_point() and x.dtype == torch.float32 and len(x.shape) == 4:
            for size in (1, 3):
                x = F.max_pool2d(x, size, 1, size // 2)
        return x.to(x.device)

    agree(Inner(fixed), (3, 8, 8), (3, 5, 6))


def test_wrong_number_of_channels_is_one_sentence_that_names_layer_and_shape():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.ReLU())
    with pytest.raises(DataError, match=r"shape \[2, 4, 8, 8\]: 0\.0 \(Conv2d\).*3 channels, but got 4") as error:
        lower(model, (torch.randn(2, 4, 8, 8),))
    assert "\n" not in str(error.value)


def test_a_model_that_fails_by_itself_is_not_called_untraceable():
    def broken(self, x):
        raise KeyError("lost")

    with pytest.raises(DataError, match="KeyError.*lost"):
        lower(Inner(broken), IMAGES)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((), "no example"), ((torch.zeros(2, 3, 8, 8, dtype=torch.uint8),), "uint8.*tensors of floats"),
        ((torch.full((2, 3, 8, 8), torch.nan),), "NaN"), ((torch.zeros(0, 3, 8, 8),), "at least one image"),
        ((torch.zeros(3),), "dimension 0 must be a batch"), ((torch.zeros(2, 3, 8, 8), torch.zeros(2, 3)), "2 input"),
        ((torch.zeros(2, 3, 8, 8), torch.zeros(3, 3)), "different batch sizes"), (("images",), "str"),
    ],
)  # fmt: skip
def test_examples_that_cannot_be_used(example, message):
    with pytest.raises(DataError, match=message):
        lower(nn.Sequential(nn.Conv2d(3, 4, 3)), example)


def test_a_mismatch_with_the_model_is_an_error():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.conv.register_forward_hook(_add_one)

        def forward(self, x):
            return self.conv(x)

    with pytest.raises(ConversionError, match="Hooked: the lowered network differs from the model"):
        lower(Hooked(), IMAGES)


def _add_one(module, inputs, output):
    return output + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_weights_name_every_layer_that_has_them(value):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    model[1].running_mean[2] = value
    model[4].weight.data[0, 1] = value
    with pytest.raises(ConversionError, match="NaN or infinite") as error:
        lower(model, IMAGES)
    assert [e.layer for e in (error.value, *error.value.others)] == ["1", "4"]


def test_script_meta_lazy_and_scattered_models_are_refused():
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(ConversionError, match="meta device"):
        lower(convolution.to("meta"), IMAGES)
    with pytest.raises(ConversionError, match="without values"):
        lower(nn.Sequential(nn.LazyConv2d(4, 3)), IMAGES)
    with pytest.warns(DeprecationWarning):
        script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(ConversionError, match="TorchScript"):
        lower(script, IMAGES)


def test_attention_is_named_although_a_token_is_expanded_to_the_batch():
    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
            return self.attention(x, x, x)[0]

    with pytest.raises(ConversionError) as error:
        lower(Transformer(), IMAGES)
    assert [e.layer for e in (error.value, *error.value.others)] == ["cat", "attention"]


def test_a_function_of_the_users_own_is_refused_by_its_full_name():
    with pytest.raises(ConversionError, match=r"wrapped: .*test_refusals\._wrapped"):
        lower(Inner(lambda self, x: _wrapped(x)), IMAGES)


@torch.fx.wrap
def _wrapped(x):
    return x * 2
