"""The content as one self-contained HTML page, with style, program and data."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from spikecal.errors import ConfigError, visible
from spikecal.export.packages import package
from spikecal.report.words import duration, percent

if TYPE_CHECKING:
    from jinja2 import Template

LIMIT = 5_000_000  # bytes
SCRIPTS = ("dom", "chart", "details", "layers", "graph", "spikes", "detections", "main")  # in order of dependency


def render(content: Mapping[str, Any]) -> str:
    """The whole page. Text from files is escaped everywhere: a layer may have any name."""
    content = _visible(content)
    Markup = package("markupsafe").Markup
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    page = _template().render(
        page=content,
        headline=content["networks"][content["headline"]],
        style=Markup(_asset("style.css")),
        script=Markup(f'(() => {{\n"use strict";\n{scripts}\n}})();'),
        data=Markup(embedded(content)),
    )
    size = len(page.encode(errors="backslashreplace"))
    if size > LIMIT:
        raise ConfigError(
            f"{len(content['networks'])} networks need {size / 1e6:.1f} MB, and a page has at most {LIMIT / 1e6:.0f}: "
            f"give fewer files, or fewer of their networks with -T"
        )
    return page


def _visible(content: Any) -> Any:
    """The content with safe texts, as on a terminal: some characters reverse the text beside them."""
    if isinstance(content, Mapping):
        return {_visible(key): _visible(part) for key, part in content.items()}
    if isinstance(content, list | tuple):
        return [_visible(part) for part in content]
    return visible(content) if type(content) is str and not content.isprintable() else content


@cache
def _template() -> "Template":
    jinja2 = package("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "duration": duration, "number": _number}
    template: Template = environment.from_string(_asset("page.html"))
    return template


def embedded(content: Mapping[str, Any]) -> str:
    """JSON that is safe in a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files("spikecal.report") / "assets" / name).read_text(encoding="utf-8")


def _number(value: float, digits: int = 1) -> str:
    return f"{value:,.{digits}f}"
