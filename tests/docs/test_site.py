"""The site builds without a warning, needs no other host, and has every formula, public name and flag."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path

import pytest
from PIL import Image, ImageChops

import spikecal
from scripts import ROOT, load_script

pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class Loaded(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [values[key] or "" for key in ("src", "srcset") if key in values]
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(values.get("href") or "")


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert not [found for found in parser.found if "//" in found], page


def test_formulas_are_rendered(site: Path) -> None:
    pages = {name: (site / f"explanation/{name}.html").read_text() for name in ("method", "analysis", "energy")}
    for name, page in pages.items():
        assert page.count("<math") >= 3 and "arithmatex" not in page, name
    assert "<mover>" in pages["method"] and "<munder>" in pages["analysis"]


def test_a_formula_that_cannot_be_rendered_is_an_error() -> None:
    hooks = load_script("site_hooks")
    assert "<mfrac>" in hooks.on_page_content(r'<span class="arithmatex">\(\frac12\)</span>')
    with pytest.raises(ValueError, match=r"\\nonsense of the formula"):
        hooks.on_page_content(r'<span class="arithmatex">\(\nonsense x\)</span>')


def test_tables_keep_figures_on_one_line_and_give_words_room() -> None:
    hooks, long = load_script("site_hooks"), "<b>many</b> words " * 9
    made = hooks.on_page_content(f"<td>12.41 ± 0.51</td><td>{long}</td><td>T = 4 ± x</td>")
    assert made == f'<td>12.41\xa0±\xa00.51</td><td class="words">{long}</td><td>T\xa0=\xa04 ± x</td>'


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    presets = {"ACP", "AUTO", "BASELINE", "LCP", "MAXACT", "PC", "PERCENTILE"}
    for name in set(spikecal.__all__) - presets - {"detection"}:
        assert f'id="spikecal.{name}"' in page, name
    assert all(f"<code>{name}</code>" in page for name in presets)


def test_classes_show_the_members_that_are_listed_for_them_and_no_others(site: Path) -> None:
    source = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    listed = re.findall(r"::: spikecal\.(\w+)\n    options:\n      members: (?:\[(.+)\]|false)", source)
    assert {name for name, _ in listed} >= {"SpikingNetwork", "Pipeline", "StageView", "Weights"}
    for name, members in listed:
        shown = re.findall(rf'<h\d id="spikecal\.{name}\.(\w+)"', page)
        assert sorted(shown) == sorted(members.split(", ") if members else []), name


def test_every_argument_of_convert_is_explained(site: Path) -> None:
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    start = page.index('id="spikecal.convert"')
    section = page[start : page.index('id="spikecal.Result"', start)]
    rows = re.findall(r"<tr class=\"doc-section-item\">\s*<td>\s*<code>(\w+)</code>", section)
    assert rows[: len(signature(spikecal.convert).parameters)] == list(signature(spikecal.convert).parameters)


def test_the_flags_on_the_page_are_those_of_the_program() -> None:
    script = load_script("command_line_page")
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.filled(page) == page
    shown = re.findall(r"<!-- flags ([a-z ]+) -->", page)
    assert sorted(shown) == sorted(script.commands(script.typer.main.get_command(script.app)))


def test_dark_pictures_are_those_of_the_light_ones() -> None:
    script = load_script("dark_pictures")
    for name in script.PLOTS:
        with Image.open(script.IMAGES / f"{name}.png") as light, Image.open(script.IMAGES / f"{name}-dark.png") as dark:
            assert ImageChops.difference(script.darkened(light), dark.convert("RGB")).getbbox() is None, name


def test_pictures_are_shown_by_the_scheme_of_the_page(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="images/demo.png#only-light"' in page and 'src="images/demo-dark.png#only-dark"' in page
