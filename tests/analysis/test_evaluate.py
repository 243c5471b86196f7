"""Evaluation: anytime curves, agreement, which T is needed; what a conversion costs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import images, residual
from torch import nn

import spikecal
from spikecal.analysis.complexity import parameter_bytes, timing
from spikecal.analysis.evaluate import Evaluation, first_within, original, steps_needed
from spikecal.calibration.calibrators import Weights
from spikecal.errors import ConfigError, DataError
from spikecal.evaluation import accuracy
from spikecal.figures import accuracy_against_images
from spikecal.pipeline import ACP
from spikecal.snn.origin import Origin, Timings

LABELS = torch.arange(16) % 5


def test_agreement_and_the_anns_accuracy_come_from_the_same_run() -> None:
    snn, x = spikecal.convert(residual(), images(16), T=5).snn, images(16, seed=3)
    found = spikecal.evaluate(snn, (x, LABELS), ann=residual())
    answers = residual()(x).argmax(1)
    steps = snn.run(x).outputs.argmax(-1)
    assert found.agreement == pytest.approx([float((step == answers).float().mean()) for step in steps])
    assert found.ann == pytest.approx(float((answers == LABELS).float().mean())) == accuracy(residual(), (x, LABELS))
    assert (found.curve, found.target) == (found.accuracy, found.ann)
    assert found.correct == (steps[-1] == LABELS).tolist()
    assert spikecal.evaluate(snn, [(x[:7], LABELS[:7]), (x[7:], LABELS[7:])]).correct == found.correct
    assert spikecal.evaluate(snn, x, ann=residual()).correct == []


def test_images_of_a_batch_may_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = spikecal.convert(residual(), images(16), T=5).snn, images(16, seed=3)
    whole, run = spikecal.evaluate(snn, (x, LABELS), ann=residual()), snn.run(x)
    monkeypatch.setattr("spikecal.snn.execute.CALL_FLOATS", 1)
    assert snn.images_per_call(x) == 1
    parts = spikecal.evaluate(snn, (x, LABELS), ann=residual())
    assert (parts.images, parts.neurons, parts.classes) == (16, sum(c.numel() for c in run.spikes.values()), 5)
    assert parts.spikes == pytest.approx(
        sum(int(c.sum()) for c in run.spikes.values()), rel=1e-3
    )  # rounding may flip one
    assert parts.accuracy == pytest.approx(whole.accuracy) and parts.agreement == pytest.approx(whole.agreement)
    assert parts.energy is not None and whole.energy is not None
    assert parts.energy.images == 16 and parts.energy.snn_pj == pytest.approx(whole.energy.snn_pj, rel=1e-3)


def test_without_labels_the_ann_is_the_measure() -> None:
    snn, x = spikecal.convert(residual(), images(16), T=5).snn, images(16, seed=3)
    expected = spikecal.evaluate(snn, (x, LABELS), ann=residual()).agreement
    for data in (x, [x[:7], x[7:]], list(x)):
        found = spikecal.evaluate(snn, data, ann=residual())
        assert (found.accuracy, found.ann, found.target) == ([], None, 1.0)
        assert found.agreement == found.curve == expected
    with pytest.raises(DataError, match="the ANN to compare with"):
        spikecal.evaluate(snn, x)
    with pytest.raises(ConfigError, match="needs the ANN"):
        spikecal.evaluate(snn, (x, LABELS)).first_within(1)


def test_first_step_that_stays() -> None:
    assert first_within([0.5, 0.91, 0.89, 0.90, 0.92], 0.91, 1) == 4  # it leaves after step 2
    assert first_within([0.91, 0.91], 0.91, 0) == 1
    assert first_within([0.9, 0.8], 0.9, 1) is None
    assert first_within([0.7], 0.71, 1) == 1  # exactly one point
    assert first_within([0.1, 0.95], 0.9, 0) == 2  # better than the ANN is near enough


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(0, 100), st.integers(0, 20))
def test_first_step_against_its_definition(right: list[int], target: int, points: int) -> None:
    near = [value >= target - points for value in right]
    stays = [t + 1 for t in range(len(near)) if all(near[t:])]
    assert first_within([value / 100 for value in right], target / 100, points) == (stays[0] if stays else None)


def test_fewest_steps_that_are_enough() -> None:
    found = [Evaluation(T, 10, [last], {}, ann=0.9) for T, last in ((32, 0.9), (16, 0.895), (8, 0.7))]
    needed = steps_needed(found, 1)
    assert needed is not None and needed.T == 16
    assert steps_needed(found[2:], 1) is None


def test_the_ann_is_still_in_a_file_unless_weights_were_calibrated(tmp_path: Path) -> None:
    x = images(16)
    for pipeline, kept in (("lcp", True), ("pc", True), (ACP.changed(Weights, iterations=2), False)):
        spikecal.convert(residual(), x, T=4, pipeline=pipeline).save(tmp_path / "net.snn")  # type: ignore[arg-type]
        ann = original(spikecal.load(tmp_path / "net.snn"))
        assert (ann is not None) == kept
        if ann is not None:
            torch.testing.assert_close(ann.run(x), residual()(x), atol=1e-5, rtol=1e-4)
    assert original(spikecal.convert(residual(), x, T=4).snn) is None  # it does not state how it was made


def test_rate_of_a_network_counts_neurons() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2), nn.ReLU(), nn.Linear(2, 3))
    some = torch.rand(20, 3, 8, 8)
    snn = spikecal.convert(model.eval(), some, T=4).snn
    found = spikecal.evaluate(snn, (some, torch.zeros(20, dtype=torch.int64)))
    fired = torch.cat([counts.flatten(1) for counts in snn.run(some).spikes.values()], 1)
    assert fired.shape[1] == 146
    assert found.rate == pytest.approx(float(fired.double().mean()) / 4, rel=1e-6)
    assert found.rate != pytest.approx(sum(found.rates.values()) / 2, rel=1e-2)


def test_conversion_time_is_of_one_t_alone(tmp_path: Path) -> None:
    phases = {"lower": 1.0, "thresholds": 2.0, "T=4": 3.0, "T=8": 5.0}
    assert Timings.from_dict(phases).alone() == {4: 6.0, 8: 8.0}
    assert Timings.from_dict(phases).to_dict() == phases
    (tmp_path / "net.snn.json").write_text('{"seconds": {"T=²": 7.0}}')
    assert Timings.beside(tmp_path / "net.snn").alone() == {}


def test_what_a_conversion_costs() -> None:
    result = spikecal.convert(residual(), images(16), T=[2, 4])
    found = timing(result)
    assert set(found.phases) == {"lower", "thresholds", "T=2", "T=4"}
    for T in (2, 4):
        stages = [stage.seconds for stage in found.stages if stage.T == T]
        assert len(stages) == len(result.snn.stages)
        assert 0 < sum(stages) <= found.phases[f"T={T}"] <= found.total
    # stem, sum and trunk 8 channels of 8x8 (the latter two pooled to 4x4), branches 4, output
    sizes = parameter_bytes(result.snn.graph, (images(1),))
    assert sizes == {
        "bias": 4 * (8 + 8 + 8 + 4 + 4 + 5),
        "potential": 4 * (8 * 64 + 2 * 8 * 16 + 2 * 4 * 16),
        "weights": 4 * (8 * 3 * 9 + 8 * 8 * 9 + 8 * 8 + 8 * 8 + 4 * 2 * 9 + 4 * 8 + 5 * 8),
    }


def test_accuracy_against_images() -> None:
    test = (images(20, seed=4), torch.arange(20) % 5)
    found = accuracy_against_images(residual(), images(32), test, (4, 32), T=4, seeds=(0, 1))
    assert {count: len(values) for count, values in found.items()} == {4: 2, 32: 2}
    alone = spikecal.convert(residual(), images(32), T=4, pipeline="lcp", seed=1).snn
    assert found[32][1] == spikecal.evaluate(alone, test).accuracy[-1]


@pytest.mark.parametrize("pipeline", [3, {"sweeps": 3}, {"sweeps": [[{"kind": "magic"}]]}, {"rounding": []}])
def test_a_file_with_nonsense_about_its_origin_is_refused(pipeline: Any) -> None:
    snn = spikecal.convert(residual(), images(4), T=2).snn
    snn.origin = Origin(pipelines={2: pipeline})
    with pytest.raises(spikecal.ConfigError):
        original(snn)
