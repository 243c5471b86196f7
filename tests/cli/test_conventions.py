"""Flags that had other names, completion of words, and what a short command imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.calls import NETWORK, Run, fails

from spikecal.cli.main import main

SMALL = ("-T", 2, "--pipeline", "lcp", "--test", 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def converted(run: Run, *more: object) -> tuple[int, str, str]:
    return run("convert", "nets.py:make", "--data", "demo", *SMALL, "-o", "net.snn", *more)


def test_the_old_name_of_calibration_still_works(run: Run, folder: Path) -> None:
    code, _, err = converted(run, "--calibration", 8)
    assert (code, "warning" in err) == (0, False)
    made = (folder / "net.snn").read_bytes()
    code, _, err = converted(run, "--images", 8)
    assert code == 0 and "warning: --images is now called --calibration\n" in err
    assert (folder / "net.snn").read_bytes() == made
    fails(converted(run, "--images", 8, "--calibration", 8), "--images is the old name of --calibration")


def test_the_old_name_of_the_demos_folder_still_works(run: Run, folder: Path) -> None:
    (folder / "file").write_text("")
    code, _, err = run("demo", "--out", "file/demo")
    assert code == 2 and "warning: --out is now called --output\n" in err


def test_weights_may_name_their_model(run: Run, folder: Path) -> None:
    for given in ("none.safetensors", "resnet32=none.safetensors"):
        fails(run("convert", "resnet32", "--weights", given, "-o", "net.snn"), "none.safetensors")
    fails(run("convert", "resnet32", "--weights", "resnet32=", "-o", "net.snn"), "--weights resnet32= names no file")


@pytest.mark.parametrize(("words", "expected"), [("spikecal con", "convert"), ("spikecal convert --lat", "--latency")])
def test_shells_complete_words(words: str, expected: str) -> None:
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "_SPIKECAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    command = [sys.executable, "-m", "spikecal.cli.main"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.split() == [expected]


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out


@pytest.mark.parametrize("code", ["import spikecal", "from spikecal.cli.main import main; main(['--help'])"])
def test_short_commands_import_little(code: str) -> None:
    """What is imported decides how long `--help` takes; seconds would depend on the machine."""
    heavy = "{'torch', 'numpy', 'matplotlib', 'jinja2', 'PIL', 'safetensors'}"
    check = f"{code}\nimport sys; assert not {heavy} & set(sys.modules), sorted({heavy} & set(sys.modules))"
    check += "\nassert len(sys.modules) < 600, len(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "jinja2", "markupsafe"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from spikecal.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def test_plots_and_reports_are_extras(folder: Path) -> None:
    """Converting and measuring work without them; what needs one says which."""

    def run(*words: object) -> tuple[int, str]:
        command = [sys.executable, "-c", HIDDEN, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert run("convert", "nets.py:make", "--data", "demo", *SMALL, "--calibration", 8, "-o", "net.snn")[0] == 0
    assert run("figure", "clip", "-o", "clip.png") == (
        2, "error: this needs the package matplotlib: `pip install spikecal[plots]`\n",
    )  # fmt: skip
    code, told = run("report", "net.snn", "--images", 0, "-o", "report.html")
    assert code == 2 and "this needs the package" in told and "`pip install spikecal[report]`" in told
    assert not (folder / "report.html").exists()
