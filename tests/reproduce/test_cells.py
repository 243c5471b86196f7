"""Inputs of a cell: its seed, training images, its row's pipeline, the answers after the last step."""

import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spikecal.analysis.evaluate import Evaluation
from spikecal.calibration.calibrators import Bias, Potential, Weights
from spikecal.calibration.threshold import MMSE, MaxAct, Percentile
from spikecal.conversion import convert
from spikecal.data.images import Data
from spikecal.data.prepare import Prepared
from spikecal.evaluation import evaluate
from spikecal.pipeline import BASELINE, LCP, Pipeline
from spikecal.reproduce.cells import Cell
from spikecal.reproduce.classifiers import Classifier
from spikecal.reproduce.sizes import Sizes
from spikecal.reproduce.subjects import Wish
from spikecal.reproduce.tables import TABLES, Row, find

T = 4


@pytest.fixture
def subject(folder: Path) -> Classifier:
    """More training images than the 128 a bias is calibrated on, so that seeds differ; every image has its colour."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 160), ("test", 30)):
        colours, grain = rng.integers(0, 192, (count, 1, 1, 3)), rng.integers(0, 64, (count, 12, 12, 3))
        arrays |= {f"x_{split}": (colours + grain).astype(np.uint8), f"y_{split}": rng.integers(0, 4, count)}
    np.savez(folder / "images.npz", **arrays)
    subject = Classifier.load("nets.py:make", None, Wish(data="npz:images.npz"))
    head: Any = subject.network[-1]  # type: ignore[index]
    with torch.no_grad():  # untrained, it would give one answer to all images
        head.bias -= subject.network(torch.stack(list(subject.calibration(160, 0)[0]))).mean(0)
    return subject


def by_hand(subject: Classifier, data: Data | None, pipeline: Pipeline, seed: int) -> tuple[Tensor, Evaluation]:
    """The answers to all test images after every step [T, N], and the evaluation, calibrated on `data`."""
    assert data is not None and subject.test is not None and subject.test.labels is not None
    snn = convert(subject.network, Prepared(data, subject.card), T=T, pipeline=pipeline, seed=seed).snn
    images = torch.stack(list(Prepared(subject.test, subject.card)))
    return snn.run(images).outputs.argmax(-1), evaluate(snn, (images, subject.test.labels))


def cell_of(pipeline: Pipeline, seed: int) -> Cell:
    return Cell(kind="accuracy", model="nets.py:make", row="r", pipeline=pipeline, T=T, seed=seed, images=30)


def test_a_cell_depends_on_its_seed_pipeline_and_training_images(subject: Classifier) -> None:
    """By the firing rate, which tells apart what the accuracy of an untrained network does not."""

    def rate(data: Data | None, pipeline: Pipeline, seed: int) -> float:
        return statistics.fmean(by_hand(subject, data, pipeline, seed)[1].rates.values())

    cases = [(LCP, 0), (LCP, 1), (replace(BASELINE, rounding="floor"), 0)]
    expected = [rate(subject.train, *case) for case in cases]
    assert [subject.measure(cell_of(*case))["rate"] for case in cases] == pytest.approx(expected, rel=1e-6)
    apart = np.diff(sorted([*expected, rate(subject.test, LCP, 0)]))
    assert min(apart) > 1e-3 * max(expected)  # otherwise the line above could not fail


def test_a_cell_has_the_energy_of_its_network(subject: Classifier) -> None:
    for pipeline in (BASELINE, LCP):
        energy = by_hand(subject, subject.train, pipeline, 0)[1].energy
        assert energy is not None and energy.ratio is not None
        assert subject.measure(cell_of(pipeline, 0))["energy"] == pytest.approx(energy.snn_pj / energy.ann_pj)


def test_a_cell_counts_answers_after_the_last_step(subject: Classifier) -> None:
    """An earlier step has more correct answers, but using it would choose T on test images."""
    answers, _ = by_hand(subject, subject.train, BASELINE, 0)
    assert subject.test is not None
    subject.test = replace(subject.test, labels=answers[1])
    right = (answers == answers[1]).double().mean(1).tolist()
    assert right[-1] < right[1] == 1
    assert subject.measure(cell_of(BASELINE, 0))["score"] == pytest.approx(right[-1])


# What the words of a label say of its pipeline, beside the half step on the bias, or of where its images come from.
WORDS: dict[str, dict[str, Any]] = {
    "MaxAct": {"threshold": MaxAct(per="layer", images=1024)},
    "Percentile 99.99 %": {"threshold": Percentile(per="layer", images=1024, percent=99.99)},
    "MMSE": {"threshold": MMSE(per="layer", images=1024, grid=100)},
    "MMSE*": {"threshold": MMSE(per="channel", images=1024, grid=100)},
    "ClipFloor": {"rounding": "floor"},
    "ClipRound": {"rounding": "bias"},
    "Baseline": {},
    "uncalibrated": {},
    "LCP": {"sweeps": ((Bias(images=128),),)},
    "PC": {"sweeps": ((Potential(images=128),),)},
    "ACP": {"sweeps": ((Potential(images=128), Weights(images=1024)),)},
    "Bias": {"sweeps": ((Bias(images=128),),)},
    "Potential": {"sweeps": ((Potential(images=128),),)},
    "Weights": {"sweeps": ((Weights(images=1024),),)},
    "Real images": {},
    "Distilled images": {"source": "distilled"},
    "Distilled from two networks": {"source": "several"},
    "Other real images": {"source": "other"},
    "Gaussian noise": {"source": "noise"},
}


def described(label: str) -> Row:
    """A row made of nothing but the words of its label."""
    words, count = label, None
    if found := re.fullmatch(r"(.*), ([\d,]+) images", label):
        words, count = found[1], int(found[2].replace(",", ""))
    said: dict[str, Any] = {"threshold": WORDS["MMSE*"]["threshold"], "rounding": "bias"}
    for word in re.split(r" \+ |, ", words):
        said |= WORDS[word]
    source = said.pop("source", "")
    pipeline = Pipeline(**said)
    if count is not None:
        pipeline = pipeline.changed({"LCP": Bias, "ACP": Weights}[words], images=count)
    return Row(label=label, pipeline=pipeline, source=source)


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_what_their_labels_say(name: str) -> None:
    rows = TABLES[name].rows
    assert [replace(row, added=False, elsewhere=None) for row in rows] == [described(row.label) for row in rows]
    assert len({row.label for row in rows}) == len(rows)


def test_sizes_without_flags() -> None:
    """The names in `spikecal reproduce --help` and the documentation."""
    usual = Sizes(
        images=1000, seeds=3, iterations=500, batch=16, weights=256, long_images=100, long_seeds=1, long_calibration=32
    )
    assert find("lcp").sized(False, {}) == Sizes() == usual
    assert find("fakedata").sized(False, {}) == replace(usual, images=2000)
