"""Early exit: the rule against brute force and the exact binomial, and its promise on images it has not seen."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import dyadic, dyadic_images, images, residual
from torch import nn

import spikecal
from spikecal.analysis.exits import FACTORS, ExitRule, Exits, at_least, at_most, choose_rule, distances, margins
from spikecal.errors import ConfigError, DataError


def rule(scales: list[float], factor: float = 1.0, agreement: float = 0.9) -> ExitRule:
    return ExitRule(
        agreement=agreement, factor=factor, scales=tuple(scales), confidence=0.95, images=100, agreed=100
    )  # fmt: skip


@given(st.integers(1, 40), st.integers(1, 99), st.data())
def test_tails_are_those_of_the_binomial(images: int, percent: int, data: st.DataObject) -> None:
    seen, p = data.draw(st.integers(0, images)), Fraction(percent, 100)
    terms = [math.comb(images, k) * p**k * (1 - p) ** (images - k) for k in range(images + 1)]
    assert at_most(seen, images, percent / 100) == pytest.approx(float(sum(terms[: seen + 1])), abs=1e-9)
    assert at_least(seen, images, percent / 100) == pytest.approx(float(sum(terms[seen:])), abs=1e-9)


def test_an_answer_is_settled_at_the_first_step_with_the_margin() -> None:
    outputs = torch.randn(6, 50, 4, generator=torch.Generator().manual_seed(0))
    found = rule([2.0, 1.0, 3.0, 1.0, 0.5, 9.0]).settled(outputs)
    for image, steps in enumerate(found.tolist()):
        ordered = outputs[:, image].sort(-1, descending=True).values
        enough = [float(a - b) for a, b in ordered[:, :2].tolist()]
        limits = [2.0, 1.0, 3.0, 1.0, 0.5, 9.0]
        assert steps == next((t + 1 for t in range(5) if enough[t] >= limits[t]), 6)
    assert (rule([1.0] * 6, math.inf).settled(outputs) == 6).all()
    assert (rule([1.0] * 6, 0.0).settled(outputs) == 1).all()


@pytest.mark.parametrize("waits", [False, True])
def test_stopping_step_by_step_is_what_evaluation_counts(waits: bool) -> None:
    model, x = dyadic(), dyadic_images(24)
    result = spikecal.convert(model, dyadic_images(16, seed=5), T=8, pipeline="maxact", latency="+4" if waits else None)
    snn, labels = result.snn, torch.arange(24) % 3
    answers = model(x).argmax(1)
    early = rule(margins(snn.run(x).outputs).quantile(0.75, dim=1).add(0.01).tolist())
    found = spikecal.evaluate(snn, (x, labels), ann=model, exit=early).exits
    assert found is not None and 1 < found.steps < 8 and found.wait == snn.latency - 8
    outputs, steps = early.run(snn, x)
    assert torch.bincount(steps - 1, minlength=8).tolist() == found.settled
    assert found.accuracy == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))
    assert found.agreement == pytest.approx(float((outputs.argmax(1) == answers).float().mean()))
    assert found.curve[-1] == pytest.approx(found.accuracy)
    # spikes: those of each image alone, until it is stopped
    alone = (snn.counted(x[i : i + 1], steps=t)[1] for i, t in enumerate(steps.tolist()))
    spikes = sum(int(counts.sum()) for run in alone for counts in run.values())
    assert found.energy is not None and found.energy.spikes == pytest.approx(spikes / 24)


def test_without_early_answers_nothing_changes() -> None:
    snn, x = spikecal.convert(residual(), images(16), T=5).snn, images(16, seed=3)
    labels = torch.arange(16) % 5
    whole = spikecal.evaluate(snn, (x, labels), ann=residual(), exit=rule([1.0] * 5, math.inf))
    assert whole.exits is not None and whole.energy is not None and whole.exits.energy is not None
    assert (whole.exits.steps, whole.exits.accuracy) == (5.0, whole.accuracy[-1])
    assert whole.exits.curve == whole.accuracy and whole.exits.agreement == whole.agreement[-1]
    assert whole.exits.energy.snn_pj == pytest.approx(whole.energy.snn_pj)
    assert spikecal.evaluate(snn, (x, labels)).exits is None


def test_the_promise_holds_on_images_that_did_not_set_the_rule() -> None:
    """Calibration and test images of one distribution: with confidence 95 %, no more than 5 % of rules may fail."""
    model = residual()
    snn = spikecal.convert(model, images(64), T=32, pipeline="lcp").snn
    found = spikecal.exit_rule(snn, images(800, seed=7), ann=model, agreement=0.9)
    tested = spikecal.evaluate(snn, images(1500, seed=8), ann=model, exit=found).exits
    assert tested is not None and tested.agreement is not None
    assert tested.agreement >= 0.9 and tested.verdict == "kept"
    assert tested.steps < 24  # and it is worth something
    assert found.agreed / found.images >= 0.9


def test_every_fourth_image_measures_the_scales() -> None:
    """So that images which come sorted by class choose the factor and the scales alike."""
    model, x = residual(), images(64, seed=7)
    snn = spikecal.convert(model, images(16), T=8, pipeline="lcp").snn
    found = spikecal.exit_rule(snn, x, ann=model, agreement=0.2)
    expected = distances(snn.run(x[::4]).outputs, model(x[::4])).mean(1).sqrt()
    assert found.scales == pytest.approx(expected.tolist(), rel=1e-5) and found.images == 48


def test_few_rules_break_their_promise() -> None:
    """Margins and agreement drawn with known chances: the true share of the rule that is chosen is computed exactly."""
    generator = torch.Generator().manual_seed(0)
    T, broken, drawn = 4, 0, 120

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        margin = torch.rand(T, count, generator=generator) * torch.arange(1, T + 1)[:, None]
        wrong = 0.4 * torch.exp(-2 * margin) + 0.004
        return margin, torch.rand(T, count, generator=generator) >= wrong

    margin, agree = draw(50_000)
    for _ in range(drawn):
        try:
            chosen = choose_rule(*draw(400), [1.0] * T, 0.95, 0.9)
        except ConfigError:
            continue
        enough = margin >= chosen.factor
        enough[-1] = True
        steps = enough.int().argmax(0)
        broken += float(agree[steps, torch.arange(len(steps))].double().mean()) < 0.95
    assert broken <= 0.1 * drawn + 3 * math.sqrt(0.09 * drawn)
    assert list(FACTORS) == sorted(FACTORS, reverse=True)


def test_impossible_promises_are_refused() -> None:
    snn, x = spikecal.convert(residual(), images(16), T=2, pipeline="maxact").snn, images(64, seed=3)
    with pytest.raises(ConfigError, match=r"T = 2 cannot promise 99 %: after all steps \d+ of 48 calibration images"):
        spikecal.exit_rule(snn, x, ann=residual())
    for agreement in (0, 1.0, 99, True):
        with pytest.raises(ConfigError, match="a share between 0 and 1"):
            spikecal.exit_rule(snn, x, ann=residual(), agreement=agreement)
    with pytest.raises(DataError, match="at least 4 images"):
        spikecal.exit_rule(snn, x[:3], ann=residual())
    with pytest.raises(ConfigError, match="for T=5, but the network has T=2"):
        spikecal.evaluate(snn, x, ann=residual(), exit=rule([1.0] * 5))
    with pytest.raises(ConfigError, match="for T=5, but the network has T=2"):
        rule([1.0] * 5).run(snn, x)


class Dense(nn.Module):
    """A class for each pixel."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())


class Number(Dense):
    """One number for each image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean((2, 3))


@pytest.mark.parametrize(
    ("make", "said"), [(Dense, "one output of classes"), (lambda: Number(1), "at least two classes")]
)
def test_only_classifiers_have_answers_to_settle(make: Callable[[], nn.Module], said: str) -> None:
    model, x = make().eval(), images(16, seed=3)
    snn = spikecal.convert(model, images(16), T=2, pipeline="maxact").snn
    with pytest.raises(DataError, match=said):
        spikecal.exit_rule(snn, x, ann=model)
    with pytest.raises(DataError, match=said):
        spikecal.evaluate(snn, x, exit=rule([1.0, 1.0]), ann=model)


def test_verdicts() -> None:
    def of(agreed: int, images: int = 1000) -> Exits:
        return Exits(rule=rule([1.0], agreement=0.99), settled=[images], agreed=[agreed])

    assert [of(n).verdict for n in (995, 990, 988, 950)] == ["kept", "kept", "level", "broken"]
    assert Exits(rule=rule([1.0]), settled=[10], right=[9]).verdict == "unknown"
    assert Exits(rule=rule([1.0, 1.0, 1.0]), settled=[5, 4, 1]).by(0.5) == 1
    assert Exits(rule=rule([1.0, 1.0, 1.0]), settled=[5, 4, 1]).by(1.0) == 3
