"""Detections on the page: what both detectors find, in a real browser, and what a file keeps of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from detection.scenes import tiny_detector, voc
from report.browser import Page, chromium
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from torch import nn

from spikecal import detection
from spikecal.report.content import NOTHING, build
from spikecal.report.detections import LEAST, Detected, look_at_detector, stops
from spikecal.report.measure import Measured
from spikecal.report.source import Source, from_file
from spikecal.tasks.detection import measured_precision, precisions
from spikecal.tasks.pages import write_report

STEPS = (2, 6)


@pytest.fixture(scope="module")
def detector() -> nn.Module:
    """A detector with scores around one half."""
    made: Any = tiny_detector()
    nn.init.constant_(made.head.classification_head.cls_logits.bias, 0.0)
    return made


@pytest.fixture(scope="module")
def source(detector: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Source:
    data = detection.load_boxes(f"voc:{voc(tmp_path_factory.mktemp('voc'))}", "test")
    made = detection.convert(detector, data, T=list(STEPS), pipeline="lcp")
    found = precisions(detector, {T: made.at(T) for T in STEPS}, data, None)
    made.body.describe(measured=measured_precision(data.name, found))
    path = tmp_path_factory.mktemp("file") / "d.snn"
    made.save(path)
    return from_file(path)


@pytest.fixture(scope="module")
def measured(source: Source, detector: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    data = detection.load_boxes(f"voc:{voc(tmp_path_factory.mktemp('voc'))}", "test")
    bodies = {T: detection.spiking.with_body(detector, network) for T, network in source.networks.items()}
    found = precisions(detector, bodies, data, None)
    return look_at_detector(source, detector, data, found["analog"], {T: found[str(T)] for T in STEPS})


def detected(measured: Measured) -> Detected:
    assert measured.detected is not None
    return measured.detected


@pytest.fixture(scope="module")
def page(source: Source, measured: Measured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(file, [(source, measured)])
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(file)
        browser.open(file)  # what the browser's own first page asked for is not this one's
        yield browser
        assert browser.errors() == []
        assert {url for url in browser.requests() if not url.startswith("data:")} <= {file.as_uri()}


def shown(page: Page) -> list[list[list[float]]]:
    """The boxes drawn on both pictures, as x0, y0, x1, y1."""
    return list(page.js(
        """const corners = (rect) => {
          const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
          return [x, y, x + w, y + h];
        };
        const pictures = [...document.querySelectorAll(".scenes svg")];
        return pictures.map((picture) => [...picture.querySelectorAll(".casing")].map(corners))"""
    ))  # fmt: skip


def boxes(found: dict[str, torch.Tensor], least: float) -> list[list[int]]:
    order = found["scores"].argsort(descending=True)
    rows = zip(found["boxes"][order].round().int().tolist(), found["scores"][order].tolist(), strict=True)
    # a box of no width is drawn a pixel wide
    return [[a, b, max(c, a + 1), max(d, b + 1)] for (a, b, c, d), score in rows if round(score, 3) >= least]


def test_the_slider_shows_what_both_find_after_each_step(page: Page, measured: Measured) -> None:
    numbers = set()
    for T in STEPS:
        Select(page.one("#shown")).select_by_visible_text(f"T = {T}")
        for i, sample in enumerate(detected(measured).samples[T]):
            page.js("arguments[0].click()", page.all("input[name=scene]")[i])
            slider = page.one("#stop")
            slider.send_keys(Keys.HOME)
            for stop in stops(T):
                assert page.one("#detections output[for=stop]").text == f"step {stop} of {T}"
                analog, spiking = shown(page)
                assert analog == boxes(sample.analog, 0.5) and spiking == boxes(sample.spiking[stop], 0.5)
                both, missed, more = (int(page.one("#detected").get_attribute(f"data-{n}") or -1)
                                      for n in ("both", "missed", "more"))  # fmt: skip
                assert both + missed == len(analog) and both + more == len(spiking)
                dashed = page.js("return document.querySelectorAll('.scenes rect[stroke-dasharray]').length")
                assert dashed == missed + more
                numbers.add((both, missed, more))
                slider.send_keys(Keys.RIGHT)
    assert len(numbers) > 2, "the test should see several cases"


def test_scores_and_true_boxes(page: Page, measured: Measured) -> None:
    Select(page.one("#shown")).select_by_visible_text("T = 6")
    page.js("arguments[0].click()", page.all("input[name=scene]")[0])
    page.js("const s = document.querySelector('#least'); s.value = 0.1; s.dispatchEvent(new Event('input'))")
    first = detected(measured).samples[6][0]
    assert shown(page)[0] == boxes(first.analog, LEAST)[:60]
    assert page.all(".scenes .true") == []
    page.one("#truth").send_keys(Keys.SPACE)
    assert len(page.all(".scenes .true")) == 2 * len(detected(measured).truth[0].boxes)
    page.one("#truth").send_keys(Keys.SPACE)


def test_the_summary_is_of_map(page: Page, measured: Measured) -> None:
    text = page.one("#summary").text
    assert "with a spiking body" in text and "mAP at 0.5" in text and "accuracy" not in text
    assert f"{100 * detected(measured).analog.map:.1f} %" in text
    assert page.texts("#accuracy-title") == ["mAP over T"]
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")


def test_a_file_alone_shows_what_it_has_kept(source: Source, measured: Measured) -> None:
    content = build([(source, NOTHING)])
    assert content["scenes"] is None and content["all_map"]
    for facts in content["networks"]:
        assert facts["origin"] == "file" and facts["measure"] == "map"
        now = detected(measured).spiking[facts["T"]]
        assert now.energy is not None and facts["score"] == pytest.approx(now.map, abs=1e-5)
        assert facts["spikes"] == pytest.approx(now.energy.spikes, rel=1e-4)
        assert facts["energy"] == pytest.approx(now.energy.ratio, rel=1e-4)


def test_images_too_large_to_follow_are_reported(
    source: Source, detector: nn.Module, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = detection.load_boxes(f"voc:{voc(tmp_path)}", "test")
    monkeypatch.setattr("spikecal.report.detections.HELD_FLOATS", 4 * 8 * 24 * 32)  # four steps of the largest value
    one = detected(measured)
    found = look_at_detector(source, detector, data, one.analog, one.spiking)
    assert set(found.errors) == {2} and set(found.energy) == {2, 6} and found.samples is None
    assert "too large to follow" in found.notes[0] and "T = 6" in found.notes[0]
    for T in STEPS:
        for sample, before in zip(detected(found).samples[T], one.samples[T], strict=True):
            torch.testing.assert_close(sample.spiking[T]["scores"], before.spiking[T]["scores"])


def test_stops() -> None:
    assert stops(1) == [1] and stops(6) == [1, 2, 3, 4, 6] and stops(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
