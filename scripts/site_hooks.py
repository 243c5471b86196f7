"""Hooks of the documentation site: formulas, pictures for dark screens, and files of the repository beside docs/.

Pages must read well in the repository, too: formulas are `$…$`, a picture is named once, and links lead to
files in the repository. Here formulas become MathML, so that nothing must be fetched to show them; a
picture with a `-dark` sister follows the colour scheme of the page; and files outside of docs/ that
pages link to are copied.
"""

import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert as mathml

ROOT = Path(__file__).parents[1]
# Files outside of docs/ that are pages of the site; others that pages link to are copied below `repository`.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "weights/README.md": "weights.md"}
HOMES = {page: path for path, page in PAGES.items()}
START = "README.md"  # becomes the start page of the site
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
PICTURE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<target>[^)#\s:]+)\.png\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
CELL = re.compile(r"<(t[dh])>(.*?)(?=</\1>)", re.DOTALL)
FIGURE = re.compile(r"(?<=\d) ± (?=\d)|\bT = (?=\d)")
TAG = re.compile("<[^>]+>")
WORDS = 60  # letters; a cell with more is one of words, not of figures
UNBROKEN = "\N{NO-BREAK SPACE}"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/, and whatever any page links to there."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for path in sorted(set(_outside(files))):
        files.append(File.generated(config, _in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Point links to the site's files, and let pictures follow the page's colours."""
    here = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        target = _in_site(_in_repository(here, match["target"]))
        return os.path.relpath(target, PurePosixPath(here).parent) + (match["anchor"] or "")

    def picture(match: re.Match[str]) -> str:
        dark = f"{match['target']}-dark.png"
        if not (ROOT / "docs" / PurePosixPath(here).parent / dark).is_file():
            return match[0]
        words, light = match["words"], f"{match['target']}.png"
        return f"![{words}]({light}#only-light)![{words}]({dark}#only-dark)"

    return _in_text(markdown, lambda text: PICTURE.sub(picture, LINK.sub(link, text)))


def on_page_content(html: str, **_: Any) -> str:
    return CELL.sub(_cell, FORMULA.sub(_formula, html))


def _cell(match: re.Match[str]) -> str:
    """A cell of a table, its figures on one line; if it has many words, they get room on a phone."""
    kind = ' class="words"' if len(TAG.sub("", match[2])) > WORDS else ""
    return f"<{match[1]}{kind}>{FIGURE.sub(lambda figure: figure[0].replace(' ', UNBROKEN), match[2])}"


def _formula(match: re.Match[str]) -> str:
    latex = unescape(match[2]).strip()
    shown = mathml(latex, display="block" if match[1] == "div" else "inline")
    if left := re.search(r"\\\w+", unescape(shown)):
        raise ValueError(f"{left[0]} of the formula {latex} cannot be rendered")
    return f'<span class="formula">{shown}</span>' if match[1] == "div" else shown


def _outside(files: Any) -> Iterator[str]:
    """Files outside of docs/ that pages link to, except other pages."""
    for file in files.documentation_pages():
        for part in FENCE.split(Path(file.abs_src_path).read_text(encoding="utf-8"))[::2]:
            for match in LINK.finditer(part):
                path = _in_repository(file.src_uri, match["target"])
                if not path.startswith("docs/") and path not in (*PAGES, START):
                    yield path


def _in_repository(page: str, target: str) -> str:
    """The path in the repository that a link of a page leads to."""
    home = HOMES.get(page, f"docs/{page}")
    return os.path.normpath(PurePosixPath(home).parent / target)


def _in_site(path: str) -> str:
    """Where the site has a file of the repository."""
    if path == START:
        return "index.md"
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def _in_text(markdown: str, change: Callable[[str], str]) -> str:
    """Change everything outside of blocks of code."""
    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))
