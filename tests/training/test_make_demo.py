"""The script behind the embedded files, on a CIFAR-10 of a few random images."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from spikecal.data.sets.cifar10 import BINARY_FOLDER, load_cifar10
from spikecal.data.sets.demo import load_demo
from spikecal.zoo.models import load_model

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_demo.py"


def make(root: Path, out: Path) -> dict[str, bytes]:
    command = [sys.executable, SCRIPT, "--data", root, "--epochs", "1", "--out", out]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_everything_is_made_and_remade_identically(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / BINARY_FOLDER).mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (40, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / BINARY_FOLDER / f"{name}.bin").write_bytes(records.tobytes())

    files = make(tmp_path, tmp_path / "out")
    assert set(files) == {"resnet20.safetensors", "calibration.png", "test.png", "labels.json", "card.json"}
    for split in ("train", "test"):
        for stored, original in zip(load_demo(split, tmp_path / "out"), load_cifar10(tmp_path, split), strict=True):
            assert torch.equal(stored, original)
    card = json.loads(files["card.json"])
    assert card["training"]["epochs"] == 1
    model, _ = load_model("resnet20", tmp_path / "out" / "resnet20.safetensors")
    assert all(bool(p.isfinite().all()) for p in model.parameters())

    next(tmp_path.glob("*.pt")).unlink()
    assert make(tmp_path, tmp_path / "anew") == files
