"""Models of torchvision, timm and pytorchcv by name, with their own weights if available."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from torch import nn

from spikecal import vision
from spikecal.data.card import Card, Interpolation
from spikecal.data.sets import cifar10, imagenet
from spikecal.errors import ConfigError, first_line
from spikecal.usercode import call
from spikecal.zoo.hub import NotFetched, from_hugging_face, from_pytorchcv, from_torch_hub, only_weights, unreachable

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # pytorchcv's

# Options that torchvision sets only when it loads its own weights into these.
GOOGLE = {"transform_input": True, "init_weights": False}
TORCHVISION_OPTIONS = {"googlenet": GOOGLE, "inception_v3": GOOGLE}

Made = tuple[nn.Module, Card]


@dataclass(frozen=True)
class Package:
    """How to make a model of a package: `build` without weights, `load` with its own; both take (spec, name)."""

    build: Callable[[str, str], Made]
    load: Callable[[str, str], Made]


def imagenet_card(name: str, side: int = 224, **more: Any) -> Card:
    card = Card(name=name, size=(side, side), mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=0.875, data="imagenet")
    return replace(card, **more)


def _build_torchvision(spec: str, name: str) -> Made:
    models, name, weights = _torchvision_weights(spec, name)
    options = {"weights": None, **TORCHVISION_OPTIONS.get(name, {})}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None  # else it would be fetched, only to be overwritten
    return call(spec, lambda: models.get_model(name, **options)).eval(), _torchvision_card(spec, weights)


def _load_torchvision(spec: str, name: str) -> Made:
    models, name, weights = _torchvision_weights(spec, name)
    if weights is None:
        raise ConfigError(f"torchvision has no weights for {name}: give --weights FILE")
    path = _fetched(spec, lambda: from_torch_hub(weights.url))
    model = _loaded(spec, path, lambda: models.get_model(name, weights=weights, progress=False))
    return model.eval(), _torchvision_card(spec, weights)


def _torchvision_weights(spec: str, name: str) -> tuple[Any, str, Any]:
    """The package, the model's name without its weights' (`resnet50.IMAGENET1K_V1`), and the weights, if any."""
    models = _package("torchvision.models", spec)
    name, _, tag = name.partition(".")
    if name not in models.list_models():
        raise _unknown(spec, models.list_models())
    known = {entry.name: entry for entry in models.get_model_weights(name)}
    if tag and tag not in known:
        raise ConfigError(f"torchvision has no weights {tag!r} for {name}: choose from {', '.join(known) or 'none'}")
    return models, name, known[tag] if tag else getattr(models.get_model_weights(name), "DEFAULT", None)


def _torchvision_card(spec: str, weights: Any) -> Card:
    """As the weights were evaluated: the shorter side to `resize_size`, then the central `crop_size`."""
    preset: Any = None if weights is None else weights.transforms()
    if not hasattr(preset, "crop_size"):
        # Detectors normalise by themselves and accept any size.
        return imagenet_card(spec) if preset is None or hasattr(preset, "mean") else Card(name=spec)
    side, resized = preset.crop_size[0], preset.resize_size[0]
    return imagenet_card(
        spec,
        side,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        crop=min(1.0, side / resized),
        interpolation=_interpolation(preset.interpolation.value),
    )


def _interpolation(name: str) -> str:
    return name if name in get_args(Interpolation) else "bilinear"


def _build_timm(spec: str, name: str) -> Made:
    timm = _timm(spec, name)
    model: Any = call(spec, lambda: timm.create_model(name, pretrained=False))
    return model.eval(), _timm_card(spec, model)


def _load_timm(spec: str, name: str) -> Made:
    timm = _timm(spec, name)
    source: Any = call(spec, lambda: timm.models.get_pretrained_cfg(name))
    if source is None or not (source.hf_hub_id or source.url) or source.custom_load:
        raise ConfigError(f"timm has no weights for {name} that can be read directly: give --weights FILE")
    if source.hf_hub_id:
        path = _fetched(spec, lambda: from_hugging_face(source.hf_hub_id, source.hf_hub_filename))
    else:
        path = _fetched(spec, lambda: from_torch_hub(source.url))
    local = {"file": str(path)}
    model = _loaded(spec, path, lambda: timm.create_model(name, pretrained=True, pretrained_cfg_overlay=local))
    return model.eval(), _timm_card(spec, model)


def _timm(spec: str, name: str) -> Any:
    timm = _package("timm", spec)
    if not timm.is_model(name):
        raise _unknown(spec, timm.list_models())
    return timm


def _timm_card(spec: str, model: Any) -> Card:
    config = model.pretrained_cfg
    return Card(
        name=spec,
        size=tuple(config["input_size"][1:]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop=config["crop_pct"],
        interpolation=_interpolation(config["interpolation"]),  # type: ignore[arg-type]
        data="imagenet" if config["num_classes"] == imagenet.CLASSES else None,
    )


def _build_pytorchcv(spec: str, name: str) -> Made:
    provider = _pytorchcv(spec, name)
    model: nn.Module = call(spec, lambda: provider.get_model(name, pretrained=False))
    return model.eval(), _pytorchcv_card(spec, name, model)


def _load_pytorchcv(spec: str, name: str) -> Made:
    provider = _pytorchcv(spec, name)
    path = _fetched(spec, lambda: from_pytorchcv(name.lower()))
    model = _loaded(spec, path, lambda: provider.get_model(name, pretrained=True))
    return model.eval(), _pytorchcv_card(spec, name, model)


def _pytorchcv(spec: str, name: str) -> Any:
    provider: Any = _package("pytorchcv.model_provider", spec)
    if name.lower() not in provider._models:
        raise _unknown(spec, provider._models)
    return provider


def _pytorchcv_card(spec: str, name: str, model: Any) -> Card:
    height, width = getattr(model, "in_size", (224, 224))
    if "cifar" not in name and "svhn" not in name:
        return imagenet_card(spec, height)
    ours: dict[str, Any] = {"classes": cifar10.CLASSES, "data": "demo"} if name.endswith("_cifar10") else {}
    return Card(name=spec, size=(height, width), mean=CIFAR_MEAN, std=CIFAR_STD, **ours)


PACKAGES: dict[str, Package] = {
    "torchvision": Package(_build_torchvision, _load_torchvision),
    "timm": Package(_build_timm, _load_timm),
    "pytorchcv": Package(_build_pytorchcv, _load_pytorchcv),
}


def _unknown(spec: str, names: Iterable[str]) -> ConfigError:
    """The error for a name that the package does not have, with similar names."""
    package, _, name = spec.partition(":")
    close = get_close_matches(name.lower(), list(names), n=4)
    return ConfigError(f"{package} has no model {name!r}" + (f": did you mean {', '.join(close)}?" if close else ""))


def _fetched(spec: str, fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    except NotFetched as error:
        raise unreachable(spec, error) from error


def _loaded(spec: str, path: Path, make: Callable[[], nn.Module]) -> nn.Module:
    """The model that the package makes from the file, which is read without running its code."""
    try:
        with only_weights():
            return make()
    except Exception as error:  # whatever the package or torch raises for a damaged or hostile file
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"the weights of {spec} in {path} cannot be used ({reason}): delete that file") from error


def _package(module: str, spec: str) -> ModuleType:
    package = module.partition(".")[0]
    try:
        vision.prepare()
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise ConfigError(f"{spec} needs {missing}, which is not installed: pip install {package}") from error
    except Exception as error:  # a broken install raises anything: RuntimeError, OSError, AttributeError
        raise ConfigError(f"{spec} needs {package}, whose import fails here: {first_line(error)}") from error
