"""The CIFAR networks: spiking networks that come close to them. And what all of the zoo's networks are made of."""

from functools import cache

import pytest
import torch
from photographs import conversion_errors, estimate_statistics, photographs
from threads import one_thread  # noqa: F401
from torch import nn

from spikecal.zoo.models import ZOO, build_model

CIFAR = [name for name, entry in ZOO.items() if entry.card.size == (32, 32)]


@pytest.mark.parametrize("name", CIFAR)
def test_spiking_network_approaches_the_original(name: str) -> None:
    """Residual networks take other sizes too, and at 8×8 each of their three groups still has a map of its own."""
    torch.manual_seed(0)
    model, _ = build_model(name)
    size, count, T = (32, 2, 64) if name.startswith("vgg") else (8, 4, 256)
    images = photographs(8, size)
    estimate_statistics(model, images)
    early, late = conversion_errors(model, images[:count], T)
    assert late < 0.4
    assert late < 0.5 * early


@cache
def modules(name: str) -> list[nn.Module]:
    with torch.device("meta"):
        return list(ZOO[name].make().modules())


@pytest.mark.parametrize("name", ZOO)
def test_pooling_is_by_averages(name: str) -> None:
    """A maximum over spikes is no longer spikes: it would convert, but to what the paper does not have."""
    assert not [m for m in modules(name) if "MaxPool" in type(m).__name__]
    windows = [(m.kernel_size, m.stride, m.padding) for m in modules(name) if isinstance(m, nn.AvgPool2d)]
    assert windows == {"vgg16": [(2, 2, 0)] * 5, "resnet34": [(3, 2, 1)]}.get(name.partition("-")[0], [])


@pytest.mark.parametrize("name", [name for name in ZOO if name.endswith("-nobn")])
def test_dropout_stands_in_for_bn(name: str) -> None:
    """A quarter, as docs/reference/models.md has it; a parameter count cannot tell. With BN there is none."""
    dropped = {name: [m.p for m in modules(name) if isinstance(m, nn.Dropout)] for name in (name, name[:-5])}
    if name == "vgg16-imagenet-nobn":  # torchvision's classifier, in both
        assert dropped == {name: [0.5, 0.5], name[:-5]: [0.5, 0.5]}
    else:
        assert dropped == {name: [0.25] * (5 if name.startswith("vgg") else 1), name[:-5]: []}
