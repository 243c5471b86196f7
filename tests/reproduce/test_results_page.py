"""docs/results.md says what the committed results say."""

import json
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts import ROOT, load_script
from spikecal.reproduce.paper import paper_tables
from spikecal.reproduce.render import markdown
from spikecal.reproduce.summary import judge
from spikecal.reproduce.tables import find

COMMITTED = sorted((ROOT / "docs" / "results").glob("*/*.json"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in COMMITTED]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("results_page")


@pytest.mark.parametrize(
    "name",
    [
        "results",
        "how-to/exit",
        *(f"explanation/{name}" for name in ("energy", "method", "waiting", "joints", "rivals")),
    ],
)
def test_the_page_has_the_committed_figures(script: ModuleType, name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert script.filled(page, ROOT / "docs" / "results") == page


@pytest.mark.parametrize("path", COMMITTED, ids=NAMES)
def test_a_committed_page_is_that_of_its_figures(path: Path) -> None:
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == markdown(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", COMMITTED, ids=NAMES)
def test_committed_claims_are_those_of_today(path: Path) -> None:
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert summary["claims"] == judge(find(summary["table"]), summary)


def table(**means: float) -> dict[str, Any]:
    """What `reproduce cifar` writes of one network, with the claims of another day."""
    columns = {
        row: {"mean": mean, "std": 1.25, "values": [mean - 1.25, mean, mean + 1.25], "images": 1000, "energy": 7.5}
        for row, mean in means.items()
    }
    rows = [{"method": row, "added": False, "columns": {"4": column}} for row, column in columns.items()]
    ann = [{"images": 1000, "accuracy": 90.0}]
    facts = {"table": "cifar", "title": "Some", "about": "", "kind": "accuracy", "T": [4], "long": 512}
    return {
        **facts,
        "networks": [{"model": "net", "bn": True, "data": "here", "ann": ann, "rows": rows}],
        "claims": [{"claim": "of another day"}],
        "differences": [],
        "machine": {"torch": "", "processor": "", "threads": 1},
        "paper": paper_tables()["cifar"],
        "command": "spikecal reproduce x",
    }


def test_figures_and_claims_are_put_between_the_marks(script: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results" / "vgg16-half"
    results.mkdir(parents=True)
    before = table(**{"Baseline": 50.0, "Baseline + LCP": 40.0})
    (results / "cifar.json").write_text(json.dumps(before))
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n<!-- figures vgg16-half/cifar vgg16-half/cifar:energy -->\nold\n<!-- end -->\n\nBetween.\n\n"
        "<!-- claims vgg16-half/cifar mine/none -->\n<!-- end -->\n"
        "<!-- below vgg16-half/cifar frontier/frontier -->\n<!-- end -->\n"
        "<!-- chosen frontier/frontier -->\n<!-- end -->\nAfter.\n"
    )
    costs = {"latency": 4, "spikes": 9000.0, "energy": 0.1}
    frontier = {**deepcopy(before), "table": "frontier", "kind": "frontier"}
    for row in (row for network in frontier["networks"] for row in network["rows"]):
        (column,) = row["columns"].values()
        row["columns"] = {"8": {**column, **costs}}
        if row["method"] != "Baseline":
            row["columns"]["8"]["kept"] = ["light"]
    frontier["T"], frontier["networks"][0]["model"] = [8], "own.py:other"
    (tmp_path / "results" / "frontier").mkdir()
    (tmp_path / "results" / "frontier" / "frontier.json").write_text(json.dumps(frontier))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    call = ["--page", str(page), "--results", str(tmp_path / "results"), "--pictures", str(pictures)]
    for _ in range(2):  # the second time nothing changes
        script.main(call)
        text = page.read_text()
        assert text.startswith("Before.\n") and "\nBetween.\n" in text and text.endswith("\nAfter.\n")
        assert "| Baseline | 50.00 ± 1.25 |" in text and "`spikecal reproduce x`" in text and "old" not in text
        assert "| energy, times the ANN's | T=4 |\n| --- | --- |\n| Baseline | 7.50 |" in text
        where = (
            "net | [vgg16-half/cifar](results/vgg16-half/cifar.md) | T=4 **not seen** (-10.0) | T=4 +24.2 to +47.9 |"
        )
        assert f"| Baseline + LCP beats Baseline | {where}" in text
        assert "| net | Baseline + LCP | 50.0 |  |" in text and "| other | Baseline |  | 40.0 |" in text
        assert "| other | Baseline + LCP | light |" in text and "| other | Baseline | |" not in text
        assert text.count("*mine/none: not measured yet.*") == 1
    after = json.loads((results / "cifar.json").read_text())
    assert {**after, "claims": before["claims"]} == before  # the claims are of today, all else is as it was
    assert (results / "cifar.md").read_text() == markdown(after)
    points = {"Baseline": {4: (50.0, 1.25)}, "Baseline + LCP": {4: (40.0, 1.25)}}
    assert script.panels(tmp_path / "results") == {"net": (points, 90.0)}
    for name in ("results.png", "frontier.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_nothing(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Words.\n")
    script.main(["--page", str(page), "--results", str(tmp_path), "--pictures", str(tmp_path)])
    assert page.read_text() == "Words.\n" and list(tmp_path.iterdir()) == [page]
