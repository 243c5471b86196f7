"""`spikecal figure`, and the summary of `convert` and `evaluate`, as a user has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.calls import Run, fails
from PIL import Image
from torch import nn

from spikecal.figures import Settings, Subject, draw

NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

def make(bn=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8) if bn else nn.Identity(), nn.ReLU(),
                        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(8, 4))
    return net, Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

def plain():
    return make(False)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A small network and images for it, in the folder of the command."""
    (tmp_path / "nets.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 40), ("test", 30)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = rng.integers(0, 4, count)
    np.savez(tmp_path / "images.npz", **arrays)
    np.savez(tmp_path / "unlabelled.npz", **{name: x for name, x in arrays.items() if name.startswith("x")})


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bn", ["--model", "nets.py:plain"]),
        ("calibration", ["--iterations", 2]),
        ("parts", []),
        ("threshold", ["--layer", "4"]),
        ("rate", ["-T", 6]),
        ("accuracy", ["-T", 2, "-T", 4, "--iterations", 2]),
        ("samples", ["--seeds", 2, "-T", 2]),
    ],
)
def test_every_figure_is_one_command(run: Run, name: str, more: list[object]) -> None:
    common = ("--model", "nets.py:make", "--data", "npz:images.npz", "--images", 20)
    code, out, err = run("figure", name, *common, *more, "-o", "a.png", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["figure"] == name
    with Image.open("a.png") as picture:
        assert min(picture.size) > 400
    if name == "threshold":
        assert facts["layer"] == "4"
        assert len(facts["thresholds"]["MMSE"]) == 64
        assert len(set(facts["thresholds"]["MaxAct"].values())) == 1
        assert max(facts["thresholds"]["MMSE"].values()) <= facts["thresholds"]["MaxAct"]["1"]
    if name == "bn":
        assert len(facts["networks"]) == 2


def test_titles_say_what_was_done() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    images = torch.rand(256, 3, 8, 8)
    test = [(images[:12], torch.zeros(12, dtype=torch.int64))]
    subject = Subject(name="small", model=model, calibration=images, test=test)
    for seeds, said in ((1, "1 sample each"), (2, "2 samples each")):
        figure, _ = draw("samples", [subject], Settings(T=(2,), seeds=seeds))
        assert figure.axes[0].get_title() == f"small, T = 2, {said}"
    figure, _ = draw("bn", [subject], Settings(T=(2,)))
    assert figure.get_suptitle() == "Relative error by layer, weights copied (MaxAct, ClipFloor), T = 2"


def test_clip_needs_no_network_and_pictures_come_as_vectors(run: Run, tmp_path: Path) -> None:
    for suffix, start in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")):
        assert run("figure", "clip", "-o", f"clip{suffix}")[0] == 0
        assert (tmp_path / f"clip{suffix}").read_bytes().startswith(start)


def test_figures_are_listed_and_bad_calls_are_one_line(run: Run) -> None:
    code, out, _ = run("figure")
    assert code == 0
    assert "firing rate" in out
    assert json.loads(run("figure", "--json")[1])["bn"]["T"] == [16]
    fails(run("figure", "frob", "-o", "a.png"), "there is no figure 'frob'")
    fails(run("figure", "clip"), "-o FILE")
    fails(run("figure", "clip", "-o", "a.doc"), ".png")
    fails(run("figure", "clip", "-o", "none/a.png"), "no folder")
    fails(run("figure", "rate", "--weights", "w.pt", "-o", "a.png"), "MODEL=w.pt")
    fails(run("figure", "rate", "--weights", "resnet20=", "-o", "a.png"), "names no file")
    two = ("--model", "nets.py:make", "--model", "nets.py:plain", "--data", "npz:images.npz")
    fails(run("figure", "rate", *two, "-o", "a.png"), "one network")
    layer = ("--model", "nets.py:make", "--data", "npz:images.npz", "--layer", "frob")
    fails(run("figure", "threshold", *layer, "-o", "a.png"), "no layer of neurons 'frob'")


class TestSummary:
    def convert(self, run: Run, *more: object) -> tuple[int, str, str]:
        flags = ("--pipeline", "lcp", "-T", 2, "-T", 16, "-o", "n.snn")
        return run("convert", "nets.py:make", "--data", "npz:images.npz", *flags, *more)

    def test_convert_and_evaluate_say_the_same(self, run: Run) -> None:
        converted = json.loads(self.convert(run, "--json")[1])
        summary = converted["summary"]
        assert (summary["images"], summary["split"]) == (30, "test")
        measured = json.loads(run("evaluate", "n.snn", "--data", "npz:images.npz", "--json")[1])
        assert {k: measured[k] for k in ("ann", "needed", "within")} == {
            k: summary[k] for k in ("ann", "needed", "within")
        }
        for a, b in zip(summary["networks"], measured["networks"], strict=True):
            assert a == b  # the timings too: they are beside the file
            assert len(a["accuracy"]) == a["T"]
            assert a["energy"]["ratio"] == pytest.approx(a["energy"]["snn_pj"] / a["energy"]["ann_pj"])
        inside = json.loads(run("check", "n.snn", "--json")[1])["measured"]
        assert inside["ann"] == summary["ann"]
        assert inside["networks"]["16"]["accuracy"] == summary["networks"][1]["accuracy"][-1]

    def test_tables_for_people(self, run: Run) -> None:
        code, out, err = self.convert(run)
        assert (code, err) == (0, "")
        assert "energy" in out and "break-even" in out and "latency" in out and "spikes" in out
        assert "30 test images of npz:images.npz" in out
        code, out, _ = run("evaluate", "n.snn", "--data", "npz:images.npz", "-T", 2)
        assert "After every step" in out and "conversion" in out

    def test_which_t_is_needed(self, run: Run) -> None:
        self.convert(run)
        assert "T = 2 is enough" in run("evaluate", "n.snn", "--data", "npz:images.npz", "--within", 100)[1]
        found = json.loads(run("evaluate", "n.snn", "--data", "npz:unlabelled.npz", "--within", 0, "--json")[1])
        last = {n["T"]: n["agreement"][-1] for n in found["networks"]}
        assert found["needed"] == next((T for T in (2, 16) if last[T] == 1), None)
        out = run("evaluate", "n.snn", "--data", "npz:unlabelled.npz", "-T", 2, "--within", 0)[1]
        assert ("none of T = 2 comes within 0 points" in out) == (last[2] < 1)
        assert "as the ANN %" in out and "accuracy" not in out

    def test_without_the_ann(self, run: Run) -> None:
        self.convert(run, "--pipeline", "acp", "--iterations", 2)
        data = ("--data", "npz:images.npz")
        assert json.loads(run("evaluate", "n.snn", *data, "--json")[1])["ann"] is None
        fails(run("evaluate", "n.snn", *data, "--within", 1), "--model")
        fails(run("evaluate", "n.snn", "--data", "npz:unlabelled.npz"), "--model")
        assert "enough" in run("evaluate", "n.snn", *data, "--within", 100, "--model", "nets.py:make")[1]

    def test_what_cannot_be_measured_is_still_converted(self, run: Run, tmp_path: Path) -> None:
        with np.load("images.npz") as arrays:
            np.savez("train.npz", x_train=arrays["x_train"])
        command = ("convert", "nets.py:make", "--data", "npz:train.npz", "-T", 2, "-o", "t.snn")
        code, _, err = run(*command)
        assert (code, (tmp_path / "t.snn").exists()) == (0, True)
        assert "no summary" in err
        assert json.loads(run(*command, "--json")[1])["summary"] is None
        assert json.loads(run(*command, "--test", 0, "--json")[1])["summary"] is None
