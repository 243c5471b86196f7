"""The script behind the table in docs/models.md, on two small networks."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "model_table.py"


def test_writes_what_converts_and_what_is_refused_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("model_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = tmp_path / "models.md"
    page.write_text(f"before\n{script.START}\nold\n{script.END}\nafter\n")
    names = ["timm:test_resnet", "pytorchcv:seresnet10"]

    script.survey(names[:1], tmp_path)
    script.survey(names, tmp_path)
    assert capsys.readouterr().out.count("timm:test_resnet") == 1  # looked at once
    assert [row["converts"] for row in json.loads((tmp_path / "models.json").read_text())["models"].values()] == [
        True,
        False,
    ]
    text = page.read_text()
    assert text.startswith(f"before\n{script.START}\n") and text.endswith(f"{script.END}\nafter\n")
    assert "1 of these 2 convert" in text
    assert "| `timm:test_resnet` | 0.5 | converts: 13 stages at 160×160 |" in text
    assert "refused: features.stage1.unit1.se.sigmoid: Sigmoid (and 7 more)" in text
    assert "old" not in text
