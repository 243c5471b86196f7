"""`spikecal distill`, `convert --data distilled` and `reproduce fakedata` as a user has them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.calls import Run, fails
from PIL import Image
from threads import one_thread  # noqa: F401

import spikecal
from spikecal.data.card import Card

NETWORKS = """
import torch
from torch import nn
from spikecal.data.card import Card

CARD = Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

def make(norm=nn.BatchNorm2d, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval(), CARD

def other():
    return make(seed=1)

def plain():
    return make(nn.Identity)

def bare():
    return make()[0]
"""
SMALL = ("-n", "40", "--batch", "10", "--iterations", "30")


@pytest.fixture(autouse=True)
def networks(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    for name, classes in (("images", 4), ("others", 7)):
        arrays: dict[str, Any] = {}
        for split, count in (("train", 60), ("test", 30)):
            arrays[f"x_{split}"] = rng.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
            arrays[f"y_{split}"] = rng.integers(0, classes, count)
        np.savez(tmp_path / f"{name}.npz", **arrays)


def child(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(spikecal.__file__).parents[1])}
    command = [sys.executable, "-m", "spikecal.cli.main", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_from_a_network_to_a_file_that_another_process_converts_with(run: Run, tmp_path: Path) -> None:
    code, out, err = run("distill", "nets.py:make", *SMALL, "-o", "images.npz", "--with", "nets.py:other", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["file"] == "images.npz" and facts["models"] == ["nets.py:make", "nets.py:other"]
    assert (facts["images"], facts["shape"], facts["type"]) == (40, [3, 12, 12], "uint8")
    assert len(facts["losses"]) == 4 and all(one["statistics"] < one["start"] for one in facts["losses"])
    assert facts["settings"]["iterations"] == 30 and facts["drawn"] == 40
    with Image.open(tmp_path / "images.png") as sheet:
        assert min(sheet.size) > 60
    arrays = np.load(tmp_path / "images.npz", allow_pickle=False)
    assert arrays["images"].shape == (40, 3, 12, 12) and np.bincount(arrays["targets"]).tolist() == [10] * 4
    assert json.loads(str(arrays["facts"]))["losses"] == facts["losses"]
    with child(
        tmp_path, "convert", "nets.py:make", "--data", "npz:images.npz", "-T", "4", "-o", "n.snn", "--json"
    ) as p:
        converted = json.loads(p.communicate()[0])
    assert p.returncode == 0
    assert converted["T"] == [4] and (tmp_path / "n.snn").stat().st_size > 0
    assert converted["summary"] is None  # images optimised to be recognised test nothing
    told = spikecal.inspect(tmp_path / "n.snn")
    assert (told["images"], told["calibration"]) == (40, "distilled")


def test_killed_and_resumed_in_another_process_it_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    arguments = ["distill", "nets.py:make", "-n", "160", "--batch", "20", "--iterations", "60"]
    with child(tmp_path, *arguments, "-o", "killed.npz", "--workdir", "work") as process:
        while process.poll() is None and len(list((tmp_path / "work").glob("*.step"))) < 2:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.step")}
    assert 2 <= len(before) < 8 and not (tmp_path / "killed.npz").exists()
    code, _, told = run(*arguments, "-o", "killed.npz", "--workdir", "work")
    assert code == 0 and "batch 8/8: statistics " in told
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.step")}
    assert before.items() <= after.items() and len(after) == 8  # finished ones were not made again
    assert run(*arguments, "-o", "whole.npz")[0] == 0
    for suffix in ("npz", "png"):
        killed, whole = (tmp_path / f"{name}.{suffix}" for name in ("killed", "whole"))
        assert killed.read_bytes() == whole.read_bytes()
    fails(run(*arguments, "-o", "killed.npz", "--workdir", "work", "--seed", "1"), "work holds another distillation")


def test_convert_on_distilled_images(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("convert", "nets.py:make", "--data", "distilled", "--calibration", "32", "-T", "2", "-o", "n.snn")
    code, out, err = run(*arguments, "--workdir", "work", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["distilled"]["images"] == 32 and facts["summary"] is None
    assert 0 < facts["phases"]["distilling"] < facts["seconds"]
    assert spikecal.inspect(tmp_path / "n.snn")["calibration"] == "distilled"
    first = (tmp_path / "n.snn").read_bytes()
    assert list((tmp_path / "work" / "distilled").glob("*.step"))
    code, out, err = run(*arguments, "--workdir", "work")
    assert code == 0 and "no summary: small comes with no images to test on" in err
    assert (tmp_path / "n.snn").read_bytes() == first
    text = (tmp_path / "nets.py").read_text().replace("0.25))", '0.25), data="npz:images.npz")')
    (tmp_path / "nets.py").write_text(text)
    code, out, err = run(*arguments, "--json")
    assert code == 0 and json.loads(out)["summary"]["images"] == 30  # of the card's test set
    assert run(*arguments, "--report", "page.html")[0] == 0
    assert "32 images made from the network itself" in (tmp_path / "page.html").read_text()
    assert "calibrated on images distilled from the network" in run("check", "n.snn")[1]


def test_refusals_come_before_images_are_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS.replace("stride=2), nn.ReLU()", "stride=2), nn.SiLU()"))
    arguments = ("convert", "nets.py:make", "--data", "distilled", "-T", "2", "-o", "n.snn", "--workdir", "work")
    fails(run(*arguments), "SiLU")
    fails(run(*arguments, "--keep", "nowhere"), "nowhere")
    fails(run("convert", "nets.py:bare", *arguments[2:]), "spikecal distill nets.py:bare --size H W")
    assert not (tmp_path / "work").exists()
    (tmp_path / "nets.py").write_text(NETWORKS)
    fails(run(*arguments, "--memory", "1K"), "give a smaller n")


def test_without_bn_the_note_is_shown(run: Run) -> None:
    code, out, err = run("distill", "nets.py:plain", *SMALL, "-o", "images.npz")
    assert code == 0 and "no BN, or BN that is folded" in err
    assert "images.npz: 40 images 3×12×12" in out and "images.png shows 40 of them" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nets.py:make", "-o", "images.png"], "images are written as .npz: name the file images.npz"),
        (["nets.py:make", "-o", "no/images.npz"], "there is no folder"),
        (["nets.py:make", "-o", "i.npz", "--sheet", "a.jpg"], "a.jpg: the contact sheet must end in .png"),
        (["nets.py:bare", "-o", "i.npz"], "does not state the size of its images"),
        (["nets.py:make", "-o", "i.npz", "--size", "1", "1"], "does not take images of shape (3, 1, 1)"),
        (["nets.py:make", "-o", "i.npz", "-n", "0"], "-n"),
        (["nets.py:none", "-o", "i.npz"], "has no function 'none'"),
        (["nets.py:make", "-o", "i.npz", "--with", "vgg16-half"], "vgg16-half has no weights of its own"),
        (["nets.py:make", "-o", "i.npz", "--with", "vgg16-half=no.pt"], "there is no weights file no.pt"),
        (["nets.py:make", "-o", "i.npz", "--with", "nets.py:other="], "names no file"),
        (["retinanet-r18-quarter", "-o", "i.npz"], "is a detector"),
        (["nets.py:make", "-o", "i.npz", "--workdir", "nets.py"], "cannot be used"),
    ],
)
def test_bad_calls(run: Run, arguments: list[str], reason: str) -> None:
    fails(run("distill", *arguments), reason)


def test_distilled_is_for_convert(run: Run) -> None:
    for verb in (["evaluate", "n.snn", "--model", "nets.py:make"], ["reproduce", "bn", "--model", "nets.py:make"]):
        assert run("convert", "nets.py:make", "--data", "npz:images.npz", "-T", "2", "-o", "n.snn")[0] == 0
        fails(run(*verb, "--data", "distilled"), "npz:FILE")
    command = ("convert", "retinanet-r18-quarter", "--data", "distilled", "-o", "d.snn")
    fails(run(*command), "images cannot be distilled from detectors")


# -- reproduce fakedata ------------------------------------------------------------------------------------------

TABLE = (
    *("reproduce", "fakedata", "--model", "nets.py:make", "--data", "npz:images.npz", "-T", "2", "--images", "20"),
    *("--seeds", "2", "--iterations", "3", "--distilled", "24", "--distill-iterations", "5", "-o", "out", "--json"),
)


def test_the_table_of_fake_data(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*TABLE, "--with", "nets.py:other", "--other", "npz:others.npz")
    assert (code, err) == (0, "")
    found = json.loads(out)
    rows = {row["method"]: row["columns"]["2"]["values"] for row in found["networks"][0]["rows"]}
    sources = ("Real images", "Distilled images", "Distilled from two networks", "Other real images", "Gaussian noise")
    assert list(rows) == [f"{source} + {name}" for name in ("LCP", "ACP") for source in sources]
    assert found["settings"]["sources"]["several"].startswith("24 images, once, from nets.py:make and nets.py:other")
    assert {claim["claim"] for claim in found["claims"]} >= {"distilled images beat noise by three points, LCP"}
    page = (tmp_path / "out" / "fakedata.md").read_text()
    assert "51.67 ± 0.15" in page and "Other real images: the 60 training images of npz:others.npz" in page
    folders = sorted((tmp_path / "out").glob("distilled-*"))
    assert len(folders) == 2
    # by hand, with the library: the images of the table are those of the verb
    model, card = spikecal_model(tmp_path)
    made = spikecal.distill(model, 24, card=card, iterations=5)
    images = torch.from_numpy(np.load(tmp_path / "images.npz")["x_test"]).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.load(tmp_path / "images.npz")["y_test"])
    chosen = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:20].sort().values
    tested = (images[chosen].float() / 255 - 0.5) / 0.25
    expected = []
    for seed in (0, 1):
        snn = spikecal.convert(model, made.inputs(), T=2, pipeline=spikecal.LCP, seed=seed).snn
        expected.append(100 * float((snn(tested).argmax(1) == labels[chosen]).double().mean()))
    assert rows["Distilled images + LCP"] == pytest.approx(expected)
    # again: nothing is recomputed, and the bytes are the same
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.step")}
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    code, again, _ = run(*TABLE, "--with", "nets.py:other", "--other", "npz:others.npz")
    assert code == 0 and again == out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.step")}
    assert cells == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}


def spikecal_model(folder: Path) -> tuple[torch.nn.Module, Card]:
    from spikecal.zoo.models import load_model

    return load_model(f"{folder / 'nets.py'}:make")


def test_rows_that_cannot_be_had_are_left_out_and_named(run: Run) -> None:
    code, out, _ = run(*TABLE)
    assert code == 0
    found = json.loads(out)
    methods = [row["method"] for row in found["networks"][0]["rows"]]
    assert "Distilled images + LCP" in methods and not any("two" in m or "Other" in m for m in methods)
    assert any("name the second with --with" in said for said in found["differences"])
    assert any("neither cifar100 nor fashion-mnist is here" in said for said in found["differences"])
    assert not any("two networks" in claim["claim"] for claim in found["claims"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["lcp", "--with", "nets.py:other"], "--with is for the table fakedata, not for lcp"),
        (["lcp", "--distilled", "9"], "--distilled is for the table fakedata"),
        (["fakedata"], "spikecal datasets get cifar10"),
        (["fakedata", "--data", "demo", "--with", "resnet99"], "unknown model 'resnet99'"),
        (["fakedata", "--data", "demo", "--other", "frob"], "unknown data 'frob'"),
        (["fakedata", "--model", "nets.py:bare", "--data", "npz:images.npz"], "does not state its input size"),
    ],
)
def test_bad_calls_of_the_table(run: Run, arguments: list[str], reason: str) -> None:
    fails(run("reproduce", *arguments), reason)
