"""Packages that an export needs and spikecal does not: each is an extra."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from spikecal.errors import ConfigError

EXTRAS = {
    "nir": "nir", "nirtorch": "nir", "onnx": "onnx", "onnxruntime": "onnx", "spikingjelly": "spikingjelly",
    "sinabs": "sinabs",
}  # fmt: skip


def package(name: str) -> ModuleType:
    """A package or a module in one; ConfigError with what to install where it is not there."""
    top = name.partition(".")[0]
    if not installed(top):
        extra = EXTRAS[top]
        way = f"`pip install spikecal[{extra}]`" if extra != "sinabs" else "`pip install sinabs`"
        raise ConfigError(f"this needs the package {top}: {way}")
    return import_module(name)


def installed(name: str) -> bool:
    """Whether a package is there, without importing it."""
    return find_spec(name) is not None
