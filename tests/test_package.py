"""The package as others install it: into an empty environment, from a wheel and from the source tree."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from scripts import ROOT

SMOKE = """
import torch
from torch import nn
import spikecal

assert "site-packages" in spikecal.__file__, spikecal.__file__
model, card = spikecal.load_model("resnet20-nobn")
images, labels = spikecal.load_images("demo", card, "test", count=16)
result = spikecal.convert(model, images, T=2, pipeline="lcp")
result.save("net.snn")
assert torch.equal(spikecal.load("net.snn")(images), result.snn(images))
result.report("report.html", (images, labels), model)
"""


def call(*command: object, cwd: Path) -> None:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python -m build`, checked by twine."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", folder, cwd=ROOT)
    call(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir(), cwd=ROOT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_an_empty_environment(kind: str, built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    what = wheel if kind == "wheel" else ROOT
    call(python, "-I", "-m", "pip", "install", "-c", ROOT / "constraints.txt", f"{what}[report]", cwd=tmp_path)
    call(python, "-I", "-c", SMOKE, cwd=tmp_path)  # nothing but what was installed
    assert (tmp_path / "report.html").stat().st_size > 10_000
