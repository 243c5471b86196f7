"""Packages that some parts need and the core does not: each is an extra."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from spikecal.errors import ConfigError

EXTRAS = {
    "nir": "nir", "nirtorch": "nir", "onnx": "onnx", "onnxruntime": "onnx", "spikingjelly": "spikingjelly",
    "sinabs": "sinabs", "matplotlib": "plots", "jinja2": "report", "markupsafe": "report",
}  # fmt: skip


def package(name: str) -> ModuleType:
    """Import a package or a module in one; ConfigError with what to install if it is missing."""
    top = name.partition(".")[0]
    if not installed(top):
        raise ConfigError(missing(top))
    return import_module(name)


def missing(name: str) -> str:
    """The message for a missing package."""
    extra = EXTRAS[name]
    way = f"`pip install spikecal[{extra}]`" if extra != "sinabs" else "`pip install sinabs`"
    return f"this needs the package {name}: {way}"


def installed(name: str) -> bool:
    """Whether a package is installed, without importing it."""
    return find_spec(name) is not None
