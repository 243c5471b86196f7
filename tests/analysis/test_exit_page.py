"""docs/how-to/exit.md runs as it is."""

import re

import torch
from networks import images, residual

import spikecal
from scripts import ROOT


def test_the_page_runs_as_it_is() -> None:
    model = residual()
    snn = spikecal.convert(model, images(32), T=32, pipeline="lcp").snn
    scope = {"spikecal": spikecal, "snn": snn, "model": model, "images": images(400, seed=3)}
    scope |= {"x": images(6), "labels": torch.arange(6) % 5}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "exit.md").read_text(), re.DOTALL):
        exec(block, scope)  # the page's own code
    outputs = scope["outputs"]
    assert isinstance(outputs, torch.Tensor) and outputs.shape == (6, 5)
