"""Python can do what the command line can: check, load_model, reports, summaries, progress, public names."""

import inspect as inspection
import io
import re
from pathlib import Path

import pytest
import torch
from networks import images, residual
from torch import nn

import spikecal
from spikecal import ACP, LCP, ConfigError, Result, errors
from spikecal.progress import Lines

LABELS = torch.arange(12) % 5


@pytest.fixture(scope="module")
def result() -> Result:
    return spikecal.convert(residual(), images(16), T=[2, 4], pipeline=LCP)


def test_every_error_is_public_and_every_public_name_is_there() -> None:
    classes = {name for name, cls in vars(errors).items() if inspection.isclass(cls) and issubclass(cls, Exception)}
    assert classes <= set(spikecal.__all__)
    for name in spikecal.__all__:
        assert getattr(spikecal, name) is not None
    assert {"check", "load_model", "Card", "Calibrator", "Update", "Threshold", "StageView", "Neuron"} <= set(
        dir(spikecal)
    )


def test_check_lists_what_converts_and_its_cost() -> None:
    found = spikecal.check(residual(), images(4), T=8, pipeline="lcp")
    assert found.converts and not found.refused and found.estimate is not None and found.estimate.seconds > 0
    assert found.stages[0]["stage"] == "relu"
    assert "Residual: converts" in str(found) and "at T = 8 about" in repr(found) and "<table>" in found._repr_html_()


def test_check_lists_every_refused_place() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3), nn.GELU())
    found = spikecal.check(model, images(2))
    assert not found.converts and [error.layer for error in found.refused] == ["1", "3"]
    assert "Sequential: refused" in str(found) and "Sigmoid" in found._repr_html_()
    kept = spikecal.check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Sigmoid()), images(2), keep=["2"])
    assert kept.converts
    with pytest.raises(spikecal.DataError, match="some images as a tensor of floats"):
        spikecal.check(model, "images")


def test_load_model_is_that_of_the_command_line() -> None:
    model, card = spikecal.load_model("resnet20")
    assert isinstance(card, spikecal.Card) and card.size == (32, 32) and not model.training


def test_detectors_of_the_command_line_are_there_too() -> None:
    assert not spikecal.detection.load_detector("retinanet-r18-quarter").training
    with pytest.raises(ConfigError, match=r"spikecal.detection.load_detector\('retinanet-r18-quarter'\) gives it"):
        spikecal.load_model("retinanet-r18-quarter")


def test_a_result_shows_itself_as_a_table(result: Result) -> None:
    assert len(repr(result)) < 200 and "T=2 LCP, T=4 LCP" in repr(result)
    html = result._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == 3 and "LCP" in html
    assert re.search(r"^ *T +latency +pipeline +error of the output", str(result.summary()), re.MULTILINE)


def test_an_evaluation_shows_itself_in_a_line(result: Result) -> None:
    found = spikecal.evaluate(result.snn, (images(12, seed=5), LABELS), ann=residual())
    assert re.fullmatch(
        r"<spikecal.Evaluation: 12 images, T=4; accuracy [\d.]+ %; ANN [\d.]+ %; agreement [\d.]+ %; "
        r"energy [\d.]+ %; layers: 5>",
        repr(found),
    )


def test_names_are_escaped_in_notebooks() -> None:
    class Odd(nn.Sequential):
        pass

    Odd.__name__ = "<script>"
    assert "<script>" not in spikecal.check(Odd(nn.Linear(4, 3), nn.ReLU()), torch.rand(2, 4))._repr_html_()


def test_a_summary_on_images_is_that_of_the_command_line(result: Result, tmp_path: Path) -> None:
    table = result.summary((images(12, seed=5), LABELS))
    shown = dict(zip(table.names, table.rows[-1], strict=True))
    expected = spikecal.evaluate(result.snn, (images(12, seed=5), LABELS), ann=residual())
    assert shown["T"] == "4" and shown["accuracy %"] == f"{100 * expected.accuracy[-1]:.2f}"
    assert shown["as the ANN %"] == f"{100 * expected.agreement[-1]:.2f}"
    result.save(tmp_path / "net.snn")  # and it is in the file
    assert spikecal.inspect(tmp_path / "net.snn")["measured"]["images"] == 12
    assert f"{100 * expected.accuracy[-1]:.2f}" in str(result.summary())


def test_a_report_with_and_without_images(result: Result, tmp_path: Path) -> None:
    result.report(tmp_path / "bare.html")
    result.report(str(tmp_path / "seen.html"), (images(12, seed=5), LABELS))
    result.report(tmp_path / "unlabelled.html", images(12, seed=5))
    for name in ("bare", "seen", "unlabelled"):
        assert (tmp_path / f"{name}.html").read_text().lstrip().lower().startswith("<!doctype html>")
    assert "no images were run" in (tmp_path / "bare.html").read_text()
    with pytest.raises(ConfigError, match="there is no folder"):
        result.report(tmp_path / "nowhere" / "r.html")


def test_a_report_after_weights_were_calibrated_takes_the_model(tmp_path: Path) -> None:
    short = ACP.changed(spikecal.Weights, iterations=2, images=8)
    made = spikecal.convert(residual(), images(8), T=2, pipeline=short)
    made.report(tmp_path / "r.html", (images(12, seed=5), LABELS), ann=residual())
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_progress_as_a_function_an_object_or_a_bar(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[str, int, int]] = []
    spikecal.convert(residual(), images(8), T=2, pipeline=LCP, progress=lambda *call: calls.append(call))
    phases = dict.fromkeys(name for name, _, _ in calls)
    assert list(phases) == ["thresholds", "T=2"]
    stages = [done for name, done, total in calls if name == "T=2" and total == 6]
    assert stages == list(range(7))
    stream = io.StringIO()
    result = spikecal.convert(residual(), images(8), T=2, pipeline=LCP, progress=Lines(stream, every=0))
    assert "T=2: 6 of 6, fc.joint  error" in stream.getvalue()
    spikecal.evaluate(result.snn, (images(12), LABELS), progress=True)  # quick, and no terminal: no line
    spikecal.evaluate(result.snn, (images(12), LABELS), lambda *call: calls.append(call))
    assert calls[-1] == ("evaluate", 1, 1)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigError, match="progress must be True or a function"):
        spikecal.convert(residual(), images(8), T=2, pipeline=LCP, progress="yes")  # type: ignore[arg-type]
