"""What reaches the terminal: escaped names, nothing but JSON with --json, and early refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.calls import NETWORK, Run, fails
from networks import images, residual
from PIL import Image

import spikecal
from spikecal.cli.console import Aside
from spikecal.errors import visible

CLEAR = "\x1b[2J\x1b]0;gone\x07"  # clears a screen and renames its window
BYTES = b"n\xff".decode(errors="surrogateescape")  # a name that is not UTF-8


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NETWORK)
    return "net.py:make"


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12)).save(path, "PNG")


def harmless(text: str) -> None:
    """Nothing in it that a terminal acts on, and nothing that it cannot show."""
    assert text.encode().decode() == text
    assert all(c.isprintable() or c in "\n\t" for c in text), text


def test_what_is_escaped() -> None:
    assert visible("plain ×θ é\n") == "plain ×θ é\n"
    assert visible(CLEAR) == "\\x1b[2J\\x1b]0;gone\\x07"
    assert visible(f"{BYTES} \u202ecod.exe \u2028") == "n\\xff \\u202ecod.exe \\u2028"
    assert visible("\x9b31m\U000e0001") == "\\x9b31m\\U000e0001"


def test_names_of_folders_classes_and_files_are_shown_escaped(run: Run, tmp_path: Path) -> None:
    image(tmp_path / "set" / CLEAR / "a.png")
    image(tmp_path / "set" / BYTES / "a.png")
    (tmp_path / "set" / BYTES / f"{CLEAR}.png").write_text("not an image")
    (tmp_path / "set" / CLEAR / f"{BYTES}.txt").write_text("skipped")
    code, out, err = run("datasets", "check", "folder:set")
    assert code == 0
    harmless(out + err)
    assert "n\\xff" in err and "\\x1b[2J" in err
    code, out, err = run("datasets", "check", f"folder:{CLEAR}{BYTES}")
    assert code == 2
    harmless(err)
    assert "\\x1b[2J\\x1b]0;gone\\x07n\\xff" in err


def test_names_in_files_are_shown_escaped(run: Run, tmp_path: Path) -> None:
    made = spikecal.convert(residual(), images(8), T=2, pipeline="baseline")
    made.describe(card={"name": f"{CLEAR}\u202enet", "data": None})
    path = tmp_path / f"{CLEAR}{BYTES}.snn"
    made.save(path)
    for command in (("check", path), ("report", path, "--images", 0, "-o", "page.html"), ("evaluate", path)):
        _, out, err = run(*command)
        harmless(out + err)
        assert command[0] == "evaluate" or not err, err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "gone" in page and not any(c in page for c in "\x1b\x07\u202e")


def test_steps_beyond_any_network_are_refused(run: Run, model: str) -> None:
    fails(run("check", model, "-T", 10**12), "1,048,576")


def test_a_detector_without_torchvision_says_what_to_install() -> None:
    for name in ("retinanet-r18-quarter", "torchvision:retinanet_resnet50_fpn"):
        call = f"sys.modules['torchvision'] = None; sys.exit(main(['check', {name!r}, '--task', 'detect']))"
        program = f"import sys; from spikecal.cli.main import main; {call}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "torchvision" in done.stderr and "pip install" in done.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no file system of the kernel's here")
def test_outputs_that_cannot_be_written_are_noticed_before_the_work(run: Run, model: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"{NETWORK}\nopen('worked', 'w').close()\n")
    data = ("--data", "demo")
    for command in (
        ("convert", model, *data, "-o", "/proc/net.snn"),
        ("convert", model, *data, "-o", "net.snn", "--report", "/proc/page.html"),
        ("convert", model, *data, "-o", "net.snn", "--workdir", "/proc/work"),
        ("train", model, *data, "-o", "/proc/w.safetensors"),
        ("distill", model, "-o", "/proc/images.npz"),
        ("distill", model, "-o", "images.npz", "--workdir", "/proc/work"),
        ("demo", "--output", "/proc/demo"),
        ("figure", "neuron", "-o", "/proc/a.png"),
        ("reproduce", "single", "-o", "/proc/tables", "--model", "resnet20-quarter", "--data", "demo"),
    ):
        code, _, err = run(*command)
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert not (tmp_path / "worked").exists(), command
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.py"]


def test_json_stays_json_when_the_users_code_prints(tmp_path: Path) -> None:
    noise = "import os\nprint('imported')\nos.system('echo from a shell')\n"
    (tmp_path / "net.py").write_text(noise + NETWORK.replace("torch.manual_seed(0)", "print('made')"))
    found = subprocess.run(
        [sys.executable, "-m", "spikecal.cli.main", "check", "net.py:make", "-T", "4", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert json.loads(found.stdout)["converts"] is True
    assert all(word in found.stderr for word in ("imported", "from a shell", "made"))


def test_json_stays_json_inside_a_program(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"print('imported')\n{NETWORK}")
    code, out, err = run("check", "net.py:make", "-T", "4", "--json")
    assert code == 0 and json.loads(out)["converts"] is True and "imported" in err
    assert not isinstance(sys.stdout, Aside)
