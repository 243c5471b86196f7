"""Plain data into frozen settings, for pipelines and recipes alike: unknown names and wrong types are refused."""

import dataclasses
import math
import operator
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import numpy as np

from spikecal.errors import ConfigError

Made = TypeVar("Made")


def from_toml(path: str | Path, make: Callable[[dict[str, Any]], Made]) -> Made:
    """What `make` makes of a TOML file; every error names the file."""
    try:
        with Path(path).open("rb") as file:
            return make(tomllib.load(file))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def preset(given: Made | str, kind: type[Made], presets: Mapping[str, Made], what: str) -> Made:
    """`given`, or the preset of that name."""
    if isinstance(given, kind):
        return given
    found = presets.get(given.lower()) if isinstance(given, str) else None
    if found is None:
        raise ConfigError(f"there is no {what} {given!r}; there are {', '.join(presets)}")
    return found


def whole(value: Any) -> int | None:
    """`value` as Python's integer, numpy's included; None where it is none."""
    with suppress(TypeError):
        return None if isinstance(value, bool | np.bool_) else operator.index(value)
    return None


def check_types(cls: type, settings: dict[str, Any], what: str, name: str = "") -> None:
    """Refuse settings that the dataclass `cls` does not have, and values of a wrong type."""
    types = {f.name: f.type for f in dataclasses.fields(cls)}
    for key, value in settings.items():
        if key not in types:
            raise ConfigError(f"{what} {name} has no setting {key!r}; it has {', '.join(types)}".replace("  ", " "))
        if not _fits(value, types[key]):
            raise ConfigError(f"{what} setting {key} cannot be {value!r}")


def _fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(wanted)[0]) for v in value)
    if wanted is bool or isinstance(value, bool):
        return wanted is bool and isinstance(value, bool)
    accepted = {int: (int,), float: (int, float)}.get(wanted, (str,))
    return isinstance(value, accepted) and not (isinstance(value, float) and not math.isfinite(value))
