"""Models by name: the zoo's own, other packages', and the user's functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.arguments import image_dims
from spikecal.data.card import Card
from spikecal.data.sets import cifar10
from spikecal.devices import Device, device_of, whatever_the_default
from spikecal.errors import ConfigError
from spikecal.usercode import call, is_factory, load_factory
from spikecal.zoo import imagenet
from spikecal.zoo.cifar import VGG16, ResNet
from spikecal.zoo.onnx.read import SUFFIX, read_onnx
from spikecal.zoo.packages import PACKAGES, imagenet_card
from spikecal.zoo.weights import load_weights, outputs, put_weights, read_weights

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of the zoo."""

    about: str
    make: Callable[..., nn.Module]  # of `classes`
    card: Card
    classes: int


def _cifar(name: str, about: str, make: Callable[..., nn.Module], weights: str | None = None) -> Entry:
    card = Card(
        name=name,
        size=(32, 32),
        mean=CIFAR_MEAN,
        std=CIFAR_STD,
        classes=cifar10.CLASSES,
        data="demo",
        weights=weights,
    )
    return Entry(about=about, make=make, card=card, classes=len(card.classes))


def _cifar_zoo() -> dict[str, Entry]:
    """Every CIFAR network with and without BN."""
    narrow, wide = (16, 32, 64), (64, 128, 256)
    plans: dict[str, tuple[str, Callable[..., nn.Module]]] = {
        "resnet20": ("residual, 16-32-64 channels", partial(ResNet, 3, narrow)),
        "resnet20-wide": ("residual, 64-128-256 channels, as in the paper", partial(ResNet, 3, wide)),
        "resnet32": ("residual, 16-32-64 channels", partial(ResNet, 5, narrow)),
        "resnet44": ("residual, 16-32-64 channels", partial(ResNet, 7, narrow)),
        "resnet56": ("residual, 16-32-64 channels", partial(ResNet, 9, narrow)),
        "vgg16": ("thirteen convolutions, average pooling", VGG16),
        "vgg16-half": ("the same with half the channels", partial(VGG16, 0.5)),
    }
    zoo = {}
    for name, (about, make) in plans.items():
        zoo[name] = _cifar(name, about, make, EMBEDDED.get(name))
        plain = f"{name}-nobn"
        zoo[plain] = _cifar(plain, f"{about}; no BN", partial(make, bn=False), EMBEDDED.get(plain))
    return zoo


def _imagenet_zoo() -> dict[str, Entry]:
    plans: dict[str, tuple[str, Callable[..., nn.Module]]] = {
        "resnet34-imagenet": ("residual, stem of three 3×3, average pooling", imagenet.ResNet34),
        "resnet34-imagenet-nobn": ("the same; no BN", partial(imagenet.ResNet34, bn=False)),
        "vgg16-imagenet": ("thirteen convolutions, average pooling, three linear layers", imagenet.VGG16ImageNet),
        "vgg16-imagenet-nobn": ("the same; no BN", partial(imagenet.VGG16ImageNet, bn=False)),
        "mobilenet": ("MobileNet v1, depthwise separable", imagenet.MobileNet),
        "mnasnet": ("MNASNet-B1, twice as wide", imagenet.MNASNet),
        "regnetx4gf": ("RegNetX-4GF, grouped", imagenet.RegNetX),
    }
    return {
        name: Entry(about=about, make=make, card=imagenet_card(name), classes=imagenet.CLASSES)
        for name, (about, make) in plans.items()
    }


# the embedded trained weights
EMBEDDED = {name: f"{name}.safetensors" for name in ("resnet20", "resnet20-nobn", "retinanet-r18-quarter")}
ZOO: dict[str, Entry] = {**_cifar_zoo(), **_imagenet_zoo()}


@whatever_the_default
def load_model(spec: str, weights: str | Path | None = None, *, device: Device = None) -> tuple[nn.Module, Card]:
    """The trained model of `spec`, in eval mode: with `weights`, or its own if it has any.

    `spec` is as in `spikecal convert`: `resnet20`, `torchvision:NAME`, `file.py:function` and so on. `device`:
    where to put it.
    """
    home = device_of(device)
    model, card = _loaded(spec, None if weights is None else Path(weights))
    return model if home is None else model.to(home), card


def _loaded(spec: str, weights: Path | None) -> tuple[nn.Module, Card]:
    package, _, name = spec.partition(":")
    if weights is None and package in PACKAGES and name:
        model, card = PACKAGES[package].load(spec, name)
        return model, replace(card, trained=True)
    model, card = build_model(spec)
    if weights is not None:
        state = read_weights(weights)
        if spec in ZOO and (classes := outputs(model, state)) not in (None, ZOO[spec].classes):
            model, card = build_model(spec, classes)
        put_weights(model, state, weights, spec)
    elif card.weights is not None:
        with resources.as_file(resources.files("spikecal") / "demo" / card.weights) as path:
            load_weights(model, path)
    elif not card.trained:
        raise ConfigError(f"{spec} has no weights of its own here: give --weights FILE")
    return model.eval(), replace(card, trained=True)


def random_images(model: nn.Module, card: Card, count: int, size: tuple[int, int]) -> Tensor:
    """Noise in the input shape of a model. Without a card, the first layer that states its input channels decides."""
    first: Any = next((m.in_channels for m in model.modules() if hasattr(m, "in_channels")), 3)
    return noise(count, (card.channels or first, *size))


def noise(count: int, shape: Sequence[int]) -> Tensor:
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(0))


def has_bn(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def build_model(spec: str, classes: int | None = None) -> tuple[nn.Module, Card]:
    """The model of `spec` without weights, in eval mode; a model of the zoo may have a different number of `classes`.

    `spec` is a zoo name, `torchvision:NAME`, `timm:NAME`, `pytorchcv:NAME`, `file.py:name`, `package.module:name` or
    an ONNX file, `net.onnx`, whose weights are in it.
    """
    if spec in ZOO:
        return _from_zoo(ZOO[spec], classes)
    package, _, name = spec.partition(":")
    if package in PACKAGES and name:
        return PACKAGES[package].build(spec, name)
    if spec.endswith(SUFFIX):
        return read_onnx(Path(spec).expanduser())
    if is_factory(spec):
        return _from_factory(spec)
    from spikecal.zoo.detectors import DETECTORS  # detectors.py builds on this module

    if spec in DETECTORS:
        raise ConfigError(f"{spec} is a detector: spikecal.detection.load_detector({spec!r}) gives it")
    raise ConfigError(
        f"unknown model {spec!r}: give {', '.join(ZOO)}, {', '.join(f'{p}:NAME' for p in PACKAGES)}, "
        f"file.py:function, module:function or net.onnx"
    )


def _from_zoo(entry: Entry, classes: int | None) -> tuple[nn.Module, Card]:
    if classes in (None, entry.classes):
        return entry.make().eval(), entry.card
    return entry.make(classes=classes).eval(), replace(entry.card, classes=(), data=None, weights=None)


def _from_factory(spec: str) -> tuple[nn.Module, Card]:
    """The module that the function returns, alone or with its `Card`; it should contain its weights."""
    made = call(spec, load_factory(spec))
    model, card = made if isinstance(made, tuple) and len(made) == 2 else (made, Card(name=spec))
    if not isinstance(model, nn.Module) or not isinstance(card, Card):
        raise ConfigError(
            f"{spec} returned a {type(made).__name__}: return a torch.nn.Module, or a pair of one and its Card"
        )
    dims = 3 if card.size is not None else image_dims(model)
    return model.eval(), replace(card, trained=True, dims=card.dims or dims)
