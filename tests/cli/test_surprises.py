"""What surprised users of the command line: each is one line now, at once, and JSON stays JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails

NETWORKS = (
    NETWORK
    + """
print("thank you for using this package")

class Chatty(nn.Sequential):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def chatty():
    print("making a network")
    net, card = make()
    return Chatty(*net), card

def gated():
    net, card = make()
    net[4] = nn.SiLU()
    return nn.Sequential(*net, nn.GELU()), card
"""
)
QUICK = ("-T", 2, "--pipeline", "lcp", "--calibration", 8, "--test", 0)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=rng.integers(0, 4, 40))


def test_json_stays_json_when_a_model_prints(run: Run) -> None:
    for call in (
        ("check", "nets.py:chatty"),
        ("convert", "nets.py:chatty", "--data", "npz:images.npz", "-o", "x.snn", *QUICK),
        ("evaluate", "x.snn", "--model", "nets.py:chatty", "--data", "npz:images.npz"),
    ):
        code, out, err = run(*call, "--json")
        assert code == 0, err
        assert json.loads(out)
        assert "making a network" in err


@pytest.mark.parametrize("place", ["/proc", "/sys/kernel"])
def test_outputs_that_cannot_be_written_are_noticed_before_the_work(run: Run, place: str) -> None:
    if not Path(place).is_dir():
        pytest.skip("there is no such file system here")
    fails(run("convert", "nets.py:none", "--data", "npz:none.npz", "-o", f"{place}/x.snn"), "cannot be written")


def test_trying_an_output_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.snn").write_text("old")
    before = sorted(path.name for path in tmp_path.iterdir())
    run("convert", "nets.py:none", "--data", "npz:images.npz", "-o", "x.snn")
    assert [name for name in sorted(path.name for path in tmp_path.iterdir()) if name != "__pycache__"] == before
    assert (tmp_path / "x.snn").read_text() == "old"


def test_refusals_name_the_flag(run: Run) -> None:
    code, out, err = run("check", "nets.py:gated", "--json")
    assert code == 2
    hints = [one["hint"] for one in json.loads(out)["refused"]]
    assert ["--keep 4" in hints[0], "--keep 8" in hints[1]] == [True, True] and "keep=" not in out + err
    assert "--keep 4" in run("check", "nets.py:gated")[1]


def test_records_can_be_left_out(run: Run) -> None:
    call = ("convert", "nets.py:make", "--data", "npz:images.npz", "-o", "x.snn", "-T", 4, "--test", 0, "--json")
    assert len(json.loads(run(*call, "--pipeline", "baseline")[1])["records"]) > 0
    assert json.loads(run(*call, "--pipeline", "baseline", "--no-records")[1])["records"] == []
    assert len(json.loads(run(*call, "--pipeline", "lcp", "--no-records")[1])["records"]) > 0


def test_training_warns_of_a_network_that_cannot_be_converted(run: Run) -> None:
    recipe = ("--recipe", "quick", "--epochs", 1, "--batch", 8, "--workers", 0, "-o", "w.safetensors")
    code, _, err = run("train", "nets.py:gated", "--data", "npz:images.npz", *recipe)
    assert code == 0, err
    lines = err.splitlines()
    warned = next(i for i, line in enumerate(lines) if line.startswith("warning: nets.py:gated cannot be converted: 4"))
    assert warned < next(i for i, line in enumerate(lines) if line.startswith("epoch 1"))
    assert "and 1 more: `spikecal check nets.py:gated`" in lines[warned]
    assert "cannot be converted" not in run("train", "nets.py:make", "--data", "npz:images.npz", *recipe)[2]


@pytest.mark.parametrize(
    "call", [("check", "retinanet-r18-quarter"), ("check", "torchvision:resnet18"), ("models",), ("check", "resnet20")]
)
def test_without_torchvision(run: Run, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as if it were not installed
    if call[-1] in ("models", "resnet20"):
        assert run(*call)[0] == 0
    else:
        fails(run(*call), "torchvision, which is not installed: pip install torchvision")
