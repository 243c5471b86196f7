"""Imports point one way, in the order that explanation/architecture.md states; it names every package and module."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "spikecal"


def stated() -> list[str]:
    """The order in the docs, lowest first."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    found = re.search(r"Imports point one way[^:]*: (.*?)\.\n", page, re.DOTALL)
    assert found is not None
    return re.findall(r"`(\w+)`", found[1])


def imported(file: Path) -> Iterator[str]:
    """The packages and modules right below spikecal that a file imports, for types too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("spikecal."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "spikecal":
            yield from (alias.name for alias in node.names if (PACKAGE / alias.name).is_dir())


def test_the_order_names_everything_once() -> None:
    below = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert sorted(stated()) == sorted(below - {"__init__", "__main__"})


def test_calibrators_and_analysis_know_nothing_of_ranks() -> None:
    """Only modules that drive a calibration, or sum over images, know about ranks."""
    driving = {"divergence", "samples", "sweep", "view", "whole"}
    files = [*(PACKAGE / "analysis").rglob("*.py"), *(PACKAGE / "calibration").rglob("*.py")]
    knowing = {file.stem for file in files if "ranks" in imported(file) or ".ranks" in file.read_text()}
    assert knowing == driving


def test_no_import_points_against_the_order() -> None:
    place = {name: i for i, name in enumerate(stated())}
    against = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in PACKAGE.rglob("*.py")
        if (own := file.relative_to(PACKAGE).parts[0].removesuffix(".py")) in place
        for name in imported(file)
        if name != own and place[name] >= place[own]
    ]
    assert not against
