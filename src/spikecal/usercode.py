"""`file.py:name` and `package.module:name`: a user's own functions and classes, imported because the user named them.

Nothing here is ever called with a name that comes from a file of networks.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from spikecal.errors import ConfigError, first_line
from spikecal.vision import declare, prepare

Base = TypeVar("Base")
FROM_FILE = "_spikecal_user_"  # prefix of modules loaded from a file.py


def is_factory(spec: str) -> bool:
    """Whether `spec` has the shape `file.py:name` or `package.module:name`."""
    source, _, name = spec.rpartition(":")
    if not name.isidentifier():
        return False
    return source.endswith(".py") or all(part.isidentifier() for part in source.split("."))


def load_factory(spec: str) -> Callable[..., Any]:
    """Import the user's code and return the function that `spec` names."""
    found = _load(spec, "function", ())
    if not callable(found):
        raise ConfigError(f"{spec} is a {type(found).__name__}, not a function")
    return found


def load_class(spec: str, base: type[Base], folders: Sequence[Path] = ()) -> type[Base]:
    """The class that `spec` names, which must derive from `base`; a `file.py` is looked for in `folders` first."""
    found = _load(spec, "class", folders)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ConfigError(f"{spec} is not a class that derives from spikecal.{base.__name__}")
    return found


def call(spec: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's function; an exception becomes one line that says where."""
    try:
        with _importing_torchvision():
            return function(*arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{spec} raised {type(error).__name__}: {first_line(error)}") from error


# -- names of classes ----------------------------------------------------------------------------------------------


def is_own(cls: type) -> bool:
    """Whether a class is the user's rather than this package's."""
    return not cls.__module__.startswith("spikecal.")


def name_of(cls: type) -> str:
    """`file.py:Class` or `package.module:Class`. A file is named without its folder, which differs between machines."""
    source = cls.__module__
    if source == "__main__" or source.startswith(FROM_FILE):
        file = getattr(sys.modules.get(source), "__file__", None)
        source = Path(file).name if file else source
    return f"{source}:{cls.__qualname__}"


def code_of(cls: type) -> str:
    """A hash of the source of a user's class, so that a change is noticed; empty if there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


# -- importing -----------------------------------------------------------------------------------------------------


def _load(spec: str, what: str, folders: Sequence[Path]) -> Any:
    source, _, name = spec.rpartition(":")
    with _importing_torchvision():
        module = _from_file(Path(source).expanduser(), folders) if source.endswith(".py") else _from_package(source)
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{source} has no {what} {name!r}")
    return found


def _from_file(path: Path, folders: Sequence[Path]) -> ModuleType:
    path = next((folder / path for folder in folders if (folder / path).is_file()), path)
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"{FROM_FILE}{path.stem}_{_fingerprint(path)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and fx look up modules by name
    try:
        with _importing_from(str(path.resolve().parent)):  # the file may import its neighbours
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    return module


def _fingerprint(path: Path) -> str:
    """A hash of a file's path, as two folders may have files of the same name, and of its text, which edits change."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + text).hexdigest()[:16]


def _from_package(name: str) -> ModuleType:
    try:
        with _importing_from(os.getcwd()):  # as `python -m` does
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"module {name} is not installed ({error}): install it or give a file.py:name") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def _importing_torchvision() -> Iterator[None]:
    """Let the user's code import torchvision by itself, even with a CPU-only torch."""
    declare()
    yield
    if "torchvision" in sys.modules:
        prepare()  # what it has built with torchvision must work, too


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Find modules in `folder` first in here, and last afterwards: functions may import when called."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)  # last: it must not hide what others import later
