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
        "results-details",
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
def test_committed_claims_are_current(path: Path) -> None:
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
        sizes = " | ".join(map(script.unbroken, ("T=4 **not seen** (-10.0)", "T=4 +24.2 to +47.9")))
        where = f"net | [vgg16-half/cifar](results/vgg16-half/cifar.md) | {sizes} |"
        assert f"| Baseline + LCP beats Baseline | {where}" in text
        assert "| net | Baseline + LCP | 50.0 |  |" in text and "| other | Baseline |  | 40.0 |" in text
        assert "| other | Baseline + LCP | light |" in text and "| other | Baseline | |" not in text
        assert text.count("*Not measured yet: mine/none.*") == 1
    after = json.loads((results / "cifar.json").read_text())
    assert {**after, "claims": before["claims"]} == before  # claims are current, and everything else is unchanged
    assert (results / "cifar.md").read_text() == markdown(after)
    points = {"Baseline": {4: (50.0, 1.25)}, "Baseline + LCP": {4: (40.0, 1.25)}}
    assert script.panels(tmp_path / "results") == {"net": (points, 90.0)}
    for name in ("results.png", "frontier.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG")


def test_verdicts_are_merged_and_counted(script: ModuleType) -> None:
    def judged(claim: str, verdict: str, size: float, **more: Any) -> dict[str, Any]:
        common = {"model": "net", "T": 8, "unit": "points", "ours": False, "paper": []}
        return {"claim": claim, "verdict": verdict, "size": size, **common, **more}

    found = {
        "large/cifar": {
            "title": "Some",
            "claims": [judged("A beats B", "seen", 3.0), judged("A beats B", "level", 0.5, T=16)],
        },
        "small/cifar": {
            "title": "Some",
            "claims": [
                judged("A beats B", "not seen", -9.0),  # the same network and T: the first table counts
                judged("A beats B", "not seen", -1.0, model="other"),
                judged("B beats C", "seen", 2.0, ours=True),
            ],
        },
    }
    assert script._verdicts(found).splitlines()[2:] == [
        "| A beats B | 1 | 1 | 1 | -1.0 to +3.0 |",
        "| B beats C | 1 | 0 | 0 | +2.0 |",
    ]
    assert script._counts(found).splitlines()[2:] == ["| Some | 1 | 1 | 1 |"]
    large, small = (f"[{name}](results/{name}.md)" for name in found)
    claims = script._claims(found).replace(script.unbroken(" "), " ")
    assert claims.splitlines()[2:4] == [
        f"| A beats B | net | {large} | T=8 seen (+3.0), T=16 level (+0.5) |  |",
        f"|  | other | {small} | T=8 **not seen** (-1.0) |  |",
    ]


def test_nothing_is_drawn_of_nothing(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Words.\n")
    script.main(["--page", str(page), "--results", str(tmp_path), "--pictures", str(tmp_path)])
    assert page.read_text() == "Words.\n" and list(tmp_path.iterdir()) == [page]
