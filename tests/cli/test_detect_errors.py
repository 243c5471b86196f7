"""Mismatched detectors and datasets, files of the other kind, and datasets without a test part."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from detection.scenes import voc

from spikecal.cli.main import main
from spikecal.training.export import export
from spikecal.zoo.detectors import build_detector

NAME = "retinanet-r18-quarter"
OWN = """
from functools import partial
from spikecal.zoo.detectors import small_retinanet

make = partial(small_retinanet, 16, 64, 3)
few = partial(small_retinanet, 16, 64, 2)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two classes, weights for two and for one, and code with detectors."""
    place = tmp_path_factory.mktemp("place")
    voc(place / "set", train=3, test=2)
    torch.manual_seed(0)
    for labels in (2, 3):
        export(build_detector(NAME, labels), place / f"w{labels}.safetensors", None)
    (place / "mine.py").write_text(OWN)
    return place


def refused(capsys: pytest.CaptureFixture[str], *call: str) -> str:
    """The one-line answer to a bad call."""
    assert main([str(word) for word in call]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and said.startswith("error: ")
    return said


def test_unsuitable_data(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    out = str(tmp_path / "d.snn")
    data = ("--data", "voc:set")
    few = "has 2 labels, including the background, but voc:set needs 3 (bar, square)"
    assert few in refused(capsys, "convert", NAME, "--weights", "w2.safetensors", *data, "-o", out)
    assert few in refused(capsys, "train", "mine.py:few", "--task", "detect", *data, "-o", f"{tmp_path}/t.safetensors")
    cells = ("--weights", "w2.safetensors", *data, "-T", "2", "-o", str(tmp_path / "tables"))
    assert few in refused(capsys, "reproduce", "detect", "--model", NAME, *cells)
    blood = "are for Platelets, RBC, WBC, but voc:set has bar, square: give --weights"
    assert blood in refused(capsys, "convert", NAME, *data, "-o", out)
    Path("w3.safetensors.json").write_text(json.dumps({"classes": {"1": "square", "2": "bar"}}))
    said = refused(capsys, "convert", NAME, "--weights", "w3.safetensors", *data, "-o", out)
    Path("w3.safetensors.json").unlink()
    assert "are for square, bar, but voc:set has bar, square" in said
    assert not list(tmp_path.iterdir())


def test_without_images_to_test_on_the_conversion_is_kept_and_reported(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "set", tmp_path / "set")
    (tmp_path / "set" / "ImageSets" / "test.txt").unlink()
    out, page = tmp_path / "d.snn", tmp_path / "d.html"
    call = ["convert", NAME, "--weights", str(place / "w3.safetensors"), "--data", f"voc:{tmp_path}/set", "-T", "2"]
    assert main([*call, "-o", str(out), "--report", str(page)]) == 0
    assert "no summary: " in capsys.readouterr().err
    assert out.exists() and "no images were run" in page.read_text()


def test_a_users_detector_is_known_by_its_file(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    out, page = str(tmp_path / "m.snn"), str(tmp_path / "m.html")
    own = ("--weights", "w3.safetensors", "--data", "voc:set")
    assert "add --task detect" in refused(capsys, "convert", "mine.py:make", *own, "-o", out)
    assert main(["convert", "mine.py:make", "--task", "detect", *own, "-T", "2", "-o", out, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert "give the detector with --model" in refused(capsys, "evaluate", out)
    assert main(["evaluate", out, "--model", "mine.py:make", *own[:2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == made["precision"]
    for verb in (("evaluate", out), ("report", out, "-o", page)):
        assert "no detector 'resnet20'" in refused(capsys, *verb, "--model", "resnet20")
        assert "holds the body of a detector" in refused(capsys, *verb, "--task", "classify")


def test_a_classifiers_file_is_not_a_detectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "c.snn")
    assert main(["convert", "resnet20", "--calibration", "4", "-T", "1", "--test", "0", "-o", out]) == 0
    capsys.readouterr()
    for verb in (("evaluate", out), ("report", out, "-o", str(tmp_path / "c.html"))):
        assert "c.snn holds a classifier" in refused(capsys, *verb, "--task", "detect")


def test_strict_fails_before_anything_is_converted(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "set", tmp_path / "set")
    (tmp_path / "set" / "Annotations" / "scene1.xml").write_text("<annotation>")
    call = ["convert", NAME, "--weights", str(place / "w3.safetensors"), "--data", f"voc:{tmp_path}/set", "-T", "2"]
    assert main([*call, "--strict", "-o", str(tmp_path / "d.snn")]) == 2
    assert "scene1.xml" in capsys.readouterr().err and not (tmp_path / "d.snn").exists()
    (tmp_path / "set" / "Annotations" / "scene4.xml").write_text("<annotation>")
    assert main([*call, "-o", str(tmp_path / "d.snn")]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(told) == 2 and [", test images: " in line for line in told] == [False, True]


def test_check_and_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", NAME, "--size", "64", "64", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["converts"] and len(facts["stages"]) == 17 and facts["input"] == [64, 64]
    assert "figures show classifiers" in refused(
        capsys, "figure", "rate", "--model", NAME, "-o", str(tmp_path / "a.png")
    )
