"""`spikecal train` as a user runs it: it writes weights and a card, and a killed run resumes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.calls import on_terminal
from PIL import Image
from safetensors.torch import load_file

from spikecal.cli.main import main
from spikecal.data.prepare import Loader
from spikecal.data.sources import load_data
from spikecal.evaluation import accuracy
from spikecal.zoo.models import load_model

Run = Callable[..., tuple[int, str, str]]

NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

CARD = Card(name="small", size=(12, 12), mean=(0.5,) * 3, std=(0.25,) * 3)

def make(bn=True):
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), *([nn.BatchNorm2d(8)] if bn else []), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2)), CARD

def plain():
    return make(bn=False)
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in a folder with a network and images whose class is their brightness."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPIKECAL_DATA", str(tmp_path / "sets"))
    (tmp_path / "nets.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 96), ("test", 40)):
        labels = rng.integers(0, 2, count)
        arrays[f"x_{split}"] = (rng.integers(0, 128, (count, 12, 12, 3)) + 100 * labels[:, None, None, None]).astype(
            np.uint8
        )
        arrays[f"y_{split}"] = labels
    np.savez(tmp_path / "images.npz", **arrays)
    (tmp_path / "images.py").write_text(  # labels for training alone
        "import torch\ndef make(split):\n    images = torch.zeros(96, 3, 12, 12)\n"
        "    return (images, torch.zeros(96).long()) if split == 'train' else images\n"
    )
    np.savez(tmp_path / "one.npz", images=arrays["x_train"], labels=arrays["y_train"])

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["train", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def facts(result: tuple[int, str, str]) -> Any:
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


QUICK = ("--data", "npz:images.npz", "--recipe", "quick", "--epochs", 3, "--batch", 16)
SHORT = ("--recipe", "quick", "--epochs", 1, "--batch", 8, "--workers", 0)


def test_weights_and_card_are_written_read_and_true(run: Run, tmp_path: Path) -> None:
    found = facts(run("nets.py:make", *QUICK, "-o", "w.safetensors", "--half", "--validate", 16, "--json"))
    assert found["weights"] == "float16"
    assert found["accuracy"]["images"] == 40
    assert found["accuracy"]["split"] == "test"
    assert found["accuracy"]["share"] > 0.9  # bright and dark are easily told apart
    assert (found["training"]["recipe"], found["training"]["epochs"], found["training"]["images"]) == ("quick", 3, 80)
    assert found["validation"]["images"] == 16
    assert [record["epoch"] for record in found["history"]] == [1, 2, 3]
    card = json.loads((tmp_path / "w.safetensors.json").read_text())
    assert card == {k: v for k, v in found.items() if k not in ("history", "unreadable")}

    model, card = load_model("nets.py:make", tmp_path / "w.safetensors")
    test = load_data("npz:images.npz", "test")
    assert accuracy(model, Loader(test, card, 40)) == found["accuracy"]["share"]
    names = {"w.safetensors", "w.safetensors.json", "w.safetensors.checkpoint"}
    assert {path.name for path in tmp_path.glob("w.*")} == names

    before = (tmp_path / "w.safetensors").read_bytes()
    again = facts(run("nets.py:make", *QUICK, "-o", "w.safetensors", "--half", "--validate", 16, "--json"))
    assert again == found  # from the finished checkpoint
    (tmp_path / "w.safetensors.checkpoint").unlink()
    facts(run("nets.py:make", *QUICK, "-o", "w.safetensors", "--half", "--validate", 16, "--json"))
    assert (tmp_path / "w.safetensors").read_bytes() == before  # and from nothing


def test_lines_for_people(run: Run) -> None:
    code, out, err = run("nets.py:make", *QUICK, "-o", "w.safetensors")
    assert code == 0
    assert out.startswith("w.safetensors: ") and "float32" in out and "of 40 test images" in out
    assert out.count("\n") == 1
    announced, *epochs = err.splitlines()
    assert announced == "nets.py:make: recipe quick, 3 epochs, lr 0.2, seed 0"
    assert [line.split(":")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]


@pytest.mark.parametrize(("model", "name"), [("nets.py:make", "cifar"), ("nets.py:plain", "cifar-nobn")])
def test_the_papers_recipe_is_taken_and_named(run: Run, model: str, name: str) -> None:
    flags = ("--data", "npz:images.npz", "--epochs", 1, "--batch", 48, "--workers", 0, "-o", "w.safetensors")
    code, _, err = run(model, *flags)
    assert code == 0, err
    assert f"recipe {name}, 1 epoch," in err
    assert "--recipe chooses another" in err


def test_a_recipe_for_other_networks_is_remarked_on(run: Run) -> None:
    _, _, err = run("nets.py:plain", *QUICK, "-o", "w.safetensors")
    assert "has no BN, for which there is quick-nobn" in err


def test_settings_from_a_file_and_flags(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('preset = "quick"\nepochs = 9\nema = 0.5\nlr = 0.05\nseed = 4\n')
    flags = ("--config", "r.toml", "--epochs", 2, "--batch", 24, "--weight-decay", 0.001)
    found = facts(run("nets.py:make", "--data", "npz:one.npz", *flags, "-o", "w.safetensors", "--json"))
    told = found["training"]
    assert (told["recipe"], told["epochs"], told["batch"], told["lr"]) == ("r.toml", 2, 24, 0.05)
    assert (told["weight_decay"], told["ema"], told["seed"]) == (0.001, 0.5, 4)
    # these arrays have no test images: what is measured is not passed off as one
    assert (found["accuracy"]["split"], found["accuracy"]["images"]) == ("train", 96)
    other = facts(
        run("nets.py:make", "--data", "npz:one.npz", *flags, "--seed", 5, "-o", "other.safetensors", "--json")
    )
    assert other["training"]["seed"] == 5
    a, b = (load_file(tmp_path / f"{name}.safetensors") for name in ("w", "other"))
    assert not torch.equal(a["0.weight"], b["0.weight"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nets.py:make", "-o", "w.safetensors"], "--data"),
        (["nets.py:make", *QUICK], "--output"),
        (["nets.py:make", *QUICK, "-o", "w.pt"], "name the file w.safetensors"),
        (["nets.py:make", *QUICK, "-o", "none/w.safetensors"], "there is no folder"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--config", "r.toml"], "not both"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--lr", "-1"], "lr must be above 0"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--batch", "200"], "fewer than a batch of 200"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--validate", "96"], "cannot be held out"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--device", "frob"], "no device 'frob'"),
        (["nets.py:make", "--data", "cifar10", "--recipe", "slow", "-o", "w.safetensors"], "no recipe 'slow'"),
        (["nets.py:make", "--data", "cifar10", "-o", "w.safetensors"], "spikecal datasets get cifar10"),
        (["nets.py:make", "--data", "images.py:make", *QUICK[2:], "-o", "w.safetensors"], "has no labels"),
        (["frob", *QUICK, "-o", "w.safetensors"], "unknown model 'frob'"),
        (["nets.py:make", *QUICK, "-o", "w.safetensors", "--lr", "1e30"], "the loss is"),
    ],
)
def test_bad_calls(run: Run, arguments: list[object], reason: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("nets.py:make: recipe")]
    assert line.startswith("error: ") and reason in line


def test_another_recipe_does_not_resume(run: Run, tmp_path: Path) -> None:
    run("nets.py:make", *QUICK, "-o", "w.safetensors")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("w.*")}
    code, _, err = run("nets.py:make", *QUICK, "--epochs", 4, "-o", "w.safetensors")
    assert code == 2
    assert "w.safetensors.checkpoint belongs to a different recipe (epochs 3, not 4): delete it" in err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("w.*")} == before


def test_a_damaged_checkpoint(run: Run) -> None:
    run("nets.py:make", *QUICK, "-o", "w.safetensors")
    whole = torch.load("w.safetensors.checkpoint", weights_only=True)
    without = {key: value for key, value in whole.items() if key != "optimiser"}
    for damaged in (without, whole | {"history": [{"no": "record"}]}, whole | {"model": {"0.weight": torch.zeros(1)}}):
        torch.save(damaged, "w.safetensors.checkpoint")
        code, out, err = run("nets.py:make", *QUICK, "-o", "w.safetensors")
        assert (code, out) == (2, "")
        assert re.search(r"^error: w\.safetensors\.checkpoint is damaged \(.+\): delete it", err, re.MULTILINE), err


@pytest.mark.usefixtures("run")
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    shown = on_terminal(tmp_path, "train", "nets.py:make", *QUICK, "-o", "w.safetensors")
    assert all(words in shown for words in ("epoch 3/3", "loss", "lr", "left"))


def test_the_data_says_how_many_classes_there_are(run: Run, tmp_path: Path) -> None:
    """What the CIFAR-10 networks become on CIFAR-100, or on folders of one's own."""
    rng = np.random.default_rng(0)
    np.savez("many.npz", x=rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), y=np.arange(24) % 12)
    for i in range(24):
        (tmp_path / "own" / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
            tmp_path / f"own/{'abc'[i % 3]}/{i}.png"
        )
    for data, classes in (("npz:many.npz", 12), ("folder:own", 3), ("npz:one.npz", 10)):
        result = run("resnet20", "--data", data, "-o", f"{classes}.safetensors", *SHORT)
        assert result[0] == 0, result[2]
        assert load_file(f"{classes}.safetensors")["fc.weight"].shape == (classes, 64)
        assert load_model("resnet20", Path(f"{classes}.safetensors"))[0].fc.out_features == classes


def test_images_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    """Training skips them, and the test counts those it has; `--strict` does neither."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for i in range(20):
            place = tmp_path / "set" / split / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(place / f"{i:02}.png")
        (tmp_path / "set" / split / "a" / "00.png").write_bytes(b"no image")
    call = ["nets.py:make", "--data", "folder:set", *SHORT]
    code, out, err = run(*call, "-o", "w.safetensors")
    assert code == 0, err
    assert "% of 19 test images" in out
    assert "2 of the images cannot be read and were left out:" in err
    listed = [line for line in err.splitlines() if line.startswith("  ")]
    assert [next(part for part in ("train", "test") if f"/{part}/" in line) for line in listed] == ["train", "test"]
    trained_on = json.loads(Path("w.safetensors.json").read_text())["training"]
    assert (trained_on["images"], trained_on["unreadable"]) == (20, 1)
    code, out, err = run(*call, "-o", "s.safetensors", "--strict")
    assert (code, out) == (2, "")
    said = r"folder:set: 1 unreadable: \S*test\S*00\.png \(.*\): leave out --strict to go on without them$"
    assert re.search(said, err.strip())
    assert "epoch 1/" not in err and not list(tmp_path.glob("s.safetensors*"))  # before any step
    (tmp_path / "set" / "test" / "a" / "00.png").unlink()
    code, out, err = run(*call, "-o", "s.safetensors", "--strict")
    assert (code, out) == (2, "")
    assert "00.png is not a readable image" in err
    assert not Path("s.safetensors").exists()


def test_faults_of_a_call_are_found_before_the_training(run: Run, tmp_path: Path) -> None:
    np.savez("plain.npz", x=np.zeros((24, 32, 32, 3), dtype=np.uint8))
    (tmp_path / "folder.safetensors").mkdir()
    for arguments, said in (
        (("--data", "npz:plain.npz", "-o", "w.safetensors"), "has no labels"),
        (("--data", "npz:one.npz", "-o", "folder.safetensors"), "is a folder"),
        (("--data", "npz:one.npz", "-o", "w.safetensors", "--checkpoint", "none/c"), "there is no folder"),
        (("--data", "npz:one.npz", "-o", "w.safetensors", "--checkpoint", "w.safetensors"), "give another name"),
    ):
        code, out, err = run("resnet20", *arguments, *SHORT)
        assert (code, out) == (2, "") and said in err and "epoch 1" not in err, err
        assert not Path("w.safetensors").exists()
