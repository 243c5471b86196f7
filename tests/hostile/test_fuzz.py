"""2,000 hostile `.snn` files: every check behind the checksum refuses some, and none of them breaks anything.

`SPIKECAL_FUZZ=10000` is the number of files.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import fuzz
from killed import report_of

import spikecal

PACKAGE = Path(spikecal.__file__).parent
# All that is checked of a description and of the graph that it describes, once the checksum is right.
CHECKING = {
    "snn/description.py": None,
    "snn/origin.py": ("_all", "_by_steps", "_card", "_shape"),
    "snn/windows.py": ("__post_init__",),
    "graph/stages.py": ("partition",),
    "graph/widths.py": None,
    "graph/sizes.py": ("check_size",),
    "graph/ops/base.py": ("__init__", "validate_reads"),
    "graph/ops/__init__.py": ("validate", "_validate_tensors"),
    "graph/ops/linear.py": ("validate", "validate_reads"),
    "graph/ops/pooling.py": ("validate", "_check_window"),
    "graph/ops/shape.py": ("validate", "_item"),
}
UNREACHABLE = "has no setting"  # of operations that are made in Python: the description refuses it before


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return report_of(Path(fuzz.__file__), tmp_path_factory.mktemp("fuzz"), os.environ.get("SPIKECAL_FUZZ", fuzz.FILES))


def checks() -> Iterator[tuple[str, range, str]]:
    """The file, the lines and the source of every `require` and `raise` that refuses a description."""
    for file, functions in CHECKING.items():
        text = (PACKAGE / file).read_text()
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef) or function.name == "require":
                continue
            if functions is None or function.name in functions:
                for node in ast.walk(function):
                    calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require"
                    if calls or (isinstance(node, ast.Raise) and not _raises_again(node)):
                        assert isinstance(node, (ast.Call, ast.Raise)) and node.end_lineno is not None
                        source = ast.get_source_segment(text, node) or ""
                        yield file, range(node.lineno, node.end_lineno + 1), source


def _raises_again(node: ast.Raise) -> bool:
    return node.cause is not None


def test_no_file_breaks_anything(found: Any) -> None:
    assert found["faults"] == []
    assert found["outcome"]["files"] >= fuzz.FILES
    assert not [name for name in found["outcome"] if "says too much" in name]


def test_some_files_are_refused_and_others_run(found: Any) -> None:
    outcome = found["outcome"]
    assert outcome["refused"] > 1000 and outcome["loaded"] > 200
    for name in ("run", "normalized", "evaluate", "check", "report", "trainable", "saved"):
        assert outcome[name] > 30, name


def test_every_check_behind_the_checksum_refuses_some_file(found: Any) -> None:
    places = {(file, int(line)) for file, _, line in (place.rpartition(":") for place in found["places"])}
    missed = [
        f"{file}:{lines.start} {source}"
        for file, lines, source in checks()
        if not any((file, line) in places for line in lines) and UNREACHABLE not in source
    ]
    assert missed == []
