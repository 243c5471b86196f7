"""Parts of a pipeline as plain data: those named in the package, and a user's own as `file.py:Class`.

A user's class is imported if the user names it: in TOML or on the command line. Files of networks name classes too;
those are never imported, and an `Absent` part stands in for each.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from spikecal.errors import ConfigError
from spikecal.settings import check_types, field_types, is_plain
from spikecal.usercode import is_factory, load_class, name_of

ABOUT = "about"  # what is stored about a user's own part besides its settings
LONGEST = 200  # characters of a name in a file


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A part that a file names and that is not part of spikecal: it can be shown and stored again, but not used."""

    stored: Mapping[str, Any] = field(default_factory=dict)


@cache
def _absent_kind(base: type) -> type:
    """The class of parts that stand in for a user's own parts of that base."""
    return dataclass(frozen=True, kw_only=True)(type(f"Absent{base.__name__}", (Absent, base), {}))


Own = Callable[[dict[str, Any], type, str], Any]  # makes a part from its settings, its base class and its kind


def imported(*folders: Path) -> Own:
    """Make parts of classes that the user names; imports them. `folders` are searched for a relative `file.py`."""

    def make(settings: dict[str, Any], base: type, what: str) -> Any:
        return make_part(load_class(settings["kind"], base, folders), settings, what)

    return make


def stand_in(settings: dict[str, Any], base: type, what: str) -> Any:
    """Make parts of classes that a file names, without importing them."""
    about = settings.get(ABOUT)
    if not isinstance(about, dict) or not is_plain(settings) or len(settings["kind"]) > LONGEST:
        raise ConfigError(f"the {what} {settings['kind'][:LONGEST]!r} is not part of spikecal")
    kind = _absent_kind(base)
    images = {"images": settings["images"]} if "images" in field_types(kind) and "images" in settings else {}
    check_types(kind, images, what)
    part = kind(stored=settings, **images)
    for name, wanted in (("label", str), ("learns", bool), ("name", str)):
        if isinstance(about.get(name), wanted) and hasattr(part, name):
            object.__setattr__(part, name, about[name] if wanted is bool else about[name][:LONGEST])
    return part


def absent(parts: Sequence[Any]) -> str | None:
    """The class of the first part that is absent."""
    return next((str(part.stored["kind"]) for part in parts if isinstance(part, Absent)), None)


def plain(part: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """A part as plain data; raises if files and TOML could not hold it."""
    if isinstance(part, Absent):
        return dict(part.stored)
    settings = dataclasses.asdict(part)
    if loose := [name for name in vars(part) if name not in settings and not hasattr(type(part), name)]:
        cls = type(part).__name__
        raise ConfigError(
            f"{cls} cannot be stored: {loose[0]} is not one of its fields: make {cls} a dataclass(frozen=True)"
        )
    for name, value in settings.items():
        if not is_plain(value):
            raise ConfigError(
                f"{type(part).__name__} cannot be stored: its {name} is {value!r:.40}, which is not plain data"
            )
    kind = next((name for name, cls in kinds.items() if type(part) is cls), None)
    if kind is not None:
        return {"kind": kind, **settings}
    told = {name: getattr(part, name) for name in ("label", "learns", "name") if hasattr(part, name)}
    return {"kind": name_of(type(part)), **settings, ABOUT: told}


def build(settings: Any, kinds: Mapping[str, Any], base: type, what: str, own: Own, old: Any = None) -> Any:
    """A part from plain data; without a kind, `old` with other settings."""
    if not isinstance(settings, dict):
        raise ConfigError(f"a {what} must be a table with a kind, not {settings!r}")
    name = settings.get("kind")
    if name is None and old is not None:
        return make_part(type(old), settings, what, old)
    if isinstance(name, str) and name in kinds:
        return make_part(kinds[name], settings, what, old)
    if isinstance(name, str) and (is_factory(name) or ABOUT in settings):
        return own(settings, base, what)
    raise ConfigError(f"there is no {what} {name!r}: choose from {', '.join(kinds)} and file.py:Class")


def make_part(cls: type, settings: Mapping[str, Any], what: str, old: Any = None) -> Any:
    """A part of an imported class with these settings; settings it shares with `old` are kept."""
    given = {name: value for name, value in settings.items() if name not in ("kind", ABOUT)}
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{cls.__name__} is not a dataclass")
    types = field_types(cls)
    kept = {} if old is None else {name: value for name, value in dataclasses.asdict(old).items() if name in types}
    check_types(cls, given, what, settings.get("kind") or "")
    whole = {**kept, **given}
    try:
        return cls(**{name: _as_field(value, types[name]) for name, value in whole.items()})
    except TypeError as error:  # a field has no default
        raise ConfigError(f"{what} {settings.get('kind') or cls.__name__} cannot be made: {error}") from error


def _as_field(value: Any, wanted: Any) -> Any:
    """TOML and JSON have lists where a field is a tuple."""
    return tuple(value) if isinstance(value, list) and get_origin(wanted) is tuple else value
