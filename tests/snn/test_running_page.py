"""docs/how-to/running.md runs as it is."""

import re
from pathlib import Path

import pytest
import torch
from networks import images, residual

import spikecal
from scripts import ROOT


def test_the_page_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snn = spikecal.convert(residual(), images(8), T=4, pipeline="lcp").snn
    frames = torch.stack([images(6, seed=t) for t in range(4)])
    scope = {"snn": snn, "x": images(6), "frames": frames, "labels": torch.arange(6) % 5, "torch": torch}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "running.md").read_text(), re.DOTALL):
        exec(block, scope)  # the page's own code
    assert spikecal.load("trained.snn").T == 4
