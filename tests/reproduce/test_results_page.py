"""docs/results.md says what the committed results say."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from scripts import ROOT, load_script
from spikecal.reproduce.render import markdown


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("results_page")


def test_the_page_has_the_committed_figures(script: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert script.filled(page, ROOT / "docs" / "results") == page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "results").glob("*/*.json")), ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_a_committed_page_is_that_of_its_figures(path: Path) -> None:
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == markdown(json.loads(path.read_text(encoding="utf-8")))


def test_figures_and_claims_are_put_between_the_marks(script: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results" / "mine"
    results.mkdir(parents=True)
    column = {"mean": 50.0, "std": 1.25, "images": 10, "energy": 7.5}
    network = {"model": "net", "bn": True, "data": "here", "rows": [{"method": "a", "columns": {"4": column}}]}
    network["rows"][0]["added"] = False  # type: ignore[index]
    claim = {"claim": "a beats b", "model": "net", "T": 4, "verdict": "not seen", "by": -1.0}
    facts = {"title": "Some", "kind": "accuracy", "T": [4], "long": None, "command": "spikecal reproduce x"}
    (results / "x.json").write_text(json.dumps({**facts, "networks": [network], "claims": [claim]}))
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n<!-- figures mine/x mine/x:energy -->\nold\n<!-- end -->\n\nBetween.\n\n"
        "<!-- claims mine/x mine/none -->\n<!-- end -->\nAfter.\n"
    )
    picture = tmp_path / "picture.png"
    for _ in range(2):  # the second time nothing changes
        script.main(["--page", str(page), "--results", str(tmp_path / "results"), "--picture", str(picture)])
        text = page.read_text()
        assert text.startswith("Before.\n") and "\nBetween.\n" in text and text.endswith("\nAfter.\n")
        assert "| a | 50.00 ± 1.25 |" in text
        assert "| energy, times the ANN's | T=4 |\n| --- | --- |\n| a | 7.50 |" in text
        assert "`spikecal reproduce x`" in text and "old" not in text
        assert "| a beats b | net | [mine/x](results/mine/x.md) | T=4 **not seen** (-1.0) |" in text
        assert text.count("*mine/none: not measured yet.*") == 1
    assert not picture.exists()
    (tmp_path / "results" / "vgg16").mkdir()
    network["ann"] = [{"accuracy": 60.0}]
    (tmp_path / "results" / "vgg16" / "cifar.json").write_text(json.dumps({**facts, "networks": [network]}))
    assert script.panels(tmp_path / "results") == {"net": ({"a": {4: (50.0, 1.25)}}, 60.0)}
    script.main(["--page", str(page), "--results", str(tmp_path / "results"), "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
