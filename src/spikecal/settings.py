"""Turn plain data into frozen settings, for pipelines and recipes alike; unknown names and wrong types are refused."""

import dataclasses
import math
import operator
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from spikecal.errors import ConfigError, first_line
from spikecal.files import open_regular

Made = TypeVar("Made")
MOST_TOML = 2**20  # bytes of a file of settings
LARGEST = 2**63


def from_toml(path: str | Path, make: Callable[[dict[str, Any]], Made]) -> Made:
    """The result of `make` on the content of a TOML file; every error names the file."""
    try:
        with open_regular(path, MOST_TOML) as file:
            settings = tomllib.load(file)
        huge = next(_huge(settings), None)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} nests its settings too deeply: use fewer levels") from error
    except ValueError as error:  # also for numbers with more digits than Python reads
        raise ConfigError(f"{path} is not TOML: {first_line(error)}") from error
    if huge is not None:
        raise ConfigError(f"{path}: {huge} is an integer of more than 64 bits")
    try:
        return make(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _huge(settings: Any, name: str = "") -> Iterator[str]:
    """Names of settings that exceed the integers of torch and of files."""
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _huge(value, f"{name}.{key}" if name else str(key))
    if type(settings) is int and not -LARGEST <= settings < LARGEST:
        yield name


def preset(given: Made | str, kind: type[Made], presets: Mapping[str, Made], what: str) -> Made:
    """`given`, or the preset with that name."""
    if isinstance(given, kind):
        return given
    found = presets.get(given.lower()) if isinstance(given, str) else None
    if found is None and not isinstance(given, str):
        raise ConfigError(f"a {what} must be a {kind.__name__} or a name, not {type(given).__name__}: {given!r:.60}")
    if found is None:
        raise ConfigError(f"there is no {what} {given!r}: choose from {', '.join(presets)}")
    return found


def whole(value: Any) -> int | None:
    """`value` as a Python integer, also from numpy; None if it is not an integer."""
    with suppress(TypeError):
        return None if isinstance(value, bool | np.bool_) else operator.index(value)
    return None


def in_python(made: Any) -> dict[str, Any]:
    """Convert numpy numbers in a frozen dataclass to Python's, as files hold no others."""
    for name, value in vars(made).items():
        if isinstance(value, np.generic):
            object.__setattr__(made, name, value.item())
    return vars(made)


def check_types(cls: type, settings: dict[str, Any], what: str, name: str = "") -> None:
    """Raise for settings that the dataclass `cls` does not have, and for values of the wrong type."""
    types = field_types(cls)
    for key, value in settings.items():
        if key not in types:
            raise ConfigError(
                f"{what} {name} has no setting {key!r}: choose from {', '.join(types)}".replace("  ", " ")
            )
        if not _fits(value, types[key]):
            raise ConfigError(f"{what} setting {key} cannot be {value!r}")


def field_types(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields, even if `from __future__ import annotations` made them strings.

    Names known only to type checkers stand for any type.
    """
    try:
        known = get_type_hints(cls)
    except (NameError, TypeError, AttributeError, SyntaxError):
        known = {}
    return {f.name: known.get(f.name, Any if isinstance(f.type, str) else f.type) for f in dataclasses.fields(cls)}


def is_plain(value: Any) -> bool:
    """Whether JSON can hold a value and TOML could have provided it."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _fits(value: Any, wanted: Any) -> bool:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:  # the class itself checks which of the values it is
        return type(value) in {type(option) for option in arguments}
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and _fit_in_order(value, arguments)
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is bool or isinstance(value, bool):
        return wanted is bool and isinstance(value, bool)
    if wanted in (int, float):
        return isinstance(value, int) or (wanted is float and isinstance(value, float) and math.isfinite(value))
    kind = origin or wanted
    return not isinstance(kind, type) or isinstance(value, kind)


def _fit_in_order(values: Sequence[Any], wanted: tuple[Any, ...]) -> bool:
    """Whether values fit the arguments of `list[x]`, `tuple[x, ...]` or `tuple[x, y]`."""
    if len(wanted) == 1 or Ellipsis in wanted:
        return all(_fits(value, wanted[0]) for value in values)
    return len(values) == len(wanted) and all(map(_fits, values, wanted))
