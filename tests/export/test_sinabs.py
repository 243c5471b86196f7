"""sinabs, which wants an older nir than SpikingJelly: in an environment of its own."""

import subprocess
import venv
from pathlib import Path

import pytest

from scripts import ROOT

CHOSEN = "nir or loaded_again or an_export_that_is_not"
WANTED = ("torch==2.13.0", "sinabs==3.1.3", "pytest", f"{ROOT}[nir]")


@pytest.mark.slow
def test_the_tests_of_simulators_with_sinabs(tmp_path: Path) -> None:
    """The same networks and the same spikes; no NIR file is run by anything else there."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    tests = ROOT / "tests" / "export" / "test_simulators.py"
    for command in (
        ("pip", "install", "--quiet", *WANTED),
        ("pytest", "-q", "-k", CHOSEN, tests),
    ):
        done = subprocess.run([python, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and " passed" in done.stdout, done.stdout
