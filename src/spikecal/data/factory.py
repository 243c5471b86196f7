"""`file.py:name` and `package.module:name`: a user's own function, for models and for data alike."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from spikecal.errors import ConfigError, first_line


def is_factory(spec: str) -> bool:
    """Whether `spec` has the shape `file.py:name` or `package.module:name`."""
    source, _, name = spec.rpartition(":")
    if not name.isidentifier():
        return False
    return source.endswith(".py") or all(part.isidentifier() for part in source.split("."))


def load_factory(spec: str) -> Callable[..., Any]:
    """The function that `spec` names. This imports the user's code, as asked."""
    source, _, name = spec.rpartition(":")
    module = _from_file(Path(source).expanduser()) if source.endswith(".py") else _from_package(source)
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{source} has no function {name!r}")
    if not callable(found):
        raise ConfigError(f"{spec} is a {type(found).__name__}, not a function")
    return found


def call(spec: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's function; what it raises becomes one line that says where."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{spec} raised {type(error).__name__}: {first_line(error)}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"_spikecal_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and fx look modules up by name
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.pop(0)
    return module


def _from_package(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"module {name} is not there ({error}): install it or give a file.py:name") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.pop(0)
