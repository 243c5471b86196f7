"""Networks that wait, on the page: in words, in the tables, on the curves and in the graph."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import deep, images
from report.browser import Page
from report.conftest import network_of
from selenium.webdriver.common.keys import Keys

import spikecal
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.errors import FileError
from spikecal.report.content import NOTHING, Seen, build
from spikecal.report.measure import look
from spikecal.report.source import Source, from_file
from spikecal.snn.network import SpikingNetwork
from spikecal.tasks.pages import write_report
from spikecal.tasks.summary import measure

PIPELINE = spikecal.Pipeline(sweeps=((spikecal.Bias(images=32),),))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks with waits, which the search found."""
    result = spikecal.convert(deep(), images(48), T=[2, 4], latency="2.5x", pipeline=PIPELINE, records=False)
    assert all(network.waits for network in result.networks.values())
    file = tmp_path_factory.mktemp("waiting") / "net.snn"
    result.save(file)
    return file


@pytest.fixture(scope="module")
def seen(path: Path) -> Seen:
    source, model = from_file(path), deep()
    pixels = (128 + 64 * images(40, seed=9)).clamp(0, 255).to(torch.uint8)
    card = Card(name="deep", size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    data = Data(name="noise", images=pixels, labels=torch.arange(40) % 4)
    summary, _ = measure([source.networks[T] for T in (2, 4)], model, data, card, "test")
    return source, look(source, model, data, card, summary)


def test_a_file_is_shown_with_its_waits(path: Path) -> None:
    source = from_file(path)
    for T, network in source.networks.items():
        kept = spikecal.load(path, T=T)
        assert network.waits == kept.waits != {}
        assert torch.equal(network(images(3)), kept(images(3)))


def test_facts_are_those_of_the_networks(seen: Seen) -> None:
    source, measured = seen
    assert measured.summary is not None
    content = build([seen])
    for found in measured.summary.found:
        network, facts = source.networks[found.T], network_of(content, found.T)
        assert (facts["latency"], facts["interval"]) == (network.latency, network.interval)
        assert facts["label"] == f"T = {found.T}, latency {network.latency}"
        assert facts["spikes"] == pytest.approx(found.spikes_per_image, rel=1e-5)
        assert {row["name"]: row["waits"] for row in facts["layers"] if row["waits"]} == network.waits
        assert [row["start"] for row in facts["layers"]] == list(network.windows.starts.values())
        assert found.latencies[0] == found.latency - found.T + 1 and found.latencies[-1] == found.latency
    said = " ".join(content["lead"])
    assert "of its layers wait" in said and "and it takes one image every" in said


def plain(source: Source, search: dict[str, Any] | None) -> Source:
    """The same network, no layer of which waits."""
    network = SpikingNetwork(source.networks[4].graph, 4)
    network.origin = source.networks[4].origin.changed(placements={} if search is None else {4: search})
    return replace(source, networks={4: network})


def test_without_waits_only_their_removal_is_reported(seen: Seen) -> None:
    none = {"name": "no waits", "T": 4, "latency": 4, "waits": {}, "divergence": 0.5, "gain": 0.0, "error": 0.0}
    worse = {**none, "name": "evenly", "latency": 6, "waits": {"stem": 2}, "divergence": 0.6, "gain": -0.1}
    content = build([(plain(seen[0], {"images": 16, "tried": [none, worse]}), NOTHING)])
    assert any(sentence.startswith("Waits dropped: ") for sentence in content["lead"])
    assert content["networks"][0]["label"] == "T = 4" and "waits" not in content["networks"][0]["layers"][0]
    content = build([(plain(seen[0], None), NOTHING)])
    assert not content["any_search"] and "wait" not in " ".join(content["lead"]).lower()


@pytest.mark.parametrize("broken", [{"images": "many", "tried": []}, {"images": 4, "tried": [{"name": "evenly"}]}])
def test_a_nonsensical_search_is_a_damaged_file(seen: Seen, broken: dict[str, Any], tmp_path: Path) -> None:
    network = plain(seen[0], broken).networks[4]
    network.save(tmp_path / "bad.snn")
    for read in (from_file, spikecal.inspect):
        with pytest.raises(FileError, match="invalid"):
            read(tmp_path / "bad.snn")


def test_the_page_shows_which_layers_wait_and_what_was_tried(browser: Page, seen: Seen, tmp_path: Path) -> None:
    source = seen[0]
    write_report(tmp_path / "report.html", [seen])
    browser.open(tmp_path / "report.html")
    table = browser.texts("#summary table.networks tbody tr:not(.ann) td")
    row = len(table) // 2
    assert [table[i : i + 2] for i in (0, row)] == [[str(n.latency), str(n.interval)] for n in source.networks.values()]
    for network, said in zip(source.networks.values(), browser.texts("#waiting h3"), strict=True):
        assert said == f"T = {network.T}, latency {network.latency}"
    assert browser.texts("#waiting tr.chosen td:last-child") == ["kept", "kept"]
    for i, network in enumerate(source.networks.values()):
        browser.js(f"const s = document.querySelector('#shown'); s.value = {i}; s.dispatchEvent(new Event('change'))")
        waits = [f"waits {network.waits[s.name]}" for s in network.stages if s.name in network.waits]
        assert browser.texts("#network .node .wait") == waits
        assert sum("waits" in str(n.get_attribute("aria-label")) for n in browser.all("#network .node")) == len(waits)
        assert len(browser.texts('.layers thead button[data-key="waits"]')) == 1
    browser.js("document.querySelectorAll('#network .node')[1].focus()")
    assert "emits in steps" in browser.texts("#network .readout")[0]
    browser.one("#step").send_keys(Keys.END)
    assert browser.texts(".stepper output") == [f"step 4 of 4, latency {source.networks[4].latency}"]
    assert browser.errors() == []


def test_curves_start_with_the_output(browser: Page, seen: Seen, tmp_path: Path) -> None:
    source, measured = seen
    assert measured.summary is not None
    write_report(tmp_path / "report.html", [seen])
    browser.open(tmp_path / "report.html")
    last = max(network.latency for network in source.networks.values())
    slider = browser.one("#chart-step")
    assert slider.get_attribute("max") == str(last)
    slider.send_keys(Keys.HOME)
    first, *values = browser.texts("#accuracy .readout b")[:3]
    assert first == "Step 1" and values == ["not yet", "not yet"]
    slider.send_keys(Keys.END)
    assert f"{100 * measured.summary.found[-1].accuracy[-1]:.1f} %" in browser.texts("#accuracy .readout b")
    assert "after 4 of its 4" in browser.texts("#accuracy .readout")[0]
    points = browser.js("return [...document.querySelectorAll('.chart polyline')].map((p) => p.points.length)")
    assert json.dumps(points) == "[2, 4]"
    assert "latency in steps" in browser.texts(".chart svg text")
