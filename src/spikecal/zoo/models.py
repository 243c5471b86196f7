"""Models by name: the zoo's own, other packages', and the user's functions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from spikecal import vision
from spikecal.data import cifar10
from spikecal.data.card import Card
from spikecal.data.factory import call, first_line, is_factory, load_factory
from spikecal.errors import ConfigError
from spikecal.zoo.cifar import VGG16, ResNet
from spikecal.zoo.weights import load_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of the zoo."""

    about: str
    make: Callable[[], nn.Module]
    card: Card


def _cifar(name: str, about: str, make: Callable[[], nn.Module], weights: str | None = None) -> Entry:
    card = Card(
        name=name,
        size=(32, 32),
        mean=CIFAR_MEAN,
        std=CIFAR_STD,
        classes=cifar10.CLASSES,
        data="demo",
        weights=weights,
    )
    return Entry(about=about, make=make, card=card)


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


EMBEDDED = {"resnet20": "resnet20.safetensors"}  # the trained weights this package carries
ZOO: dict[str, Entry] = _cifar_zoo()


def load_model(spec: str, weights: Path | None = None) -> tuple[nn.Module, Card]:
    """The trained model of `spec`, in eval mode: with `weights`, or with its own where it has some."""
    model, card = build_model(spec)
    if weights is not None:
        load_weights(model, weights)
    elif card.weights is not None:
        with resources.as_file(resources.files("spikecal") / "demo" / card.weights) as path:
            load_weights(model, path)
    elif not card.trained:
        raise ConfigError(f"{spec} has no weights of its own here: give --weights FILE")
    return model.eval(), replace(card, trained=True)


def build_model(spec: str) -> tuple[nn.Module, Card]:
    """The model of `spec` without weights, in eval mode.

    `spec` is a zoo name, `torchvision:NAME`, `timm:NAME`, `pytorchcv:NAME`, `file.py:name` or `package.module:name`.
    """
    if spec in ZOO:
        return ZOO[spec].make().eval(), ZOO[spec].card
    package, _, name = spec.partition(":")
    if package in PACKAGES and name:
        return PACKAGES[package](spec, name)
    if is_factory(spec):
        return _from_factory(spec)
    raise ConfigError(
        f"unknown model {spec!r}: give {', '.join(ZOO)}, {', '.join(f'{p}:NAME' for p in PACKAGES)}, "
        f"file.py:function or module:function"
    )


def _from_factory(spec: str) -> tuple[nn.Module, Card]:
    """The function returns a module, or a module and its `Card`; its weights are taken to be in it."""
    made = call(spec, load_factory(spec))
    model, card = made if isinstance(made, tuple) and len(made) == 2 else (made, Card(name=spec))
    if not isinstance(model, nn.Module) or not isinstance(card, Card):
        raise ConfigError(f"{spec} returned a {type(made).__name__}: return a torch.nn.Module, or one and its Card")
    return model.eval(), replace(card, trained=True)


def _torchvision(spec: str, name: str) -> tuple[nn.Module, Card]:
    models = _package("torchvision.models", spec)
    if name not in models.list_models():
        raise ConfigError(f"torchvision has no model {name!r}")
    model: nn.Module = call(spec, lambda: models.get_model(name, weights=None))
    return model.eval(), _imagenet(spec, 299 if name.startswith("inception") else 224)


def _timm(spec: str, name: str) -> tuple[nn.Module, Card]:
    timm = _package("timm", spec)
    if not timm.is_model(name):
        raise ConfigError(f"timm has no model {name!r}")
    model: Any = call(spec, lambda: timm.create_model(name, pretrained=False))
    config = model.pretrained_cfg
    card = Card(
        name=spec,
        size=tuple(config["input_size"][1:]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop=config["crop_pct"],
    )
    return model.eval(), card


def _pytorchcv(spec: str, name: str) -> tuple[nn.Module, Card]:
    provider = _package("pytorchcv.model_provider", spec)
    model: Any = call(spec, lambda: provider.get_model(name, pretrained=False))
    height, width = getattr(model, "in_size", (224, 224))
    if "cifar" in name or "svhn" in name:
        return model.eval(), Card(name=spec, size=(height, width), mean=CIFAR_MEAN, std=(0.2023, 0.1994, 0.2010))
    return model.eval(), _imagenet(spec, height)


PACKAGES: dict[str, Callable[[str, str], tuple[nn.Module, Card]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "pytorchcv": _pytorchcv,
}


def _imagenet(spec: str, side: int) -> Card:
    return Card(name=spec, size=(side, side), mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=0.875)


def _package(module: str, spec: str) -> ModuleType:
    package = module.partition(".")[0]
    vision.prepare()
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ConfigError(f"{spec} needs {missing}, which is not installed: pip install {package}") from error
    except Exception as error:  # a broken install raises anything: RuntimeError, OSError, AttributeError
        raise ConfigError(f"{spec} needs {package}, whose import fails here: {first_line(error)}") from error
