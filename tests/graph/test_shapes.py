"""Reshapes, permutes, slices and sizes that are computed, at sizes other than the one that was traced."""

import pytest
import torch
from networks import Function
from torch import nn
from torch.nn import functional as F

from spikecal.errors import ConversionError
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Slice


def shuffle(x, groups=2):
    b, c, h, w = x.size()
    x = x.view(b, groups, c // groups, h, w)
    return torch.transpose(x, 1, 2).contiguous().view(b, -1, h, w)


def shuffle_by_shape(x):
    b, c, h, w = x.shape
    return x.reshape(b, 2, c // 2, h * w).permute(0, 2, 1, 3).reshape(b, c, h, w)


def crop(x):
    y = F.avg_pool2d(x, 2)
    return x[:, :, : y.size(2), : y.shape[3]] + y


def pad_to(x):
    y = x[:, :, 1:-1, 1:]
    high, wide = x.size(2) - y.size(2), x.size(3) - y.size(3)
    return F.pad(y, [wide // 2, wide - wide // 2, high // 2, high - high // 2]) + x


def loop_over_parts(x):
    return torch.cat([part.relu() for part in x.chunk(4, dim=1)], 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(x.size(0), -1), lambda x: x.view(x.shape[0], -1), lambda x: x.reshape(x.size()[0], -1),
        lambda x: torch.flatten(x, 1), lambda x: x.flatten(1), nn.Flatten(), lambda x: x.flatten(2).mean(2),
        lambda x: x.flatten(start_dim=1, end_dim=2), nn.Flatten(2, 3),
        lambda x: x.view(-1, 4, x.shape[2] * x.shape[3]), lambda x: x.view(*x.shape[:2], -1),
        lambda x: x.view(x.size(0), x.size(1), -1), lambda x: x.view((x.size(0), 2, 2, *x.shape[2:])),
        lambda x: x.unflatten(1, (2, 2)), nn.Unflatten(1, (2, -1)), lambda x: x.reshape(x.shape), shuffle,
        shuffle_by_shape, lambda x: x.permute(0, 2, 3, 1), lambda x: x.permute((0, -1, 1, 2)),
        lambda x: torch.permute(x, (0, 3, 2, 1)), lambda x: x.transpose(1, -1), lambda x: x.swapaxes(2, 3),
        lambda x: torch.movedim(x, 1, -1), lambda x: x.movedim((1, 2), (2, 3)), lambda x: x.mT,
        lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1), lambda x: x.mean((2, 3), True).squeeze(),
        lambda x: F.adaptive_avg_pool2d(x, 1).squeeze((2, 3)), lambda x: x.squeeze(1), lambda x: x.unsqueeze(2),
        lambda x: x.unsqueeze(-1), lambda x: x[:, None], lambda x: x[:, :, ::2, ::2], lambda x: x[:, 1:3],
        lambda x: x[..., 1:], lambda x: x[:, :, 0], lambda x: x[:, -1], lambda x: x[:, 1, ..., None], lambda x: x[:],
        lambda x: x[:, : x.size(1) // 2], crop, pad_to, lambda x: x.select(1, 2), lambda x: x.select(-1, -1),
        lambda x: x.narrow(1, 1, 2), lambda x: x.narrow(2, 0, x.size(2) // 2), lambda x: torch.narrow(x, 3, -2, 1),
        lambda x: torch.cat(x.chunk(2, dim=1)[::-1], 1), lambda x: x.chunk(3, 2)[1], lambda x: x.split(3, 1)[1],
        lambda x: torch.cat([p.relu() for p in x.split([1, 3], dim=1)], 1), loop_over_parts,
        lambda x: torch.split(x, 2, dim=1)[0], lambda x: x.unbind(1)[2], lambda x: torch.stack(x.unbind(1)[:2], 1),
        lambda x: torch.stack([x, x.relu()], dim=2), lambda x: torch.stack([x, x], -1), lambda x: x.repeat(1, 2, 1, 1),
        lambda x: torch.cat([x, x.relu()], dim=-1), lambda x: torch.concat((x, x), 1), lambda x: torch.cat([x], 1),
        lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (0, 0, 0, 0, 2, 2)), lambda x: F.pad(x, [1] * 4, "reflect"),
        lambda x: F.pad(x, (1, 1, 1, 1), value=0.5), lambda x: F.pad(x, (-1, 0)),
        lambda x: F.pad(x, (1, 0, 0, 1), mode="circular"), lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.channel_shuffle(x, 2), lambda x: x.contiguous().clone().detach().float(),
        lambda x: x.to(torch.float32).to(memory_format=torch.channels_last).type_as(x), lambda x: x.to("cpu"),
        lambda x: x.view_as(x.relu()) if x.dim() == 4 else x * 2, lambda x: x if x.ndim == 3 else x * 2,
        lambda x: x.data, lambda x: x.view(x.size(0), -1)[:, :5], lambda x: x[:, [2, 1, 0]],
        lambda x: x[:, torch.tensor([0, 2, 3, 1, 1, -1])], lambda x: torch.index_select(x, 1, torch.tensor([0, 3])),
        lambda x: x.split(split_size=2, dim=1)[1], lambda x: x.split_with_sizes(split_sizes=[3, 1], dim=1)[0],
    ],
)  # fmt: skip
def test_function(agree, function):
    agree(Function(function), (3, 8, 8), (3, 10, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, scale_factor=(2, 1.5), mode="bilinear"),
        lambda x: F.interpolate(x, size=(9, 7), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, size=5, mode="area"), lambda x: F.interpolate(x, size=6, mode="nearest-exact"),
        lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:]) + x,
        lambda x: F.interpolate(F.avg_pool2d(x, 2), x.size()[2:], mode="bilinear", align_corners=False) - x,
        lambda x: F.interpolate(x, size=(x.size(2) * 2, x.size(3) + 1), mode="bicubic"),
        lambda x: F.interpolate(x, scale_factor=2.0, recompute_scale_factor=True),
    ],
)  # fmt: skip
def test_interpolation(agree, function):
    agree(Function(function), (3, 8, 8), (3, 12, 6))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.view(-1), "mixes the batch"), (lambda x: x.view(2, -1), "mixes the batch"),
        (lambda x: x.reshape(x.size(0) * x.size(1), -1), "mixes the batch"),
        (lambda x: x.reshape(-1, x.size(1)), "mixes the batch"), (lambda x: x.flatten(), "mixes the batch"),
        (lambda x: x.view(x.size(1), x.size(0), -1), "mixes the batch"),
        (lambda x: x.transpose(0, 1), "moves the batch"),
        (lambda x: x.permute(1, 0, 2, 3), "moves the batch"), (lambda x: x[0], "batch dimension"),
        (lambda x: x[::2], "batch dimension"), (lambda x: x[None], "batch dimension"),
        (lambda x: x.unsqueeze(0), "batch dimension"), (lambda x: x.chunk(2)[0], "batch dimension"),
        (lambda x: torch.cat([x, x]), "along the batch"), (lambda x: torch.stack([x, x]), "batch dimension"),
        (lambda x: x.mean(), "over the images"), (lambda x: x.sum(0), "over the images"),
        (lambda x: x[:, [1, 0], [1]], "one list among whole slices"), (lambda x: x[x > 0], "gt"),
        (lambda x: x[torch.tensor([1, 0])], "batch dimension"),
        (lambda x: x[:, torch.tensor([True, False, True, True])], "list of numbers"),
        (lambda x: x[:, [0, 2, 1, 3] * 40], "80 separate pieces"),
        (lambda x: x.long(), "long"), (lambda x: x.to(torch.int32), "cast to torch.int32"),
        (lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 1, 1)), "padding of the batch"),
        (lambda x: x.view(x.size(0), -1, x.size(0) % 3 + 2), "mod"),
        (lambda x: x.repeat(2, 1, 1, 1), "mixes the images"),
        (lambda x: torch.cat([x, torch.zeros(2, 1, 4, 4)], 1), "constant"), (lambda x: x.expand(2, 4, 4, 4), "expand"),
        (lambda x: F.interpolate(x, scale_factor=1.5, recompute_scale_factor=True), "recomputed"),
        (lambda x: F.interpolate(x, size=2, mode="bilinear", antialias=True), "antialias"),
        (lambda x: x.view(torch.int32), "bits"), (lambda x: x.view(x.shape[1], -1), "mixes the batch"),
    ],
)  # fmt: skip
def test_refused(function, message):
    with pytest.raises(ConversionError, match=message):
        lower(Function(function), (torch.randn(2, 3, 4, 4),))


def test_sizes_of_channels_become_numbers_and_need_no_other_value(agree):
    graph = agree(Function(lambda x: x.chunk(2, 1)[1] + x[:, : x.size(1) // 2]), (3, 8, 8))
    slices = [node for node in graph.nodes.values() if isinstance(node.op, Slice)]
    assert [node.op.index[1] for node in slices] == [("slice", 2, 4, None), ("slice", None, 2, None)]
    assert all(node.shape_refs == () for node in slices)


def test_a_size_taken_from_another_value_is_a_shape_reference(agree):
    graph = agree(Function(lambda x: F.interpolate(F.avg_pool2d(x, 2).relu(), size=x.shape[2:])), (3, 8, 8), (3, 6, 4))
    assert graph.nodes["interpolate"].shape_refs == ("conv",)


def test_a_fixed_size_of_a_flattened_image_fails_at_another_size_rather_than_mixing_images():
    graph = lower(Function(lambda x: x.view(-1, 4 * 4 * 4)), (torch.randn(2, 3, 4, 4),))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        graph.run(torch.randn(2, 3, 8, 8))


def test_channel_shuffle_needs_the_size_of_no_other_value(agree):
    for function in (shuffle, lambda x: F.pixel_shuffle(x, 2)):
        graph = agree(Function(function), (3, 8, 8), (3, 6, 4))
        assert all(node.shape_refs == () for node in graph.nodes.values())


def test_a_slice_of_the_whole_example_is_still_a_slice(agree):
    agree(Function(lambda x: F.interpolate(x[:, :, :8, :8], size=x.shape[2:])), (3, 8, 8), (3, 10, 9))
