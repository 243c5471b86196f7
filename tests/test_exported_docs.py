"""Pages on export: commands do what the pages show, but for the numbers that a machine decides, and code runs."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spikecal
from scripts import ROOT
from spikecal.cli.main import main
from spikecal.data.card import Card
from spikecal.export.export import make_netlist
from spikecal.export.packages import installed
from spikecal.export.simulate import run_netlist

PAGES = {
    "chips": "onnxruntime", "export": "onnxruntime", "integers": "onnxruntime", "nir": "nirtorch",
    "onnx": "onnxruntime", "spikingjelly": "spikingjelly",
}  # fmt: skip
FIRST = "$ spikecal convert resnet20-nobn --data demo -T 4 --pipeline lcp --calibration 16 --test 0 -o net.snn"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the first command of all pages ran."""
    place = tmp_path_factory.mktemp("export")
    assert FIRST in (ROOT / "docs" / "how-to" / "export.md").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(FIRST.split()[2:]) == 0
    return place


def shown(text: str) -> list[str]:
    """Lines without the numbers that a processor's rounding decides, and the room that these take."""
    masked = re.sub(r"(?<![\w.])[\d,]+(\.\d+)?(e-\d+)?", "#", text)
    return [" ".join(line.split()) for line in masked.splitlines() if line.strip(" ─")]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(PAGES[page])
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    blocks = re.findall(r"^\$ spikecal (.*?)\n(.*?)(?=^\$|^```)", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for command, expected in blocks:
        if command in FIRST:
            continue
        capsys.readouterr()
        assert main(command.split()) == 0
        found = capsys.readouterr().out
        assert shown(found) == shown(expected)
    scope = known(page)
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "load_sinabs" in code and not installed("sinabs"):
            continue  # tests/export/test_sinabs.py runs it in an environment of its own
        exec(compile(code, page, "exec"), scope)
        if "answers" in scope:
            torch.testing.assert_close(scope.pop("answers"), scope["snn"](scope["x"]))
    sys.modules.pop("net", None)  # the file that the page on SpikingJelly imports


def known(page: str) -> dict[str, Any]:
    """What the code of pages takes for granted."""
    snn = spikecal.load("net.snn")
    assert snn.origin.card is not None
    images, labels = spikecal.load_images("demo", Card.from_dict(snn.origin.card), "test", count=3)
    outputs = run_netlist(make_netlist(snn).to(torch.float), images).outputs
    scope: dict[str, Any] = {
        "spikecal": spikecal,
        "torch": torch,
        "np": np,
        "snn": snn,
        "x": images,
        "outputs": outputs,
    }
    if page == "onnx":
        scope["onnxruntime"] = pytest.importorskip("onnxruntime")
    return {**scope, "images": images, "labels": labels, "calibration_images": images}
