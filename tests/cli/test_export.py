"""`spikecal export`."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails

from spikecal.pipeline import Auto
from spikecal.tasks.requests import pipeline_of


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
    assert code == 0 and "T = 6, 6 steps in total, images 3×12×12" in out and "faithful" in out


def test_faults_are_reported(run: Run, converted: Path) -> None:
    assert "-o" in run("export", "net.snn")[2]
    fails(run("export", "net.snn", "-o", "net.txt"), "give the format, one of nir (.nir), onnx (.onnx)")
    fails(run("export", "net.snn", "-o", "net.snn", "--to", "nir"), "already used by the same command")
    fails(run("export", "net.snn", "-o", "net.py", "-T", 5), "5")
    fails(run("export", "net.snn", "-o", "none/net.py"), "there is no folder")
    fails(run("export", "gone.snn", "-o", "net.py"), "gone.snn cannot be read")
    fails(run("export", "net.snn", "-o", "net.py", "--size", 1, 1), "cannot run on inputs of shape [1, 3, 1, 1]")
    fails(run("export", "net.snn", "-o", "net.py", "--to", "nir"), "files called .py are of the format spikingjelly")
    fails(run("export", "net.snn", "-o", "net.py", "--data", "demo"), "--data is for --verify and integers")
    fails(run("export", "net.snn", "-o", "net.py", "--per", "layer"), "--per is for integers: add --bits or")
    fails(run("export", "net.snn", "-o", "net.py", "--bits", 8, "--exact"), "integers are already exact")
    fails(run("export", "net.snn", "-o", "net.py", "--size", 8, 8, "--verify"), "--size does not work with --verify")
    fails(run("export", "net.snn", "-o", "net.py", "--bits", 9, "--target", "loihi2"), "Intel Loihi 2 have 8 bits")
    fails(run("export", "net.snn", "-o", "net.py", "--per", "channel", "--target", "speck"), "one scale per layer")
    assert not (converted / "net.py").exists()


def test_spikes_as_data(run: Run, converted: Path) -> None:
    """A bench that gets the currents and the weights finds the spikes of the file; csv and npz have the same."""
    code, out, _ = run("run", "net.snn", "-o", "spikes.npz", "--images", 3, "-T", 4)
    assert code == 0 and "layers: 2, images: 3, steps: 4" in out
    found = np.load(converted / "spikes.npz")
    current, events = found["current/2"], found["spikes/2"]
    assert current.shape == (3, *found["shape/2"]) and [key for key in found if "current" in key] == ["current/2"]
    fired = np.zeros((3, 4, *found["shape/2"]), bool)
    fired.reshape(3, 4, -1)[tuple(events[:, :3].T)] = True
    potential = np.zeros_like(current)
    for step in range(4):  # LCP has no initial potential, and its bias is part of the current
        potential += current
        assert (fired[:, step] == (potential >= 1)).mean() > 0.999
        potential -= fired[:, step]
    assert run("run", "net.snn", "-o", "spikes.csv", "--images", 3, "-T", 4)[0] == 0
    rows = [line.split(",") for line in (converted / "spikes.csv").read_text().splitlines()]
    assert rows[0] == ["kind", "layer", "image", "step", "address", "value"]
    spikes = [row[2:] for row in rows if row[:2] == ["spike", "2"]]
    assert np.array_equal(np.array(spikes, int), events)
    sent = [float(row[5]) for row in rows if row[:2] == ["current", "2"]]
    assert np.array_equal(np.array(sent, np.float32), current.ravel())
    fails(run("run", "net.snn", "-o", "spikes.txt"), "spikes are written as .npz or .csv")


def test_potentials_per_neuron_are_data_too(run: Run, converted: Path) -> None:
    """No export has them, but a bench that starts from them finds the spikes of the file."""
    made = ("convert", "small.py:make", "--data", "npz:x.npz", "-T", 4, "--pipeline", "pc", "--test", 0)
    assert run(*made, "-o", "pc.snn")[0] == 0
    fails(
        run("export", "pc.snn", "-o", "pc.onnx"),
        '2: an initial potential for each neuron; calibrate with Potential(per="channel") (--potentials channel)',
    )
    assert run(*made, "--potentials", "channel", "-o", "channel.snn")[0] == 0
    assert run("export", "channel.snn", "-o", "pc.onnx")[0] == 0
    auto = pipeline_of(None, None, potentials="channel")
    assert isinstance(auto, Auto) and auto.potentials == "channel"
    refused = run("convert", "small.py:make", "-o", "no.snn", "--pipeline", "lcp", "--potentials", "channel")
    fails(refused, "--potentials is for initial potentials, which this pipeline lacks: use --pipeline pc or acp")
    assert run("run", "pc.snn", "-o", "spikes.npz", "--images", 2)[0] == 0
    found = np.load(converted / "spikes.npz")
    current, events, shape = found["current/2"], found["spikes/2"], found["shape/2"]
    assert found["potential/2"].shape == tuple(shape) and found["potential/2"].std() > 0
    fired = np.zeros((2, 4, *shape), bool)
    fired.reshape(2, 4, -1)[tuple(events[:, :3].T)] = True
    potential = np.broadcast_to(found["potential/2"], current.shape).copy()
    for step in range(4):
        potential += current
        assert (fired[:, step] == (potential >= 1)).mean() > 0.999
        potential -= fired[:, step]
    assert run("run", "pc.snn", "-o", "spikes.csv", "--images", 2)[0] == 0
    rows = [line.split(",") for line in (converted / "spikes.csv").read_text().splitlines()]
    first = next(row for row in rows if row[0] == "potential")
    assert first[1:5] == ["2", "", "", "0"] and np.float32(first[5]) == found["potential/2"].reshape(-1)[0]


def test_chips(run: Run, converted: Path) -> None:
    code, out, _ = run("check", "net.snn", "--target", "loihi2")
    assert code == 0 and "fits" in out and "lava" in out
    code, out, err = run("check", "net.snn", "--target", "speck", "--json")
    assert code == 2 and "does not fit SynSense Speck" in err
    assert json.loads(out)["fits"] is False and json.loads(out)["limits"]["kernel"]["value"] == 16
    refused = run("export", "net.snn", "-o", "net.py", "--target", "speck")
    fails(
        refused, "net.snn does not fit SynSense Speck 2f (DYNAP-CNN): 2: it reads an image, but the chip takes events"
    )
    code, out, _ = run("export", "net.snn", "-o", "net.py", "--target", "generic", "--json")
    assert code == 0 and json.loads(out)["bits"] == 8
    fails(run("check", "resnet20", "--target", "speck"), "--target needs a converted network")
