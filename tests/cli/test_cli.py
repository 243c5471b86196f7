"""The command as a user has it: exit codes, one line for an error, JSON and nothing else."""

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
from cli.calls import NETWORK, Run, fails, on_terminal
from PIL import Image

from spikecal.files import write_whole

NETWORKS = (
    NETWORK
    + """
def refused():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.GELU())

def bare():
    return make()[0]

def gated():
    net, card = make()
    return nn.Sequential(net, nn.Sigmoid()), card

def other():
    net, card = make()
    net[-1] = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    return net, card
"""
)


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A small network and labelled images for it, in the folder of the command."""
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=rng.integers(0, 4, 40))
    return "nets.py:make"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["frob"], "No such command 'frob'"),
        (["convert", "resnet20"], "--output"),
        (["convert", "--frob"], "--frob"),
        (["convert", "resnet21", "-o", "x.snn"], "unknown model 'resnet21'"),
        (["convert", "resnet32", "-o", "x.snn"], "give --weights"),
        (["convert", "resnet20", "-T", "0", "-o", "x.snn"], "-T"),
        (["convert", "resnet20", "-T", "many", "-o", "x.snn"], "-T"),
        (["convert", "resnet20", "--pipeline", "frob", "-o", "x.snn"], "frob"),
        (["convert", "resnet20", "--pipeline", "acp", "--config", "a.toml", "-o", "x.snn"], "not both"),
        (["convert", "resnet20", "--config", "none.toml", "-o", "x.snn"], "none.toml"),
        (["convert", "resnet20", "--rounding", "up", "-o", "x.snn"], "--rounding"),
        (["convert", "resnet20", "--pipeline", "lcp", "--kappa", "0.5", "-o", "x.snn"], "kappa is for"),
        (["convert", "resnet20", "--kappa", "0.5", "-o", "x.snn"], "add --pipeline lcp"),
        (["convert", "resnet20", "--pipeline", "lcp", "--effort", "low", "-o", "x.snn"], "this pipeline is fixed"),
        (["convert", "resnet20", "--effort", "max", "-o", "x.snn"], "--effort"),
        (["convert", "resnet20", "--rounding", "split", "--kappa", "2", "-o", "x.snn"], "--kappa"),
        (["convert", "resnet20", "--pipeline", "lcp", "--iterations", "5", "-o", "x.snn"], "weights calibration"),
        (["convert", "resnet20", "--iterations", "5", "-o", "x.snn"], "--iterations"),
        (["convert", "resnet20", "--memory", "lots", "-o", "x.snn"], "lots"),
        (["convert", "resnet20", "--data", "cifar10", "-o", "x.snn"], "spikecal datasets get cifar10"),
        (["convert", "resnet20", "--data", "folder:none", "-o", "x.snn"], "no folder none"),
        (["convert", "resnet20", "--weights", "none.pt", "-o", "x.snn"], "no weights file none.pt"),
        (["convert", "resnet20", "--weights", ".", "-o", "x.snn"], "is a folder: give the checkpoint in it"),
        (["convert", "torchvision:rsnet18", "-o", "x.snn"], "no model 'rsnet18': did you mean resnet18"),
        (["convert", "timm:resnt50", "-o", "x.snn"], "no model 'resnt50': did you mean resnet50"),
        (["convert", "pytorchcv:resnt20_cifar10", "-o", "x.snn"], "did you mean resnet20_cifar10"),
        (["convert", "resnet20", "-o", "none/x.snn"], "no folder"),
        (["convert", "resnet20", "-o", "."], "is a folder"),
        (["convert", "resnet20", "-o", "net.snn", "--seed", "99999999999999999999999"], "--seed"),
        (["evaluate", "none.snn"], "none.snn"),
        (["check", "none.snn"], "none.snn"),
        (["check", "none.py:make"], "no file none.py"),
        (["check", "resnet20", "--pipeline", "frob"], "frob"),
        (["datasets", "get", "frob"], "no dataset 'frob'"),
        (["datasets", "check", "npz:none.npz"], "there is no file none.npz"),
    ],
)
def test_bad_calls(run: Run, arguments: list[str], reason: str) -> None:
    fails(run(*arguments), reason)


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = "import sys; from spikecal.cli.main import main; main([{!r}]); sys.exit('torch' in sys.modules)"
    for option, shown in (("--version", "spikecal 0."), ("--help", "convert")):
        done = subprocess.run([sys.executable, "-c", code.format(option)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout


def test_models(run: Run) -> None:
    code, out, err = run("models")
    assert (code, err) == (0, "")
    assert "resnet56" in out
    code, out, _ = run("models", "--json")
    assert json.loads(out)["models"]["resnet20"]["size"] == [32, 32]


class TestDatasets:
    def test_sets_that_are_present(self, run: Run, tmp_path: Path) -> None:
        code, out, _ = run("datasets", "--json")
        sets = json.loads(out)
        assert code == 0
        assert sets["demo"]["present"]
        assert not sets["cifar10"]["present"]
        assert sets["cifar10"]["where"] == str(tmp_path / "sets")
        assert sets["cifar10"]["get"] == "spikecal datasets get cifar10"
        assert not sets["imagenet"]["present"]
        folder = tmp_path / "elsewhere" / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        (folder / "test_batch.bin").write_bytes(bytes(3073 * 4))
        found = json.loads(run("datasets", "--data-root", folder.parent, "--json")[1])["cifar10"]
        assert (found["where"], found["images"], found["verified"]) == (str(folder), {"train": 0, "test": 4}, False)
        assert "no: altered" in run("datasets", "--data-root", folder.parent)[1]
        fails(run("datasets", "get", "cifar10", "--data-root", folder.parent), "delete it and run this again")

    def test_getting_present_and_unavailable_sets(self, run: Run) -> None:
        assert "is already there" in run("datasets", "get", "demo")[1]
        fails(run("datasets", "get", "imagenet"), "image-net.org")

    def test_what_cannot_be_fetched_leaves_no_folder(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nothing listens
        fails(run("datasets", "get", "cifar100", "--data-root", tmp_path / "new"), "CIFAR-100 cannot be fetched")
        assert not (tmp_path / "new").exists()

    def test_check_says_how_far_floats_reach(self, run: Run, tmp_path: Path) -> None:
        np.savez(tmp_path / "images.npz", images=np.linspace(-2, 2.5, 4 * 3 * 8 * 8, dtype="f").reshape(4, 3, 8, 8))
        assert "4 images, no labels, floats from -2 to 2.5\n" in run("datasets", "check", "npz:images.npz")[1]
        assert json.loads(run("datasets", "check", "npz:images.npz", "--json")[1])["range"] == [-2.0, 2.5]
        assert json.loads(run("datasets", "check", "demo", "--json")[1])["range"] is None

    def test_check_counts_and_lists(self, run: Run, tmp_path: Path) -> None:
        damaged_folder(tmp_path / "pictures")
        code, out, err = run("datasets", "check", "folder:pictures")
        assert code == 0
        assert "10 images, 4 classes" in out
        assert "2 of the images cannot be read:" in err
        assert "b.png: not an image" in err
        code, out, _ = run("datasets", "check", "folder:pictures", "--json")
        found = json.loads(out)
        assert (code, found["images"], found["classes"]) == (0, 10, 4)
        assert [Path(x["file"]).name for x in found["unreadable"]] == ["a.png", "b.png"]
        code, out, err = run("datasets", "check", "folder:pictures", "--strict", "--json")
        assert (code, json.loads(out)) == (2, found)
        assert "2 unreadable" in err


def damaged_folder(folder: Path) -> None:
    """Four classes: ten whole images, a truncated one, and a file that is not an image."""
    rng = np.random.default_rng(1)
    for i in range(10):
        path = folder / f"class{i % 4}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (14, 16, 3), dtype=np.uint8)).save(path)
    whole = (folder / "class0" / "0.png").read_bytes()
    (folder / "class0" / "a.png").write_bytes(whole[:200])
    (folder / "class1" / "b.png").write_text("no image")


class TestUnreadableImages:
    def test_are_left_out_counted_and_listed(self, run: Run, net: str, tmp_path: Path) -> None:
        damaged_folder(tmp_path / "pictures")
        code, _, err = run("convert", net, "--data", "folder:pictures", "-T", 4, "-o", "a.snn")
        assert code == 0
        assert "2 of the images cannot be read and were left out" in err
        code, out, _ = run("evaluate", "a.snn", "--data", "folder:pictures", "--model", net, "--json")
        found = json.loads(out)
        assert (code, found["images"]) == (0, 10)
        assert {Path(x["file"]).name: x["reason"] for x in found["unreadable"]}["b.png"] == "not an image"
        code, _, err = run("evaluate", "a.snn", "--data", "folder:pictures")
        assert "a.png: " in err

    def test_do_not_change_what_the_others_give(self, run: Run, net: str, tmp_path: Path) -> None:
        damaged_folder(tmp_path / "pictures")
        assert run("convert", net, "--data", "folder:pictures", "-T", 4, "-o", "a.snn")[0] == 0
        for path in (tmp_path / "pictures").glob("*/?.png"):
            if path.stem in "ab":
                path.unlink()
        assert run("convert", net, "--data", "folder:pictures", "-T", 4, "-o", "b.snn")[0] == 0
        assert (tmp_path / "a.snn").read_bytes() == (tmp_path / "b.snn").read_bytes()

    def test_are_an_error_with_strict(self, run: Run, net: str, tmp_path: Path) -> None:
        damaged_folder(tmp_path / "pictures")
        fails(run("convert", net, "--data", "folder:pictures", "--strict", "-o", "a.snn"), "2 unreadable")
        assert not (tmp_path / "a.snn").exists()
        assert run("convert", net, "-T", 4, "--data", "npz:images.npz", "-o", "a.snn")[0] == 0
        fails(run("evaluate", "a.snn", "--data", "folder:pictures", "--strict"), "a.png is not a readable image")

    def test_only_unreadable_images(self, run: Run, net: str, tmp_path: Path) -> None:
        for name in ("x", "y"):
            (tmp_path / "pictures" / name).mkdir(parents=True)
            (tmp_path / "pictures" / name / "a.jpg").write_text("no image")
        fails(run("convert", net, "--data", "folder:pictures", "-o", "a.snn"), "none of the 2 images can be read")
        fails(run("datasets", "check", "folder:pictures"), "none of the 2 images can be read")


class TestCheck:
    def test_stages_memory_and_time(self, run: Run) -> None:
        code, out, err = run("check", "resnet20")
        assert (code, err) == (0, "")
        assert "blocks.8.relu2" in out
        found = json.loads(run("check", "resnet20", "-T", 8, "--json")[1])
        assert found["converts"]
        assert len(found["stages"]) == 20  # nineteen layers of neurons and the classifier
        assert sum(stage["kind"] == "neurons" for stage in found["stages"]) == 19
        # images × (four bytes of the ANN and T bits) of the three boundaries of 16×32×32 alive in the first blocks
        assert found["estimate"]["bytes"] == 3 * 128 * 16 * 32 * 32 * (4 + 1)
        assert found["estimate"]["seconds"] > 0

    def test_refusals_are_all_listed(self, run: Run, net: str) -> None:
        code, out, err = run("check", "nets.py:refused", "--size", 8, 8)
        assert code == 2
        assert "SiLU" in out
        assert "GELU" in out
        assert err.count("\n") == 1
        code, out, _ = run("check", "nets.py:refused", "--size", 8, 8, "--json")
        assert code == 2
        assert [r["found"] for r in json.loads(out)["refused"]] == ["SiLU", "GELU"]

    def test_size_must_be_known(self, run: Run, net: str) -> None:
        fails(run("check", "nets.py:bare"), "--size")
        assert run("check", "nets.py:bare", "--size", 9, 9)[0] == 0


class TestConvert:
    def convert(self, run: Run, net: str, *more: object) -> Any:
        code, out, err = run("convert", net, "--data", "npz:images.npz", "-T", 2, "-T", 4, *more, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def test_file_is_written_read_and_measured(self, run: Run, net: str, tmp_path: Path) -> None:
        facts = self.convert(run, net, "-o", "net.snn")
        assert facts["T"] == [2, 4]
        assert facts["bytes"] == (tmp_path / "net.snn").stat().st_size
        assert {record["T"] for record in facts["records"]} == {2, 4}

        inside = json.loads(run("check", "net.snn", "--json")[1])
        assert inside["T"] == [2, 4]
        code, out, _ = run("check", "net.snn")
        assert code == 0
        assert "T = 2, 4" in out

        code, out, err = run("evaluate", "net.snn", "--data", "npz:images.npz", "--model", net, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["images"] == 40
        assert {n["T"]: len(n["accuracy"]) for n in found["networks"]} == {2: 2, 4: 4}
        assert 0 <= found["ann"] <= 1
        found = json.loads(run("evaluate", "net.snn", "--data", "npz:images.npz", "-T", 2, "--images", 10, "--json")[1])
        assert ([n["T"] for n in found["networks"]], found["images"]) == ([2], 10)
        assert found["ann"] is not None  # biases were calibrated: the ANN's weights are still in the file
        code, out, _ = run("evaluate", "net.snn", "--data", "npz:images.npz", "--model", net)
        assert code == 0
        assert "ANN" in out
        fails(run("evaluate", "net.snn", "--data", "npz:images.npz", "-T", 3), "T=3")

    def test_an_analog_end_comes_from_the_model(self, run: Run, net: str) -> None:
        self.convert(run, "nets.py:gated", "-o", "net.snn", "--keep", "1")
        data = ("--data", "npz:images.npz")
        found = json.loads(run("evaluate", "net.snn", *data, "--model", "nets.py:gated", "--json")[1])
        whole = self.convert(run, net, "-o", "whole.snn")["summary"]["networks"]
        assert found["networks"][1]["accuracy"] == whole[1]["accuracy"]  # a sigmoid moves no arg-max
        fails(run("evaluate", "net.snn", *data), "--model")

    def test_another_model_is_not_taken_for_the_ann(self, run: Run, net: str) -> None:
        self.convert(run, net, "-o", "net.snn")
        call = ("evaluate", "net.snn", "--data", "npz:images.npz", "--model", "nets.py:other")
        fails(run(*call), "made from a different source model")

    def test_nothing_is_written_over_what_is_read_or_written(self, run: Run, net: str, tmp_path: Path) -> None:
        call = ("convert", net, "--data", "npz:images.npz", "-T", 2, "-o", "net.snn")
        fails(run(*call, "--report", "net.snn"), "same command")
        fails(run(*call, "--report", "net.snn.json"), "same command")
        self.convert(run, net, "-o", "net.snn")
        before = (tmp_path / "net.snn").read_bytes()
        fails(run("report", "net.snn", "-o", "net.snn", "--images", 0), "same command")
        assert (tmp_path / "net.snn").read_bytes() == before

    def test_links_are_followed_and_devices_stay(self, run: Run, net: str, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link.snn").symlink_to(tmp_path / "real" / "net.snn")
        self.convert(run, net, "-o", "link.snn")
        assert (tmp_path / "link.snn").is_symlink()
        assert (tmp_path / "real" / "net.snn").is_file()
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_whole(tmp_path / "pipe", "x")
            assert os.read(reader, 10) == b"x"
        finally:
            os.close(reader)
        assert not (tmp_path / "pipe").is_file()

    def test_same_call_same_bytes(self, run: Run, net: str, tmp_path: Path) -> None:
        self.convert(run, net, "-o", "a.snn")
        self.convert(run, net, "-o", "b.snn")
        self.convert(run, net, "-o", "c.snn", "--calibration", 20, "--seed", 1)
        a, b, c = ((tmp_path / f"{name}.snn").read_bytes() for name in "abc")
        assert a == b
        assert a != c

    def test_flags_reach_the_pipeline(self, run: Run, net: str, tmp_path: Path) -> None:
        (tmp_path / "p.toml").write_text('preset = "acp"\nrounding = "potential"\n')
        flags = ("--threshold", "percentile", "--per", "layer", "--calibration", 16, "--iterations", 3)
        pipeline = self.convert(run, net, "--config", "p.toml", *flags, "-o", "net.snn")["pipeline"]
        assert pipeline["rounding"] == "potential"
        assert (pipeline["threshold"]["kind"], pipeline["threshold"]["per"]) == ("percentile", "layer")
        parts = [part for sweep in pipeline["sweeps"] for part in sweep]
        assert [part["kind"] for part in parts] == ["potential", "weights"]
        assert all(part["images"] == 16 for part in (pipeline["threshold"], *parts))
        assert parts[1]["iterations"] == 3
        fixed = ("--pipeline", "lcp")
        split = self.convert(
            run, net, *fixed, "--rounding", "split", "--kappa", 0.25, "--calibration", 4, "-o", "net.snn"
        )
        assert (split["pipeline"]["rounding"], split["pipeline"]["kappa"]) == ("split", 0.25)

    def test_table_for_people(self, run: Run, net: str) -> None:
        code, out, err = run(
            "convert", net, "--data", "npz:images.npz", "-T", 2, "--pipeline", "baseline", "-o", "n.snn"
        )
        assert (code, err) == (0, "")
        assert "Stages at T = 2" in out
        assert "n.snn" in out

    def test_refusal_is_one_line(self, run: Run, net: str) -> None:
        result = run("convert", "nets.py:refused", "--data", "npz:images.npz", "-o", "n.snn")
        fails(result, "1 more")
        assert not Path("n.snn").exists()

    def test_data_must_be_named_where_none_is_known(self, run: Run, net: str) -> None:
        fails(run("convert", net, "-o", "n.snn"), "--data")


def test_bars_on_a_terminal_only(run: Run, net: str, tmp_path: Path) -> None:
    call = ("convert", net, "--data", "npz:images.npz", "-T", 2, "-o")
    assert "thresholds" in on_terminal(tmp_path, *call, "a.snn")
    code, out, err = run(*call, "b.snn")
    assert (code, err) == (0, "") and "thresholds" not in out


def test_ctrl_c_is_130_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef make(split):\n    pathlib.Path('ready').touch()\n    time.sleep(60)\n"
    )
    command = [
        sys.executable,
        "-m",
        "spikecal.cli.main",
        "convert",
        "resnet20",
        "--data",
        "slow.py:make",
        "-o",
        "x.snn",
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    try:
        for _ in range(600):
            if (tmp_path / "ready").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "")
