"""The script behind the table in docs/reference/models.md, on two small networks."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from scripts import ROOT, load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("model_table")


def test_the_page_says_what_was_found(script: ModuleType) -> None:
    docs = ROOT / "docs" / "reference"
    facts, page = json.loads((docs / "models.json").read_text()), (docs / "models.md").read_text()
    assert f"{script.START}\n\n{script.table(facts)}\n{script.END}" in page
    assert list(facts["models"]) == [f"{package}:{name}" for package, of in script.NAMES.items() for name in of.split()]


def test_writes_what_converts_and_what_is_refused_and_resumes(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "models.md"
    page.write_text(f"before\n{script.START}\nold\n{script.END}\nafter\n")
    names = ["timm:test_resnet", "pytorchcv:seresnet10"]

    script.survey(names[:1], tmp_path)
    script.survey(names, tmp_path)
    assert capsys.readouterr().out.count("timm:test_resnet") == 1  # inspected once
    assert [row["converts"] for row in json.loads((tmp_path / "models.json").read_text())["models"].values()] == [
        True,
        False,
    ]
    text = page.read_text()
    assert text.startswith(f"before\n{script.START}\n") and text.endswith(f"{script.END}\nafter\n")
    assert "1 of these 2 convert" in text
    assert "| `timm:test_resnet` | 0.5 | converts: 13 stages at 160×160 |" in text
    assert "refused: features.stage1.unit1.se.sigmoid: Sigmoid; " in text and "(and 7 more) |" in text
    assert "old" not in text
