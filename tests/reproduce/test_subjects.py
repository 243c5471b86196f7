"""A task is one class: a table of it needs nothing else, from the plan to the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from torch import nn

from spikecal.analysis.measures import Measure
from spikecal.pipeline import BASELINE, LCP
from spikecal.progress import Progress
from spikecal.reproduce import paper, said
from spikecal.reproduce.cells import Cell
from spikecal.reproduce.claims import Gain
from spikecal.reproduce.kinds import SUBJECTS
from spikecal.reproduce.render import markdown
from spikecal.reproduce.run import make_plan, pending, run
from spikecal.reproduce.sizes import Sizes
from spikecal.reproduce.subjects import Subject, Wish
from spikecal.reproduce.summary import summarise
from spikecal.reproduce.tables import Row, Table


@dataclass(kw_only=True)
class Segmenter(Subject):
    """Gains with T and with calibration; nothing is converted."""

    score = Measure("miou", "mIoU", share=False)
    most_images = 5
    bn = True
    model_print = train_print = test_print = "the same"
    seconds_a_pass = 0.001

    @classmethod
    def load(cls, spec: str, weights: Path | None, wish: Wish) -> Self:
        return cls(spec=spec, network=nn.Identity(), data="scenes", strict=wish.strict)

    @classmethod
    def has(cls, spec: str) -> bool:
        return True

    @property
    def images(self) -> tuple[range, range]:
        return range(40), range(20)

    def measure(
        self, cell: Cell, work: Path | None = None, progress: Progress | None = None, memory: int | None = None
    ) -> dict[str, Any]:
        if cell.pipeline is None:
            return {"score": 0.5, "images": cell.images}
        assert cell.pipeline.images == 3
        learned = 0.125 if cell.pipeline.sweeps else 0.0
        return {"score": cell.T / 64 + learned, "images": cell.images, "rate": 0.25}

    def differences(self) -> list[str]:
        return ["Its scenes are small."]


TABLE = Table(
    name="segment",
    title="Baseline and LCP on segmentation",
    about="mIoU.",
    rows=(Row(label="Baseline", pipeline=BASELINE), Row(label="Baseline + LCP", pipeline=LCP)),
    T=(8, 16),
    kind="segmentation",
    models=("toy",),
)


def test_a_third_task_is_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBJECTS, "segmentation", Segmenter)
    monkeypatch.setitem(said.SAID, "segment", (Gain(text="LCP helps", row="Baseline + LCP", over="Baseline"),))
    quoted = {"blocks": [], "columns": [], "caption": "None", "label": "none", "unit": "mIoU %", "notes": []}
    monkeypatch.setitem(paper.paper_tables(), "segment", quoted)

    plan = make_plan(TABLE, Sizes(images=10, seeds=2, weights=3), strict=True)
    assert len(plan.cells) == 2 * 2 * 2 + 1 and plan.seconds(plan.cells) > 0  # rows, T and seeds, and the ANN
    found = run(plan, tmp_path)
    assert pending(plan, tmp_path) == []
    stored = [json.loads(file.read_text())["found"] for file in (tmp_path / "cells").glob("*.json")]
    assert {one["accuracy"] for one in stored} == {one["score"] for one in found.values()}
    summary = summarise(plan, found)
    (network,) = summary["networks"]
    assert network["ann"] == [{"images": 10, "accuracy": 50.0}]  # as files have every score
    means = {row["method"]: [column["mean"] for column in row["columns"].values()] for row in network["rows"]}
    assert means == {"Baseline": [12.5, 25.0], "Baseline + LCP": [25.0, 37.5]}
    judged = [(claim["verdict"], claim["size"], claim["noise"]) for claim in summary["claims"]]
    assert judged == [("seen", 12.5, 0.0)] * 2
    page = markdown(summary)
    seen = "3 images for all its parts; the paper has 5"
    for words in ("| mIoU % | T=8 | T=16 |", "In points of mIoU", "Its scenes are small.", seen, "ANN 50.00 %"):
        assert words in page
