"""docs/how-to/detection.md says what the committed results say, and what a detector keeps is what it should be."""

import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts import ROOT, load_script
from spikecal.reproduce.paper import paper_tables


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("detection_page")


def test_the_page_has_the_committed_figures(script: ModuleType) -> None:
    page = (ROOT / "docs" / "how-to" / "detection.md").read_text(encoding="utf-8")
    assert script.filled(page, ROOT / "docs" / "results") == page


def detector(model: str, ann: float, **means: float) -> dict[str, Any]:
    """Rows at T=32 of 10 images; on sets drawn anew all figures are higher, each by its own amount."""

    def drawn(figure: float) -> list[float]:
        return [figure, figure + 1, figure + 4]

    rows = [
        {
            "method": method,
            "added": False,
            "columns": {"32": {"mean": mean, "std": None, "images": 10, "drawn": drawn(mean)}},
        }
        for method, mean in means.items()
    ]
    analog = {"images": 10, "accuracy": ann, "drawn": drawn(ann)}
    return {"model": model, "bn": True, "data": "here", "ann": [analog], "rows": rows}


def table(*networks: dict[str, Any]) -> dict[str, Any]:
    facts = {"T": [32], "long": None, "kind": "detection", "command": "spikecal reproduce detect", "table": "detect"}
    return {**facts, "networks": list(networks), "paper": paper_tables()["detect"]}


def test_shares_are_of_the_detectors_own_analog_figure(script: ModuleType) -> None:
    found = script.shares(table(detector("retinanet-x", 50.0, a=25.0), detector("fasterrcnn-x", 40.0, a=30.0)))
    retina, faster = found["retinanet-x", "a", 32], found["fasterrcnn-x", "a", 32]
    assert (retina.value, faster.value) == (50, 75)
    ours = [75, 100 * 31 / 41, 100 * 34 / 44]
    assert faster.drawn == pytest.approx(ours)
    gain = faster.less(retina)
    assert gain.value == 25 and gain.verdict() == "seen" and retina.less(faster).verdict() == "not seen"
    assert gain.deviation == pytest.approx(
        statistics.stdev(a - b for a, b in zip(ours, [50, 100 * 26 / 51, 100 * 29 / 54], strict=True))
    )
    assert script.Share(value=0.4, drawn=[0.0, 1.0]).verdict() == "level"
    assert script.Share(value=0.8, drawn=[0.0, 1.0]).verdict() == "seen"  # the deviation is 0.71


def test_the_papers_shares(script: ModuleType) -> None:
    """By hand from its table: 6.2 of 35.6 and 16.6 of 37.0."""
    found = script.papers_shares(table())
    assert found["RetinaNet, ResNet-50", "Baseline", 32].value == pytest.approx(17.416, abs=1e-3)
    assert found["Faster R-CNN, ResNet-50", "Baseline", 32].value == pytest.approx(44.865, abs=1e-3)


def test_what_is_kept_is_put_between_the_marks(script: ModuleType, tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results" / "mine"
    results.mkdir(parents=True)
    page.write_text("Before.\n\n<!-- kept mine/detect -->\nold\n<!-- end -->\nAfter.\n")
    call = ["--page", str(page), "--results", str(tmp_path / "results")]
    script.main(call)
    assert page.read_text() == (
        "Before.\n\n<!-- kept mine/detect -->\n\n*Not measured yet: mine/detect.*\n\n<!-- end -->\nAfter.\n"
    )
    rows = {"Baseline": 25.0, "Baseline + LCP": 40.0}
    summary = table(
        detector("retinanet-x", 50.0, **rows),
        detector("retinanet-deep", 50.0, **rows),
        detector("fasterrcnn-x", 50.0, **{"Baseline": 30.0, "Baseline + LCP": 40.0}),
    )
    (results / "detect.json").write_text(json.dumps(summary))
    for _ in range(2):  # the second time nothing changes
        script.main(call)
        text = page.read_text()
        assert text.startswith("Before.\n") and text.endswith("\nAfter.\n") and "old" not in text
        assert "| retinanet-deep | Baseline | 50.0 ± " in text
        assert "| the paper's RetinaNet, ResNet-50 | Baseline + LCP | 53.9 |" in text
        assert "| Baseline | seen (+10.0 ± " in text and "| Baseline + LCP | level (+0.0 ± 0.0) |" in text
        assert "| Baseline, the paper | +27.4 |" in text
        assert "keeps more than RetinaNet in 1 of 2 cells, less in 0, level in 1." in text
        assert "(../results/mine/detect.md), by `spikecal reproduce detect`" in text
