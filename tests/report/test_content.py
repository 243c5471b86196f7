"""The numbers on the page are those of `evaluate`, of the records and of the runs."""

import base64
import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from report.conftest import STEPS, Conversion, network_of
from torch import nn

import spikecal
from spikecal.analysis.errors import measure_errors
from spikecal.analysis.summary import Summary
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.errors import ConfigError, FileError
from spikecal.report.content import NOTHING, build
from spikecal.report.findings import _energy
from spikecal.report.layers import histogram_bars
from spikecal.report.measure import Measured, look
from spikecal.report.page import LIMIT, embedded, render
from spikecal.report.source import Source, from_file, from_result, originals_of
from spikecal.report.spikes import LADDER, choose_samples, outputs_over_time, plan_within
from spikecal.snn.file import write
from spikecal.snn.origin import Origin
from spikecal.tasks.pages import write_report
from spikecal.tasks.summary import measure


def measured(conversion: Conversion, source: Source, ann: nn.Module | None = None) -> Measured:
    networks = [source.networks[T] for T in sorted(source.networks)]
    summary, _ = measure(networks, conversion.model, conversion.data, conversion.card, "test")
    return look(source, ann, conversion.data, conversion.card, summary)


@pytest.fixture(scope="module")
def content(conversion: Conversion) -> dict[str, Any]:
    source = from_file(conversion.path)
    return build([(source, measured(conversion, source, conversion.model))])


class Said(Origin):
    """Arbitrary content of a file."""

    def __init__(self, info: dict[str, Any]) -> None:
        object.__setattr__(self, "info", info)

    def to_info(self) -> dict[str, Any]:
        return dict(self.info)  # type: ignore[attr-defined]


class TestNumbers:
    def test_are_those_of_evaluate(self, conversion: Conversion, content: dict[str, Any]) -> None:
        for T in STEPS:
            found = spikecal.evaluate(conversion.result.at(T), conversion.loader(), ann=conversion.model)
            shown = network_of(content, T)
            assert shown["curve"] == pytest.approx(found.accuracy, rel=1e-5)
            assert shown["score"] == pytest.approx(found.accuracy[-1], rel=1e-5)
            assert shown["agreement"] == pytest.approx(found.agreement[-1], rel=1e-5)
            assert shown["ann"] == pytest.approx(found.ann, rel=1e-5)
            assert found.energy is not None
            assert shown["energy"] == pytest.approx(found.energy.ratio, rel=1e-5)
            assert shown["first"] == found.first_within(1)
            assert shown["rate"] == pytest.approx(found.rate, rel=1e-5)
            assert sum(row["energy"] for row in shown["layers"] if "energy" in row) == pytest.approx(1, rel=1e-4)

    def test_of_layers_are_those_of_records_and_of_test_images(
        self, conversion: Conversion, content: dict[str, Any]
    ) -> None:
        for T in STEPS:
            errors = measure_errors(conversion.model, conversion.result.at(T), conversion.images(), count=128)
            rows = network_of(content, T)["layers"]
            records = [record for record in conversion.result.records if record.T == T]
            assert [row["name"] for row in rows] == [record.stage for record in records]
            for row, record, layer in zip(rows, records, errors.layers, strict=True):
                assert [label for label, _ in row["steps"]] == [label for label, _ in record.errors]
                assert [e for _, e in row["steps"]] == pytest.approx([e for _, e in record.errors], rel=1e-4)
                assert row["error"] == pytest.approx(layer.share(), rel=0.1)  # 128 of 150: not quite the same images
                parts = {"input", "flooring", "clipping", "unevenness", "weights"}
                assert dict(row["parts"]).keys() == (parts if record.rate is not None else {"input", "calibration"})
                if record.rate is not None:
                    assert row["threshold"][0] == pytest.approx(record.threshold, rel=1e-4)
                    assert row["channels"]["count"] == len(row["channels"]["rate"]) == len(layer.rate)  # type: ignore[arg-type]

    def test_in_the_headline(self, conversion: Conversion, content: dict[str, Any]) -> None:
        said = content["networks"][content["headline"]]
        lead = " ".join(content["lead"])
        assert f"At {said['T']} steps" in lead
        assert f"right on {100 * said['score']:.1f} % of 150 test images" in lead
        assert f"original is right on {100 * said['ann']:.1f} %" in lead
        assert f"{100 * said['energy']:.0f} % of the original's energy" in lead
        assert "150 unlabelled images" in lead

    def test_of_the_graph(self, conversion: Conversion, content: dict[str, Any]) -> None:
        graph = content["sources"][0]["graph"]
        names = [node["name"] for node in graph["nodes"]]
        edges = {(names[a], names[b]) for a, b in graph["edges"]}
        stages = conversion.result.snn.stages
        assert edges == {(read, stage.name) for stage in stages for read in stage.inputs}
        column = {node["name"]: node["column"] for node in graph["nodes"]}
        assert all(column[a] < column[b] for a, b in edges)
        assert any("conv 3×3, 3 → 8" in node["what"] for node in graph["nodes"])

    def test_of_histograms_are_all_there(self, conversion: Conversion) -> None:
        found = from_file(conversion.path).histograms
        assert found.keys() == conversion.result.histograms.keys()
        for name, bars in histogram_bars(found).items():
            counts = conversion.result.histograms[name].counts
            assert sum(bars["counts"]) + round(bars["zeros"] * bars["values"]) == int(counts.sum())
            assert len(bars["counts"]) <= 64
            assert bars["width"] * len(bars["counts"]) >= bars["maximum"]


class TestSpikes:
    def test_are_those_of_the_run(self, conversion: Conversion, content: dict[str, Any]) -> None:
        source = from_file(conversion.path)
        samples = look(source, None, conversion.data, conversion.card, None).samples
        assert samples is not None
        for T in STEPS:
            network = conversion.result.at(T)
            layers = [stage.name for stage in network.stages if stage.spiking]
            for image, trace in zip(samples.images.split(1), network_of(content, T)["traces"], strict=True):
                run = network.run(image)
                assert trace["answers"] == run.outputs[:, 0].argmax(-1).tolist()
                expected = run.outputs[:, 0, trace["classes"]].T
                torch.testing.assert_close(torch.tensor(trace["values"]), expected, rtol=1e-4, atol=1e-5)
                activity = (unpacked(trace["activity"]).reshape(len(layers), T) / 255) ** 2
                for i, name in enumerate(layers):
                    counts = run.spikes[name][0].flatten().numpy()
                    assert activity[i].sum() * counts.size == pytest.approx(counts.sum(), rel=0.05, abs=1)
                    raster = trace["raster"][i]
                    bits = np.unpackbits(unpacked(raster["bits"]).reshape(raster["rows"], -1), axis=1)[:, :T]
                    chosen = (np.arange(raster["rows"]) * 2 + 1) * counts.size // (2 * raster["rows"])
                    assert bits.sum(1).tolist() == counts[chosen].tolist()

    def test_maps_have_the_spikes_of_all_channels(self, conversion: Conversion, content: dict[str, Any]) -> None:
        T = 8
        trace = network_of(content, T)["traces"][0]
        first = trace["maps"][0]
        assert (first["height"], first["width"]) == (12, 12)
        cells = unpacked(first["cells"])
        share = (np.stack([cells >> 4, cells & 15], -1).reshape(T, -1) / 15) ** 2
        activity = (unpacked(trace["activity"])[:T] / 255) ** 2
        assert share.mean(1) == pytest.approx(activity, abs=0.03)

    def test_richest_plan_that_fits(self) -> None:
        small = [(32, [(1, 16, 32, 32)] * 19)]
        assert plan_within(small, 5e6) == LADDER[0]
        deep = [(256, [(1, 64, 56, 56)] * 150)]
        plan = plan_within(deep, 2.4e6)
        assert plan is not None
        assert plan.bytes(*deep[0]) <= 2.4e6
        assert plan_within(deep * 50, 2.4e6) is None

    def test_shown_classes_are_few_and_have_the_answers(self) -> None:
        outputs = torch.zeros(6, 1000)
        for step, winner in enumerate((3, 700, 3, 9, 9, 9)):
            outputs[step, winner] = 1.0
        shown = outputs_over_time(outputs, (42, None))
        assert shown["answers"] == [3, 700, 3, 9, 9, 9]
        assert {3, 9, 42, 700} <= set(shown["classes"])
        assert len(shown["classes"]) == 10

    def test_samples_show_mistakes_and_many_classes(self) -> None:
        labels = [i % 4 for i in range(40)]
        answers = [0 if i in (5, 30) else label for i, label in enumerate(labels)]
        chosen = choose_samples(answers, labels, 8)
        assert {5, 30} <= set(chosen)
        assert {labels[i] for i in chosen} == {0, 1, 2, 3}
        assert len(chosen) == 8
        assert choose_samples([1, 1, 1], None, 8) == [0, 1, 2]


class TestFindings:
    def titles(self, content: dict[str, Any]) -> str:
        assert all(finding["todo"] for finding in content["findings"])
        return "; ".join(finding["title"] for finding in content["findings"])

    def with_thresholds(self, conversion: Conversion, factor: float, every: bool = False) -> dict[str, Any]:
        source = from_file(conversion.path, [8])
        for stage in source.first.stages if every else source.first.stages[1:2]:
            if stage.spiking:
                stage.end.op.theta.data *= factor  # type: ignore[union-attr, operator]
        return build([(source, measured(conversion, source, conversion.model))])

    def test_good_network_has_none_of_these(self, content: dict[str, Any]) -> None:
        titles = self.titles(content)
        for word in ("never fire", "silent", "No energy", "raised", "Few test images"):
            assert word not in titles
        shares = [row["saturated"] for n in content["networks"] for row in n["layers"] if row["kind"] == "neurons"]
        assert ("Saturated" in titles) == (max(shares) > 0.05)

    def test_dead_layer(self, conversion: Conversion) -> None:
        found = self.with_thresholds(conversion, 1e6)
        assert "1 layer never fires" in self.titles(found)
        dead = next(finding for finding in found["findings"] if "never" in finding["title"])
        assert dead["level"] == "warning"
        assert dead["places"][0]["layer"] == conversion.result.snn.stages[1].name
        assert "more steps" in dead["todo"]

    def test_saturation(self, conversion: Conversion) -> None:
        found = self.with_thresholds(conversion, 0.05)
        finding = next(finding for finding in found["findings"] if "Saturated" in finding["title"])
        assert conversion.result.snn.stages[1].name in [place["layer"] for place in finding["places"]]
        assert "thresholds" in finding["todo"]
        assert "--per channel" not in finding["todo"]  # they are
        source = from_file(conversion.path, [8])
        assert source.pipeline is not None
        pipeline = replace(source.pipeline, threshold=spikecal.pipeline.MaxAct())
        source = replace(source, pipeline=pipeline, records=[replace(r, saturated=0.5) for r in source.records])
        todo = [f["todo"] for f in build([(source, NOTHING)])["findings"] if "Saturated" in f["title"]]
        assert todo == ["Raise the thresholds (--per channel), or convert with more steps."]
        assert "Saturated" not in self.titles(self.with_thresholds(conversion, 1e6, every=True))

    def test_rounding_is_no_worse_and_some_firing_is_not_none(self, conversion: Conversion) -> None:
        def of(dead: float, *errors: float) -> dict[str, Any]:
            source = from_file(conversion.path, [8])
            steps = [(str(i), error) for i, error in enumerate(errors)]
            records = [replace(record, errors=steps, dead=dead) for record in source.records if record.T == 8]
            return build([(replace(source, records=records), NOTHING)])

        assert "raised" not in self.titles(of(0.0, 1e-12, 1e-9))
        assert "raised" not in self.titles(of(0.0, 0.1, 0.104))
        assert "raised" in self.titles(of(0.0, 0.1, 0.106))
        assert "hardly ever fire" in self.titles(of(0.995, 0.1))
        assert "never fire" in self.titles(of(1.0, 0.1))
        texts = [finding["text"] for finding in of(0.995, 0.1)["findings"]]
        assert not any("No neuron" in text for text in texts)
        assert any("99.5 %" in text for text in texts)

    def test_calibration_images(self, conversion: Conversion) -> None:
        few = spikecal.convert(conversion.model, conversion.images()[:8], T=4, pipeline="baseline")
        found = build([(from_result("few", few), NOTHING)])
        assert "Few calibration images" in self.titles(found)
        assert any("For the thresholds of few there were 8 images" in finding["text"] for finding in found["findings"])
        enough = spikecal.convert(conversion.model, conversion.images().repeat(2, 1, 1, 1), T=4, pipeline="baseline")
        assert enough.origin.images == 300
        assert "Few calibration images" not in self.titles(build([(from_result("enough", enough), NOTHING)]))

    def test_gap_names_the_network_that_is_better(self, conversion: Conversion, content: dict[str, Any]) -> None:
        far = {T: network_of(content, T)["ann"] - network_of(content, T)["score"] for T in STEPS}
        assert ("behind" in self.titles(content)) == any(gap > 0.05 for gap in far.values())
        source = from_file(conversion.path)
        kept = {"data": "d", "split": "test", "images": 1000, "ann": 0.9, "measure": "accuracy"}
        kept["networks"] = {4: self.kept(0.6), 8: self.kept(0.895)}
        found = build([(source_with(source, kept), NOTHING)])
        finding = next(finding for finding in found["findings"] if "behind" in finding["title"])
        assert "30.0 points" in finding["text"]
        assert "Use T = 8" in finding["todo"]

    def test_a_different_source_model_does_not_help(self, conversion: Conversion) -> None:
        kept = {"data": "d", "split": "test", "images": 1000, "ann": 0.9, "measure": "accuracy"}
        bad = kept | {"networks": {4: self.kept(0.5), 8: self.kept(0.6)}}
        good = kept | {"networks": {8: self.kept(0.9)}}
        one, two = from_file(conversion.path), from_file(conversion.path, [8])
        torch.manual_seed(1)
        other = spikecal.convert(type(conversion.model)().eval(), conversion.images()[:40], T=8, pipeline="baseline")
        others = {
            "name": replace(two, card=replace(conversion.card, name="larger")),
            "weights": from_result("other", other),
        }
        for source in others.values():
            content = build([(source_with(one, bad), NOTHING), (source_with(source, good), NOTHING)])
            assert content["networks"][content["headline"]]["label"] == "net.snn, T = 8"
            assert "different source model" in content["lead"][-1]
            (gap,) = [finding for finding in content["findings"] if "behind" in finding["title"]]
            assert "Use " not in gap["todo"]
        same = build([(source_with(one, bad), NOTHING), (source_with(two, good), NOTHING)])
        assert same["networks"][same["headline"]]["label"] == "net.snn (2), T = 8"
        assert "different source model" not in " ".join(same["lead"])
        assert any("Use net.snn (2), T = 8" in finding["todo"] for finding in same["findings"])

    def kept(self, score: float) -> dict[str, float | None]:
        return {"score": score, "agreement": None, "energy_ratio": 0.5}


def source_with(source: Source, kept: dict[str, Any]) -> Source:
    return replace(source, measured=kept)


class TestPages:
    def test_of_a_file_alone(self, conversion: Conversion) -> None:
        content = build([(from_file(conversion.path), NOTHING)], ["no images were run"])
        assert "has not been measured" in content["lead"][0]
        assert content["sets"] == []
        rows = content["networks"][0]["layers"]
        assert all(known(row["error"]) and "steps" in row for row in rows)
        assert "no images were run" in render(content)
        rates = spikecal.evaluate(conversion.result.at(8), conversion.loader())  # the images that calibrated it
        assert network_of(content, 8)["rate"] == pytest.approx(rates.rate, rel=1e-3)
        assert network_of(content, 8)["rate"] != pytest.approx(sum(rates.rates.values()) / len(rates.rates), rel=0.02)

    def test_say_training_where_there_was_some(self, conversion: Conversion) -> None:
        acp = spikecal.ACP.changed(spikecal.Weights, iterations=2)
        tuned = spikecal.convert(conversion.model, conversion.images()[:16], T=2, pipeline=acp)
        assert "unlabelled images." in build([(from_result("tuned", tuned), NOTHING)])["lead"][-1]
        assert "and no training" in build([(from_file(conversion.path), NOTHING)])["lead"][-1]

    def test_of_what_the_file_has_kept(self, conversion: Conversion, tmp_path: Any) -> None:
        summary, _ = measure([conversion.result.at(8)], conversion.model, conversion.data, conversion.card, "test")
        file = tmp_path / "kept.snn"
        write(file, {8: conversion.result.at(8)}, Said({"measured": summary.measured()}), {})
        shown = network_of(build([(from_file(file), NOTHING)]), 8)
        assert shown["score"] == pytest.approx(summary.found[0].accuracy[-1], rel=1e-5)
        assert (shown["measure"], shown["origin"], shown["curve"]) == ("accuracy", "file", None)

    def test_of_several_files(self, conversion: Conversion) -> None:
        one, two = from_file(conversion.path), from_file(conversion.path, [8])
        first = measured(conversion, one)
        second = look(two, None, conversion.data, conversion.card, None, samples=first.samples)
        content = build([(one, first), (two, second)])
        labels = [network["label"] for network in content["networks"]]
        assert labels == ["net.snn, T = 4", "net.snn, T = 8", "net.snn (2), T = 8"]
        assert len(content["sets"]) == 1
        assert [network["set"] for network in content["networks"]] == [0, 0, 0]
        assert "net.snn (2)" in render(content)

    def test_of_several_outputs(self, conversion: Conversion) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Conv2d(3, 6, 3)
                self.head = nn.Conv2d(6, 2, 1)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                x = self.body(x).relu()
                return {"map": self.head(x), "features": x}

        torch.manual_seed(0)
        model = Two().eval()
        result = spikecal.convert(model, conversion.images()[:40], T=4)
        source = from_result("two", result)
        found = look(source, model, conversion.data, conversion.card, None)
        content = build([(source, found)])
        assert any("one row of classes" in note for note in content["notes"])
        shown = content["networks"][0]
        assert shown["score"] is None
        assert shown["energy"] is not None
        assert "answers" not in shown["traces"][0]
        assert render(content)

    def test_of_a_body_without_its_head(self, conversion: Conversion, tmp_path: Any) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(600, 4), nn.Sigmoid()).eval()
        result = spikecal.convert(model, conversion.images()[:40], T=4, keep=["4"])
        result.save(tmp_path / "body.snn")
        source = from_file(tmp_path / "body.snn")
        assert source.headless
        content = build([(source, look(source, None, conversion.data, conversion.card, None))])
        assert any("without its analog head" in note for note in content["notes"])
        assert any("not counted" in note for note in content["notes"])
        assert content["networks"][0]["layers"][0]["parts"]
        whole = look(from_result("whole", result), model, conversion.data, conversion.card, None)
        assert whole.classifies
        assert whole.against_ann
        logits = from_result("logits", spikecal.convert(model[:4], conversion.images()[:40], T=2, pipeline="baseline"))
        body, logits = (replace(s, card=conversion.card) for s in (from_result("kept", result), logits))
        assert body.kept and not logits.kept
        assert originals_of([body, logits, from_file(conversion.path)]) == [0, 0, 1]

    def test_of_another_model_are_refused(self, conversion: Conversion) -> None:
        source = from_file(conversion.path)
        with pytest.raises(ConfigError, match="net.snn: this spiking network was made from a different source model"):
            look(source, nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), conversion.data, conversion.card, None)

    def test_of_other_weights_are_refused(self, conversion: Conversion) -> None:
        source = from_file(conversion.path)
        torch.manual_seed(9)
        other = type(conversion.model)().eval()
        with pytest.raises(ConfigError, match="net.snn was made from other weights"):
            look(source, other, conversion.data, conversion.card, None)

    def test_name_the_method_whatever_its_numbers(self, conversion: Conversion) -> None:
        source = from_file(conversion.path)
        assert source.method == "LCP"
        shorter = spikecal.ACP.changed(spikecal.Weights, iterations=7, images=9)
        assert replace(source, pipeline=shorter).method == "ACP"
        assert replace(source, pipeline=replace(spikecal.LCP, rounding="floor")).method == "bias"
        tuned = replace(spikecal.LCP, sweeps=(spikecal.FineTune(), *spikecal.LCP.sweeps))
        assert replace(source, pipeline=tuned).method == "fine-tuning + bias"

    def test_are_written_whole_and_the_same_for_the_same(self, conversion: Conversion, tmp_path: Any) -> None:
        source = from_file(conversion.path)
        found = measured(conversion, source)
        for name in ("a.html", "b.html"):
            written = write_report(tmp_path / name, [(source, found)])
            assert written.bytes == (tmp_path / name).stat().st_size < LIMIT
        assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
        assert not list(tmp_path.glob("*.part"))


def known(value: Any) -> bool:
    return value is not None


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8)


class Elements(HTMLParser):
    """Counts elements and keeps attributes, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


class TestHostileFiles:
    def test_names_are_text(self, conversion: Conversion, hostile: Any) -> None:
        honest = render(build([(from_file(conversion.path, [8]), NOTHING)]))
        page = render(build([(from_file(hostile), NOTHING)], ["<b>note</b>"]))
        seen = Elements(page)
        assert seen.names.count("script") == Elements(honest).names.count("script") == 2
        assert "img" not in seen.names
        assert not any(name.startswith("on") for name, _ in seen.attributes)
        urls = [value for name, value in seen.attributes if name in ("src", "href")]
        assert all(url and (url.startswith("#") or url == "data:,") for url in urls)
        assert "default-src 'none'" in page

    def test_data_cannot_end_its_element(self) -> None:
        text = embedded({"name": "</script><!--<script>&amp;\u2028"})
        assert "<" not in text
        assert json.loads(text) == {"name": "</script><!--<script>&amp;\u2028"}

    def test_nonsense_is_an_error(self, conversion: Conversion, tmp_path: Any) -> None:
        network = spikecal.load(conversion.path)
        kept = {"data": "d", "split": "test", "images": 10, "ann": 0.5}
        numbers = {"accuracy": 0.5, "agreement": None, "energy_ratio": 0.5}
        record = network.origin.records[0]
        bad: list[tuple[str, Any]] = [
            ("records", [3]),
            ("card", {"frob": 1}),
            ("pipeline", {"frob": 1}),
            ("measured", []),
        ]
        bad += [("images", number) for number in (0, -3, math.inf)]
        bad += [("records", [{**record, "T": math.inf}]), ("records", [{**record, "rate": 10**400}])]
        bad += [("measured", {**kept, "networks": {}, "images": number}) for number in (0, -1, math.inf)]
        bad += [("measured", {**kept, "networks": {}, "ann": number}) for number in (1.5, -0.1, 10**400, math.nan)]
        bad += [
            ("measured", {**kept, "networks": {"8": {**numbers, name: 10**400}}})
            for name in ("accuracy", "agreement", "energy_ratio")
        ]
        for key, value in bad:
            write(tmp_path / "bad.snn", {network.T: network}, Said({key: value}), {})
            with pytest.raises(FileError, match="invalid"):
                from_file(tmp_path / "bad.snn")
        good = Said({"measured": {**kept, "networks": {"8": numbers}}})
        write(tmp_path / "good.snn", {network.T: network}, good, {})
        assert network_of(build([(from_file(tmp_path / "good.snn"), NOTHING)]), 8)["score"] == 0.5

    def test_infinite_errors_are_null(self, conversion: Conversion) -> None:
        source = from_file(conversion.path, [8])
        source.records[-1].errors[0] = ("before", math.inf)
        content = build([(source, NOTHING)])
        assert content["networks"][0]["layers"][-1]["before"] is None
        assert render(content)


def test_deep_network_over_many_steps_stays_small(tmp_path: Any) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()]
    for _ in range(149):
        layers += [nn.Conv2d(8, 8, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)).eval()
    images = torch.rand(2, 3, 4, 4)
    result = spikecal.convert(model, images, T=256, pipeline="baseline")
    data = Data(name="two", images=(images * 255).to(torch.uint8), labels=torch.tensor([0, 999]))
    card = Card(name="deep", size=(4, 4))
    source = from_result("deep", result)
    evaluation = spikecal.evaluate(result.snn, (images, data.labels), ann=model)
    found = look(source, None, data, card, Summary("two", "test", [evaluation]))
    written = write_report(tmp_path / "deep.html", [(source, found)])
    assert written.bytes < LIMIT
    assert written.content["plan"]["images"] >= 1
    assert len(written.content["networks"][0]["layers"]) == 151


def test_too_many_networks_for_one_page(conversion: Conversion) -> None:
    content = build([(from_file(conversion.path), NOTHING)])
    content["networks"] *= 3000
    with pytest.raises(ConfigError, match="fewer files, or fewer of their networks"):
        render(content)


@pytest.mark.parametrize(("measured", "heading"), [(True, "Nothing looks wrong"), (False, "Not measured")])
def test_only_measured_figures_are_said_to_look_right(content: dict[str, Any], measured: bool, heading: str) -> None:
    page = render({**content, "findings": [], "measured": measured})
    assert f'<h2 id="findings-title">{heading}</h2>' in page
    assert ("accuracy is unknown: no image" in page) is not measured


@pytest.mark.parametrize(
    ("analog", "even", "advice"),
    [(0.8, 2.0, "--joints signed"), (0.1, 2.0, "Use fewer steps"), (0.1, 0.3, "Fewer steps do not help")],
)
def test_advice_on_energy_fits_the_cause(analog: float, even: float, advice: str) -> None:
    layers = [{"name": "a", "energy": analog, "analog": ["conv"]}, {"name": "b", "energy": 1 - analog}]
    dear = {"id": 0, "T": 32, "label": "net", "energy": 1.8, "break_even": even, "layers": layers}
    found = _energy([dear])
    assert found is not None and found["todo"].startswith(("Convert", "Use", "Fewer")) and advice in found["todo"]
    assert ("both cost the same" in found["text"]) is (even >= 1)
