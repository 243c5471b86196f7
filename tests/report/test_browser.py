"""The page in a real browser: it shows what was measured, works by keyboard, and makes no requests."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from report.browser import Page
from report.conftest import CLASSES, HOSTILE, STEPS, Conversion, rename
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

import spikecal
from spikecal.report.content import NOTHING, Seen
from spikecal.report.measure import look
from spikecal.report.source import from_file, from_result
from spikecal.tasks.pages import write_report
from spikecal.tasks.summary import measure

LONG = "n" * 60


@pytest.fixture(scope="module")
def seen(conversion: Conversion) -> list[Seen]:
    """The file, and a second conversion beside it: thresholds only."""
    found: list[Seen] = []
    other = spikecal.convert(conversion.model, conversion.images(), T=8, pipeline="baseline")
    for source in (from_file(conversion.path), from_result("baseline", other)):
        networks = [source.networks[T] for T in sorted(source.networks)]
        summary, _ = measure(networks, conversion.model, conversion.data, conversion.card, "test")
        samples = found[0][1].samples if found else None
        measured = look(source, conversion.model, conversion.data, conversion.card, summary, samples=samples)
        found.append((source, measured))
    return found


@pytest.fixture(scope="module")
def file(seen: list[Seen], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(path, seen)
    return path


@pytest.fixture
def page(browser: Page, file: Path) -> Iterator[Page]:
    """The page as it opens; after any test, there are no errors and no requests."""
    browser.open(file)
    yield browser
    assert browser.errors() == []
    assert {url for url in browser.requests() if not url.startswith("data:")} <= {file.as_uri()}


def test_opens_quickly(browser: Page, file: Path) -> None:
    browser.open(file)
    assert browser.open(file) < 5  # two seconds on a machine that does nothing else


def test_slider_shows_the_answer_of_the_run(page: Page, conversion: Conversion, seen: list[Seen]) -> None:
    samples = seen[0][1].samples
    assert samples is not None
    for T in STEPS:
        Select(page.one("#shown")).select_by_visible_text(f"net.snn, T = {T}")
        for i in (0, len(samples.images) - 1):
            page.js("arguments[0].click()", page.all("input[name=image]")[i])
            answers = conversion.result.at(T).run(samples.images[i : i + 1]).outputs[:, 0].argmax(-1).tolist()
            slider = page.one("#step")
            slider.send_keys(Keys.HOME)
            shown = []
            for step in range(1, T + 1):
                assert slider.get_attribute("value") == str(step)
                assert page.one(".stepper output").text == f"step {step} of {T}"
                shown.append(int(page.one("#answer").get_attribute("data-answer") or -1))
                assert page.texts("#answer b") == [CLASSES[shown[-1]]]
                assert page.texts(".classes .name.top-one")[0].split()[0] == CLASSES[shown[-1]]
                slider.send_keys(Keys.RIGHT)
            assert shown == answers


def test_output_bars_are_the_running_means(page: Page, conversion: Conversion, seen: list[Seen]) -> None:
    Select(page.one("#shown")).select_by_visible_text("net.snn, T = 8")
    samples = seen[0][1].samples
    assert samples is not None
    chosen = int(page.js("return document.querySelector('input[name=image]:checked').value"))
    page.js("const s = document.querySelector('#step'); s.value = 3; s.dispatchEvent(new Event('input'))")
    outputs = conversion.result.at(8).run(samples.images[chosen : chosen + 1]).outputs[2, 0]
    assert [float(text) for text in page.texts(".classes .value")] == pytest.approx(outputs.tolist(), abs=0.0051)


def column(page: Page, key: str) -> list[Any]:
    """The cells of a column of the layer table, as shown."""
    return list(page.js(
        """const heads = [...document.querySelectorAll(".layers thead button")].map((b) => b.dataset.key);
        const at = heads.indexOf(arguments[0]);
        return [...document.querySelectorAll(".layers tbody tr[data-layer]")].map((r) => r.cells[at].textContent)""",
        key,
    ))  # fmt: skip


def test_sorting_sorts(page: Page, conversion: Conversion) -> None:
    def sort(key: str) -> str | None:
        page.one(f'.layers thead button[data-key="{key}"]').send_keys(Keys.ENTER)
        assert page.js("return document.activeElement.dataset.key") == key
        return page.one(f'.layers thead th:has(button[data-key="{key}"])').get_attribute("aria-sort")

    names = [stage.name for stage in conversion.result.snn.stages]
    assert column(page, "name") == names
    assert sort("error") == "descending"
    errors = [float(text) for text in column(page, "error")]
    assert errors == sorted(errors, reverse=True)
    assert sort("error") == "ascending"
    assert [float(text) for text in column(page, "error")] == sorted(errors)
    assert sort("rate") == "descending"
    rates = column(page, "rate")
    assert rates[-1] == "–"  # a joint has no neurons: it is last whichever way
    assert sort("rate") == "ascending"
    assert column(page, "rate")[-1] == "–"
    assert len(page.all(".layers th[aria-sort]")) == 1
    assert sort("order") == "ascending"
    assert column(page, "name") == names


def test_row_opens_to_histogram_threshold_and_errors(page: Page, conversion: Conversion) -> None:
    Select(page.one("#shown")).select_by_visible_text("net.snn, T = 8")
    button = page.one(".layers tbody th button")
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    detail = page.one(f"#{button.get_attribute('aria-controls')}")
    page.wait(lambda: detail.find_elements("css selector", "svg rect"))
    text = detail.text
    record = next(r for r in conversion.result.records if r.T == 8)
    for said in ("Activations of the original", "threshold", "before", "after bias", "unevenness", "Firing rates"):
        assert said in text
    assert f"{record.errors[-1][1]:.3g}" in text
    button.send_keys(Keys.SPACE)
    assert not detail.is_displayed()


def test_networks_are_compared_side_by_side(page: Page) -> None:
    assert page.texts(".networks .group span") == ["LCP", "BASELINE"]
    Select(page.one("#shown")).select_by_visible_text("net.snn, T = 8")
    Select(page.one("#compare")).select_by_visible_text("net.snn, T = 4")
    here, other = column(page, "error"), column(page, "other-error")
    assert len(here) == len(other)
    assert here != other
    assert "T = 4" in page.one('button[data-key="other-error"]').text
    Select(page.one("#shown")).select_by_visible_text("net.snn, T = 4")
    assert column(page, "error") == other
    assert len(page.texts(".legend button")) == 3


def test_chart_reads_out_by_key_and_pointer(page: Page, seen: list[Seen]) -> None:
    summary = seen[0][1].summary
    assert summary is not None
    slider = page.one("#chart-step")
    slider.send_keys(Keys.HOME, Keys.RIGHT)
    assert page.texts("#accuracy .readout b")[0] == "Step 2"
    assert f"{100 * summary.found[0].accuracy[1]:.1f} %" in page.one("#accuracy .readout").text

    def pointed() -> bool:  # again where the page was still moving under the pointer
        picture = page.one(".chart svg")
        for right in (0, picture.size["width"] // 2 - 20):
            ActionChains(page.driver).move_to_element_with_offset(picture, right, 0).perform()
        return page.texts("#accuracy .readout b")[0] == "Step 8"

    page.wait(pointed)
    hidden = page.one(".legend button")
    curves = len(page.all(".chart polyline"))
    hidden.click()
    assert hidden.get_attribute("aria-pressed") == "false"
    assert len(page.all(".chart polyline")) == curves - 1


def test_graph_is_walked_by_arrow_keys_and_opens_layers(page: Page, conversion: Conversion) -> None:
    nodes = page.all("#network .node")
    stages = conversion.result.snn.stages
    assert len(nodes) == len(stages) + 1
    assert len(page.all("#network .node[tabindex='0']")) == 1
    page.js("arguments[0].focus()", nodes[0])
    ActionChains(page.driver).send_keys(Keys.RIGHT, Keys.RIGHT).perform()
    assert page.texts("#network .readout b")[0] == stages[1].name
    before = [page.js("return arguments[0].querySelector('rect').style.fill", node) for node in nodes]
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    assert page.js("return document.activeElement.textContent") == stages[1].name
    assert page.js("return document.activeElement.getAttribute('aria-expanded')") == "true"
    Select(page.one("#colouring")).select_by_value("error")
    after = [page.js("return arguments[0].querySelector('rect').style.fill", n) for n in page.all("#network .node")]
    assert before != after


def test_tab_key_reaches_every_control(page: Page) -> None:
    page.js("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        found = page.js(
            "const e = document.activeElement; return e.id || e.dataset.key || e.name || e.getAttribute('class')"
        )
        reached.add(found)
        outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
        # the last two show it on what they contain, and after the last control the focus leaves the page
        assert outline != "none" or found in (None, "image", "node"), found
    assert {"shown", "compare", "chart-step", "image", "step", "raster-layer", "colouring", "error", "node"} <= reached


def out_of_sight(browser: Page) -> list[str]:
    """What goes over the right edge of a phone."""
    return list(browser.js(
        """return [...document.querySelectorAll("main *")].filter((e) => {
          const box = e.getBoundingClientRect();
          return box.right > 361 && box.width && !e.closest(".scroll");
        }).map((e) => e.outerHTML.slice(0, 80))"""
    ))  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(browser: Page, file: Path, scheme: str) -> None:
    browser.open(file, width=360, height=740, scheme=scheme)
    browser.one(".layers tbody th button").send_keys(Keys.ENTER)
    wide = browser.js("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1] <= 360
    assert out_of_sight(browser) == []
    light = browser.js("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128")
    assert light == (scheme == "light")
    assert browser.errors() == []


def test_long_names_fit_a_phone(browser: Page, conversion: Conversion, tmp_path: Path) -> None:
    model = torch.nn.Sequential()
    body: torch.nn.Module = torch.nn.Sequential(
        OrderedDict([("c" * 30, torch.nn.Conv2d(3, 4, 3)), (LONG, torch.nn.ReLU())])
    )
    model.add_module("constructor", body)
    model.add_module("end", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(400, 5)))
    source = from_result("long", spikecal.convert(model.eval(), conversion.images()[:40], T=4))
    write_report(tmp_path / "long.html", [(source, look(source, model, conversion.data, conversion.card, None))])
    browser.open(tmp_path / "long.html", width=360, height=740)
    for button in browser.all(".layers tbody th button"):
        button.send_keys(Keys.ENTER)
    browser.js("document.querySelectorAll('#network .node')[1].focus()")
    assert LONG in browser.one("#raster-layer").text
    assert out_of_sight(browser) == []
    assert browser.js("return document.documentElement.scrollWidth") <= 360
    detail = browser.all(".layers tr.detail")[-1].text  # the output has no neurons
    assert "calibration" in detail.split("Where the error comes from")[1].split("Squared")[0]
    assert "unevenness" not in detail
    assert browser.errors() == []


def test_numbers_in_the_graph_have_contrast(page: Page) -> None:
    for by in ("rate", "error"):
        Select(page.one("#colouring")).select_by_value(by)
        pairs = page.js(
            """return [...document.querySelectorAll("#network .node")].map((node) => ["rect", "text"].map((name) =>
              "#" + getComputedStyle(node.querySelector(name)).fill.match(/\\d+/g).slice(0, 3)
                .map((c) => Number(c).toString(16).padStart(2, "0")).join("")))"""
        )
        assert len(pairs) > 3
        assert min(contrast(*pair) for pair in pairs) >= 4.5


def test_layers_named_as_parts_of_objects(browser: Page, conversion: Conversion, tmp_path: Path) -> None:
    names = ["constructor", "toString", "__proto__", "valueOf", "hasOwnProperty"]
    network = spikecal.load(conversion.path, T=8)
    renamed = dict(zip((stage.name for stage in network.stages if stage.spiking), names, strict=True))
    rename(network, renamed).save(tmp_path / "odd.snn")
    write_report(tmp_path / "odd.html", [(from_file(tmp_path / "odd.snn"), NOTHING)])
    browser.open(tmp_path / "odd.html")
    for button in browser.all(".layers tbody th button"):
        button.send_keys(Keys.ENTER)
    assert browser.one("#layers").text.count("has no histogram") == len(names)
    assert browser.errors() == []


def test_text_has_contrast_in_light_and_dark(browser: Page, file: Path) -> None:
    for scheme in ("light", "dark"):
        browser.open(file, scheme=scheme)
        for pair in (("--ink", "--paper"), ("--soft", "--paper"), ("--warn", "--warn-paper"), ("--soft", "--sunken")):
            one, two = (
                browser.js("return getComputedStyle(document.body).getPropertyValue(arguments[0])", v) for v in pair
            )
            assert contrast(one, two) >= 4.5, (scheme, pair)


def contrast(one: str, two: str) -> float:
    """WCAG's ratio of two colours `#rrggbb`."""

    def luminance(colour: str) -> float:
        channels = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_headings_are_in_order(page: Page) -> None:
    levels = [int(name[1]) for name in page.js(
        "return [...document.querySelectorAll('h1, h2, h3, h4')].map((e) => e.localName)"
    )]  # fmt: skip
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_hostile_names_are_shown_and_not_run(
    browser: Page, hostile: Path, tmp_path: Path, conversion: Conversion
) -> None:
    source = from_file(hostile)
    write_report(tmp_path / "bad.html", [(source, look(source, None, conversion.data, conversion.card, None))])
    browser.open(tmp_path / "bad.html")
    for button in browser.all(".layers tbody th button")[:2]:
        button.send_keys(Keys.ENTER)
    browser.js("document.querySelector('#network .node').focus()")
    assert browser.texts(".layers tbody th button")[0].startswith(HOSTILE)
    assert HOSTILE in browser.driver.title
    assert browser.all("img[src=x]") == []
    assert browser.errors() == []
    assert all(url.startswith(("file:", "data:")) for url in browser.requests())


def test_page_of_a_file_alone(browser: Page, conversion: Conversion, tmp_path: Path) -> None:
    write_report(tmp_path / "alone.html", [(from_file(conversion.path), NOTHING)], ["no images were run"])
    browser.open(tmp_path / "alone.html")
    assert "no images were run" in browser.one(".notes").text
    assert "no spikes to show" in browser.one("#spikes").text
    assert "have not been measured" in browser.one("#accuracy").text
    browser.one(".layers tbody th button").send_keys(Keys.ENTER)
    assert "after bias" in browser.one("#layers").text
    assert browser.errors() == []


def test_read_out_of_what_a_file_has_kept(browser: Page, conversion: Conversion, tmp_path: Path) -> None:
    kept = {"data": "d", "split": "test", "images": 100, "ann": 0.9, "measure": "accuracy"}
    numbers = {"score": 0.625, "agreement": None, "energy_ratio": 0.5}
    source = replace(from_file(conversion.path, [8]), measured=kept | {"networks": {8: numbers}})
    write_report(tmp_path / "kept.html", [(source, NOTHING)])
    browser.open(tmp_path / "kept.html")
    assert browser.texts("#accuracy .readout b") == ["Step 8", "62.5 %", "90.0 %"]
    browser.one("#chart-step").send_keys(Keys.LEFT)
    assert browser.texts("#accuracy .readout b") == ["Step 7", "–", "90.0 %"]


def test_bars_stay_clear_of_the_digits_and_errors_share_a_scale(page: Page) -> None:
    cells = page.js(
        """return [...document.querySelectorAll(".layers td.meter")].map((cell) => {
             const bar = getComputedStyle(cell, "::before"), box = cell.getBoundingClientRect();
             const digits = cell.firstChild.getBoundingClientRect();
             return [box.bottom - parseFloat(bar.bottom) - parseFloat(bar.height), digits.bottom, digits.height];
           })"""
    )
    assert cells and all(top > bottom - 0.35 * height for top, bottom, height in cells)  # below the figures themselves
    pairs = page.js(
        """const keys = [...document.querySelectorAll(".layers thead button")].map((button) => button.dataset.key);
           const read = (cell) => [cell.textContent, cell.style.getPropertyValue("--share")].map(parseFloat);
           return [...document.querySelectorAll(".layers tr[data-layer]")].map((row) =>
             ["after", "error"].map((key) => read(row.children[keys.indexOf(key)])));"""
    )
    scales = [value / share for row in pairs for value, share in row if share and share > 0.05 and value == value]
    assert len(scales) > 2 and max(scales) < 1.1 * min(scales)


def test_the_activity_map_has_a_legend(page: Page) -> None:
    legend = page.one("#activity-scale")
    assert legend.text.startswith("0 %") and legend.text.endswith("% of a layer's neurons fire")
    assert page.one("#activity-scale canvas").size["width"] > 20


def test_play_runs_to_the_end(page: Page) -> None:
    Select(page.one("#shown")).select_by_visible_text("net.snn, T = 8")
    page.one("#step").send_keys(Keys.HOME)
    button = page.one(".stepper button")
    button.send_keys(Keys.ENTER)
    assert button.text == "Pause"
    page.wait(lambda: page.one(".stepper output").text == "step 8 of 8")
    page.wait(lambda: button.text == "Play")
