"""A network with BN and one without, and labelled images for them, in the folder of the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threads import one_thread  # noqa: F401

from spikecal.cli.main import main

NETWORKS = """
import torch
from torch import nn
from spikecal.data.card import Card

CARD = Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

def make(norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval(), CARD

def plain():
    return make(nn.Identity)
"""

Reproduce = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPIKECAL_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    arrays = {
        f"{axis}_{split}": values
        for split, count in (("train", 60), ("test", 30))
        for axis, values in (
            ("x", rng.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)),
            ("y", rng.integers(0, 4, count)),
        )
    }
    np.savez(tmp_path / "images.npz", **arrays)
    return tmp_path


@pytest.fixture
def reproduce(folder: Path, capsys: pytest.CaptureFixture[str]) -> Reproduce:
    """Run `spikecal reproduce` on the small networks, with little of everything; gives the JSON it wrote."""

    def call(name: str, *arguments: str, models: tuple[str, ...] = ("nets.py:make",)) -> dict[str, Any]:
        chosen = [part for model in models for part in ("--model", model)]
        small = [
            "--images",
            "20",
            "--long-images",
            "10",
            "--seeds",
            "2",
            "--iterations",
            "3",
            "--data",
            "npz:images.npz",
        ]
        code = main(["reproduce", name, *chosen, *small, *arguments, "-o", "out", "--json"])
        out, err = capsys.readouterr()
        assert code == 0
        lines = err.splitlines()
        assert len(set(lines)) == len(lines)  # nothing is said twice
        known = ("is damaged: measuring it again", "expected energy at T=", "held-out images", "a latency of")
        assert all(any(words in line for words in known) for line in lines)
        written: dict[str, Any] = json.loads((folder / "out" / f"{name}.json").read_text())
        assert json.loads(out) == written
        return written

    return call
