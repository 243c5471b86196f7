"""`spikecal export`."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails


@pytest.fixture
def converted(run: Run, tmp_path: Path) -> Path:
    """A small network, its images, and the folder they are in."""
    (tmp_path / "small.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", images=rng.integers(0, 256, (12, 12, 12, 3), np.uint8), labels=np.arange(12) % 4)
    made = ("convert", "small.py:make", "--data", "npz:x.npz", "-T", 4, "-T", 6, "--pipeline", "lcp", "--test", 0)
    assert run(*made, "-o", "net.snn")[0] == 0
    return tmp_path


def test_export_and_verify(run: Run, converted: Path) -> None:
    pytest.importorskip("onnxruntime")
    verified = ("--verify", "--data", "npz:x.npz", "--images", 5)
    code, out, err = run("export", "net.snn", "-o", "net.onnx", "-T", 4, *verified, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["to"], found["T"], found["latency"], found["input"]) == ("onnx", 4, 4, [3, 12, 12])
    assert sorted(path.name for path in converted.glob("*.onnx")) == ["net.onnx", "net.step.onnx"] == found["files"]
    (verdict,) = found["verified"]
    assert verdict["faithful"] and verdict["images"] == verdict["agreeing"] == 5 and verdict["spikes"] > 100
    code, out, _ = run("export", "net.snn", "-o", "net.onnx", *verified)
    assert code == 0 and "T = 6, 6 steps in all, images 3×12×12" in out and "faithful" in out


def test_what_is_wrong(run: Run, converted: Path) -> None:
    assert "-o" in run("export", "net.snn")[2]
    fails(run("export", "net.snn", "-o", "net.txt"), "say which format it is to have, one of nir (.nir), onnx (.onnx)")
    fails(run("export", "net.snn", "-o", "net.snn", "--to", "nir"), "written or read by the same command")
    fails(run("export", "net.snn", "-o", "net.py", "-T", 5), "5")
    fails(run("export", "net.snn", "-o", "none/net.py"), "there is no folder")
    fails(run("export", "gone.snn", "-o", "net.py"), "gone.snn cannot be read")
    fails(run("export", "net.snn", "-o", "net.py", "--size", 1, 1), "cannot run on inputs of shape [1, 3, 1, 1]")
    assert not (converted / "net.py").exists()
