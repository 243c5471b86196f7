"""Data as users have it, from the command line: datasets, signals, vectors, labels, and what files remember."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails
from PIL import Image

NETWORKS = (
    NETWORK
    + """
import numpy as np
from PIL import Image

def signals():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 3, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))

def vectors():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

def wave(split):
    rng = np.random.default_rng({"train": 0, "test": 1}[split])
    return rng.random((30, 2, 64)), rng.integers(0, 4, 30)

class Pictures:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return Image.fromarray(np.random.default_rng(i).integers(0, 256, (12, 14, 3), dtype=np.uint8)), i % 4

def pictures(split):
    return Pictures()
"""
)
QUICK = ("-T", 4, "--pipeline", "lcp", "-o", "x.snn", "--json")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "signals.npz", x=rng.random((30, 2, 64)), y=rng.integers(0, 4, 30))
    np.savez(tmp_path / "vectors.npz", x=rng.random((30, 16)).astype(np.float32), y=rng.integers(0, 4, 30))
    np.savez(tmp_path / "wrong.npz", images=rng.random((30, 3, 12, 12)), labels=np.full(30, 4))


@pytest.mark.parametrize(
    ("model", "data"), [("signals", "npz:signals.npz"), ("signals", "nets.py:wave"), ("vectors", "npz:vectors.npz")]
)
def test_signals_and_vectors(run: Run, model: str, data: str) -> None:
    code, out, err = run("convert", f"nets.py:{model}", "--data", data, *QUICK)
    assert code == 0, err
    assert json.loads(out)["summary"]["images"] == 30
    code, out, err = run("evaluate", "x.snn", "--data", data, "--model", f"nets.py:{model}", "--json")
    assert code == 0, err
    assert json.loads(out)["ann"] is not None
    assert run("report", "x.snn", "--data", data, "-o", "x.html")[0] == 0


@pytest.mark.parametrize(("model", "shape"), [("signals", "2,64"), ("vectors", "16"), ("make", "3x12x12")])
def test_check_takes_a_shape(run: Run, model: str, shape: str) -> None:
    code, out, err = run("check", f"nets.py:{model}", "--shape", shape, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["converts"] and "x".join(map(str, facts["shape"])) == shape.replace(",", "x")


def test_invalid_shapes_and_steps(run: Run) -> None:
    fails(run("check", "nets.py:signals"), "--shape C,H,W (a signal: 2,64, a vector: 16)")
    fails(run("check", "nets.py:signals", "--shape", "2,0"), "--shape must be one to four positive sizes")
    fails(run("check", "nets.py:signals", "--shape", "2,64", "--size", 3, 3), "not both")
    fails(run("check", "resnet20", "-T", 10**12), "T must be a number of steps from 1 to 1,048,576")


def test_a_dataset_of_pictures(run: Run) -> None:
    code, out, err = run("convert", "nets.py:make", "--data", "nets.py:pictures", *QUICK)
    assert code == 0, err
    assert json.loads(out)["summary"]["split"] == "calibration"  # both splits are the same


def test_a_function_without_test_images(run: Run, tmp_path: Path) -> None:
    """The conversion is still written, with the reason why it was not measured."""
    (tmp_path / "neighbour.py").write_text(NETWORKS)  # other tests of this process have a nets.py, too
    (tmp_path / "half.py").write_text(
        "def f(split):\n    return __import__('neighbour').pictures(split) if split == 'train' else 1 / 0"
    )
    code, out, err = run("convert", "nets.py:make", "--data", "half.py:f", *QUICK[:-1])
    assert code == 0 and "no summary: half.py:f raised ZeroDivisionError" in err and "x.snn: " in out


def test_labels_outside_the_classes(run: Run) -> None:
    assert run("convert", "nets.py:make", "--data", "npz:wrong.npz", "--test", 0, *QUICK)[0] == 0
    fails(run("evaluate", "x.snn", "--data", "npz:wrong.npz"), "a label 4, but the network has classes 0 to 3")


def test_a_file_remembers_its_images(run: Run, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for i in range(3):
                pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / name / f"{i}.png")
    assert run("convert", "resnet20", "--data", "folder:photos", *QUICK)[0] == 0
    code, out, err = run("evaluate", "x.snn", "--json")
    assert code == 0, err
    assert json.loads(out)["data"] == "folder:photos"
    (tmp_path / "photos").rename(tmp_path / "moved")
    fails(run("evaluate", "x.snn"), "no folder photos; the file names these images as its own: give others with --data")
