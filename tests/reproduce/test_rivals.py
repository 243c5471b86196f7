"""`reproduce cifar --rivals`: the methods of others are measured, and stand under what the paper quotes of them."""

from pathlib import Path

import pytest
from reproduce.conftest import Reproduce

from spikecal.calibration.finetune import FineTune
from spikecal.errors import ConfigError
from spikecal.pipeline import HYBRID_TRAIN, QCFS, RIVALS
from spikecal.reproduce.paper import paper_tables
from spikecal.reproduce.render import quotes
from spikecal.reproduce.sizes import PAPER, Sizes
from spikecal.reproduce.tables import OTHERS, find


def test_rivals_are_measured_beside_ours(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("cifar", "--rivals", "-T", "3", "-T", "6")
    rows = {row["method"]: row for row in found["networks"][0]["rows"]}
    assert list(rows)[3:] == [row.label for row in OTHERS]
    assert all(set(row["columns"]) == {"3", "6"} for name, row in rows.items() if name != "Hybrid Train")
    assert not rows["Hybrid Train"]["columns"]  # it starts at 16 steps
    # what does not depend on T is one cell, and its figure at T = 3 is that of the run of 6 steps
    once = [row for row in OTHERS if row.way.anytime]
    read = {(row.label, "3") for row in once}
    cells = list((folder / "out" / "cells").glob("*.json"))
    made = [(name, T, column) for name, row in rows.items() for T, column in row["columns"].items()]
    assert len(cells) == 1 + sum(len(column["values"]) for name, T, column in made if (name, T) not in read)
    assert all("energy" not in rows[row.label]["columns"]["3"] for row in once)
    assert all("energy" in rows[row.label]["columns"]["6"] for row in once)
    page = (folder / "out" / "cifar.md").read_text()
    assert "Spike-Norm, measured here" in page and "## Methods of others, as they are run here" in page
    assert rows["RMP"]["columns"]["3"]["mean"] == rows["TSC"]["columns"]["3"]["mean"]


def test_a_measured_row_stands_under_the_quoted_one() -> None:
    rows = [{"method": "RMP", "added": False, "rival": "…", "columns": {"32": {"mean": 61.5, "std": None}}}]
    network = {
        "model": "resnet20-nobn",
        "bn": False,
        "data": "demo",
        "ann": [{"score": 85.0, "images": 100}],
        "rows": rows,
    }
    lines = "\n".join(quotes(paper_tables()["cifar"], [network])).splitlines()
    (place,) = [i for i, line in enumerate(lines) if "RMP, measured here on resnet20-nobn" in line]
    assert lines[place - 1].startswith("| RMP (Han et al. 2020") and "55.65" not in lines[place]
    assert lines[place] == "| RMP, measured here on resnet20-nobn | no | 85.00 | – | – | – | 61.50 | – |"


def test_only_where_the_paper_quotes_them() -> None:
    with pytest.raises(ConfigError, match="--rivals is for the table cifar, not for lcp"):
        find("lcp", rivals=True)
    assert find("cifar", rivals=True).rows[:3] == find("cifar").rows


def test_all_pipelines_of_others_are_measured() -> None:
    assert [row.pipeline for row in OTHERS] == list(RIVALS.values())
    steps = {row.label: row.steps((4, 8, 16, 32, 512)) for row in OTHERS}
    assert steps["RMP"] == [512] and steps["Local balancing"] == [4, 8, 16, 32] and steps["Hybrid Train"] == [16, 32]


def test_iterations_through_all_steps_are_as_many_times_fewer() -> None:
    table, sizes = find("cifar", rivals=True), Sizes(iterations=400)
    found = [part for one in (HYBRID_TRAIN, QCFS) for part in sizes.of(one, table, 16).fixed.parts]
    assert [part.iterations for part in found if isinstance(part, FineTune)] == [25, 400]
    kept = [part for part in PAPER.of(HYBRID_TRAIN, table, 16).fixed.parts if isinstance(part, FineTune)]
    assert [part.iterations for part in kept] == [600]
