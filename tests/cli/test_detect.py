"""Detectors on the command line: train, convert, evaluate, reproduce; and errors for bad calls."""

import json
from pathlib import Path

import pytest
import torch
from detection.scenes import voc, voc_xml

import spikecal
from spikecal.cli.main import main
from spikecal.reproduce.detectors import DRAWS
from spikecal.training.export import export
from spikecal.zoo.detectors import build_detector

NAME = "retinanet-r18-quarter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voc(tmp_path_factory.mktemp("voc"), train=4, test=2)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    export(build_detector(NAME, 3), path, None)
    return path


def test_train(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "w.safetensors"
    call = ["train", NAME, "--data", f"voc:{folder}", "-o", str(out), "--epochs", "1", "--batch", "2", "--json"]
    assert main(call) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == {"1": "bar", "2": "square"} and facts["test"]["images"] == 2
    assert facts["training"]["recipe"] == "quick-detect" and len(facts["history"]) == 1
    assert out.exists() and json.loads((tmp_path / "w.safetensors.json").read_text())["weights"] == "float32"


def test_convert_and_evaluate(folder: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.snn"
    data = ["--data", f"voc:{folder}", "--weights", str(weights)]
    steps = ["-T", "2", "-T", "3", "--latency", "2x"]
    assert main(["convert", NAME, *data, *steps, "--task", "detect", "-o", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [time["T"] for time in made["timing"]] == [time["latency"] for time in made["timing"]] == [2, 3]
    assert all("at least 8 calibration images" in time["search"]["why"] for time in made["timing"])
    assert set(made["precision"]) == {"analog", "2", "3"} and made["readout"] in ("current", "spikes")
    # the file says which detector and which data it came from
    assert main(["evaluate", str(out), "--weights", str(weights), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["timing"] == made["timing"]
    kept = spikecal.load(out).origin.measured["networks"]
    for T in ("2", "3"):
        energy = found["precision"][T]["energy"]
        assert energy["spikes"] > 0 and 0 < energy["ratio"] == kept[T]["energy_ratio"]
        assert energy["images"] == 2 and kept[T]["spikes"] == energy["spikes"]
    assert found["precision"] == made["precision"] and found["data"] == f"voc:{folder}"
    assert main(["evaluate", str(out), *data, "--task", "detect", "-T", "2"]) == 0
    told = capsys.readouterr().out
    assert {"latency", "interval", "mAP50", "spikes", "energy", "break-even"} <= set(told.split())
    energy = found["precision"]["2"]["energy"]
    assert {f"{energy['spikes']:,.0f}", f"{100 * energy['ratio']:.1f}"} <= set(told.split())
    # what was measured stands beside T and latency in `check`, too
    assert main(["check", str(out)]) == 0
    assert {f"{kept['2']['spikes']:,.0f}", f"{100 * kept['3']['energy_ratio']:.1f}"} <= set(
        capsys.readouterr().out.split()
    )
    # its heads are not those of the embedded detector
    assert main(["evaluate", str(out), "--data", f"voc:{folder}"]) == 2
    assert "give --weights" in capsys.readouterr().err
    assert main(["evaluate", str(out), *data, "--exit", "0.9"]) == 2
    assert "--exit is for classifiers" in capsys.readouterr().err


def test_report(folder: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "d.snn", tmp_path / "d.html"
    named = ["--data", f"voc:{folder}", "--weights", str(weights)]
    assert main(["convert", NAME, *named, "-T", "2", "-o", str(out), "--report", str(page), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    written = page.read_text()
    assert "image/jpeg" in written and 'id="detections"' in written and made["report"]["file"] == str(page)
    again = tmp_path / "again.html"
    assert main(["report", str(out), *named, "-o", str(again), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["networks"][0]["map50"] == pytest.approx(made["precision"]["2"]["map50"], abs=1e-5)
    assert facts["networks"][0]["measure"] == "map" and 'id="detections"' in again.read_text()
    # without the weights only what the file carries can be shown, and it is said why
    assert main(["report", str(out), "-o", str(again)]) == 0
    told = capsys.readouterr().out
    assert "no images were run" in told and "give --weights" in told and 'id="detections"' not in again.read_text()
    # what was asked for by name must be there
    before = again.read_bytes()
    assert main(["report", str(out), *named[2:], "--data", f"voc:{tmp_path}/none", "-o", str(again)]) == 2
    assert "none" in capsys.readouterr().err and again.read_bytes() == before
    assert main(["report", str(out), "--task", "classify", "-o", str(again)]) == 2
    assert "is a detector" in capsys.readouterr().err


def test_reproduce(folder: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["reproduce", "detect", "--model", NAME, "--weights", str(weights), "--data", f"voc:{folder}", "-T", "2"]
    call += ["--seeds", "1", "--iterations", "1", "--batch", "1", "--weights-images", "2", "-o", str(tmp_path)]
    assert main(call) == 0
    capsys.readouterr()
    page = (tmp_path / "detect.md").read_text()
    assert "RetinaNet, ResNet-50 on COCO" in page and "mAP % at IoU 0.5" in page
    summary = json.loads((tmp_path / "detect.json").read_text())
    assert [row["method"] for row in summary["networks"][0]["rows"]] == ["Baseline", "Baseline + LCP", "Baseline + ACP"]
    said = " ".join(summary["differences"])
    assert "1 iterations per layer" in said and f"the body of {NAME} keeps its max-pools" in said
    network = summary["networks"][0]
    for measured in (network["ann"][0], *(row["columns"]["2"] for row in network["rows"])):
        assert len(measured["drawn"]) == DRAWS and all(0 <= figure <= 100 for figure in measured["drawn"])
    cells = sorted((tmp_path / "cells").iterdir())
    before = [cell.stat().st_mtime_ns for cell in cells]
    assert main(call) == 0  # all of it is there
    assert [cell.stat().st_mtime_ns for cell in cells] == before


def test_what_is_wrong_with_a_set_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    voc(tmp_path, train=1, test=4)
    (tmp_path / "Annotations" / "scene1.xml").write_text("<annotation>")
    voc_xml(tmp_path / "Annotations" / "scene2.xml", [])
    damaged = tmp_path / "JPEGImages" / "scene3.jpg"
    damaged.write_bytes(damaged.read_bytes()[:900])
    assert main(["datasets", "check", f"voc:{tmp_path}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["classes"], facts["boxes"]) == (2, 2, 4)
    assert [len(facts["faults"][part]) for part in ("left_out", "empty", "clipped", "dropped")] == [1, 1, 0, 0]
    assert facts["unreadable"][0]["file"] == str(damaged)
    assert main(["datasets", "check", f"voc:{tmp_path}", "--strict"]) == 2
    said = capsys.readouterr().err
    assert said.count("1 image without a box, kept: ") == 1 and said.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["train", NAME, "--data", "cifar10", "-o", "{}/w.safetensors"], "for detection give voc:PATH"),
        (["train", "retinanet-r50", "--data", "voc:{}/set", "-o", "{}/w.safetensors"], "--backbone"),
        (
            ["train", "resnet20", "--data", "demo", "-o", "{}/w.safetensors", "--backbone", "x"],
            "--backbone is for detectors",
        ),
        (["train", "resnet20", "--data", "demo", "-o", "{}/w.safetensors", "--recipe", "coco"], "for detectors"),
        (["train", NAME, "--data", "voc:{}/set", "-o", "{}/w.safetensors", "--recipe", "quick"], "for classifiers"),
        (["convert", "retinanet-r18", "--data", "voc:{}/set", "-o", "{}/d.snn"], "give --weights"),
        (["convert", "torchvision:fcos_resnet50_fpn", "--task", "classify", "-o", "{}/d.snn"], "is a detector"),
        (["convert", "nobody", "--task", "detect", "-o", "{}/d.snn"], "there is no detector 'nobody'"),
        (["convert", "resnet20", "--readout", "spikes", "-o", "{}/d.snn"], "--readout is for detectors"),
        (["reproduce", "detect", "--model", "retinanet-r18", "--data", "voc:{}/set"], "give --weights"),
    ],
)
def test_bad_calls_are_one_line(
    call: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voc(tmp_path / "set", train=2, test=1)
    assert main([part.format(tmp_path) for part in call]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: ") and words in said[-1]
