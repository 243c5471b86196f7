"""The command line shows the plan of a conversion before it starts."""

from pathlib import Path

import pytest
from cli.calls import Run


def test_the_plan_is_shown_first(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikecal.planning.WORTH_SAYING", 0.0)
    call = ("convert", "resnet20", "-T", 1, "--pipeline", "lcp", "--calibration", 4, "--test", 0)
    code, out, err = run(*call, "-o", tmp_path / "net.snn")
    assert code == 0 and err.startswith("plan: T=1, 4 images, 128 images and all steps per call: about ")
    assert "plan:" not in out
