"""Too little room: a full disk, read-only or missing folders, little memory. One line, and nothing half done."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails
from networks import images, residual

import spikecal
from spikecal import FileError, memory

Mount = Callable[[str], Path]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mount]:
    """A small disk with these options; where a test may not mount one, it is skipped."""
    place = tmp_path / "disk"

    def mount(options: str) -> Path:
        place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("nothing can be mounted here")
        return place

    yield mount
    while place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def network(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 256, (40, 3, 12, 12), dtype=np.uint8), "y": rng.integers(0, 4, 40)}
    np.savez(tmp_path / "images.npz", **arrays)
    return "net.py:make"


CONVERT = ("--data", "npz:images.npz", "-T", "2", "--pipeline", "pc", "--calibration", "8", "--test", "0")
TRAIN = (
    "--data",
    "npz:images.npz",
    "--recipe",
    "quick",
    "--epochs",
    "2",
    "--batch",
    "10",
    "--every",
    "0",
    "--workers",
    "0",
)


def test_a_full_disk_is_one_line_and_the_same_command_resumes(
    run: Run, mounted: Mount, network: str, tmp_path: Path
) -> None:
    assert run("convert", network, *CONVERT, "--workdir", "work", "-o", "net.snn")[0] == 0
    written = [path.stat().st_size for path in (tmp_path / "net.snn", *(tmp_path / "work").rglob("*.step"))]
    disk = mounted(f"size={sum(written) - 4096}")
    command = ("convert", network, *CONVERT, "--workdir", disk / "work", "-o", disk / "net.snn")
    fails(run(*command), "No space left on device")
    assert not (disk / "net.snn").exists() and not list(disk.rglob("*.part"))
    assert list(disk.rglob("*.step"))  # what was finished stays
    mounted("remount,size=10m")
    assert run(*command)[0] == 0
    assert (disk / "net.snn").read_bytes() == (tmp_path / "net.snn").read_bytes()


def test_training_and_distilling_onto_a_full_disk(run: Run, mounted: Mount, network: str) -> None:
    disk = mounted("size=4k")
    for command in (
        ("train", network, *TRAIN, "-o", disk / "w.safetensors"),
        ("distill", network, "-n", 8, "--iterations", 1, "-o", disk / "images.npz"),
    ):
        code, _, err = run(*command)
        assert code == 2 and "No space left on device" in err.splitlines()[-1]
        assert err.splitlines()[-1].startswith("error: ") and "Traceback" not in err
        assert list(disk.iterdir()) == []


def test_a_read_only_folder_is_noticed_at_once(run: Run, mounted: Mount, network: str, tmp_path: Path) -> None:
    disk = mounted("ro,size=1m")
    (tmp_path / "net.py").write_text("raise SystemExit('it was begun')")
    fails(run("convert", network, *CONVERT, "-o", disk / "net.snn"), "Read-only file system")
    fails(run("convert", network, *CONVERT, "-o", "net.snn", "--workdir", disk / "work"), "Read-only file system")
    fails(run("train", network, *TRAIN, "-o", disk / "w.safetensors"), "Read-only file system")


@dataclass
class Deleting:
    """Progress that deletes a folder in the middle of the work."""

    folder: Path
    left: int

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        pass

    def advance(self, note: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            shutil.rmtree(self.folder)

    def close(self) -> None:
        pass


def test_a_working_directory_that_is_deleted_in_the_middle(tmp_path: Path) -> None:
    work = tmp_path / "work"

    def convert(progress: Deleting | None = None) -> spikecal.Result:
        return spikecal.convert(residual(), images(8), T=2, pipeline="pc", workdir=work, progress=progress)

    with pytest.raises(FileError, match="deleted meanwhile"):
        convert(Deleting(work, 3))
    convert().save(tmp_path / "net.snn")
    spikecal.convert(residual(), images(8), T=2, pipeline="pc").save(tmp_path / "plain.snn")
    assert (tmp_path / "net.snn").read_bytes() == (tmp_path / "plain.snn").read_bytes()


def test_a_folder_that_is_gone_when_the_result_is_there(tmp_path: Path) -> None:
    made = spikecal.convert(residual(), images(4), T=2, pipeline="baseline")
    (tmp_path / "out").mkdir()
    (tmp_path / "out").rmdir()
    with pytest.raises(FileError, match="cannot be written: No such file"):
        made.save(tmp_path / "out" / "net.snn")


LIMITED = """
import resource, sys
import torch, torch._dynamo, spikecal.conversion, spikecal.tasks.check, spikecal.tasks.choose
from spikecal.cli.main import main
torch.set_num_threads(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150 * 2**20,) * 2)
for words in sys.argv[1:]:
    print(main(words.split()), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the use of memory is not known here")
def test_little_memory_is_one_line(tmp_path: Path, network: str) -> None:
    convert = f"convert {network} {' '.join(CONVERT)} --no-records -o net.snn --json"
    commands = [f"check {network} --size 3000 3000", convert]
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, *commands],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith("2\n"), found.stderr
    assert found.stderr.count("\n") == 1 and "memory" in found.stderr
    answer = found.stdout.partition("\n")[2].rpartition("\n0")[0]  # what fits is done
    assert json.loads(answer)["file"] == "net.snn" and (tmp_path / "net.snn").exists()


def test_limits_of_the_process_and_of_its_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory.free_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, hard))
    try:
        assert memory.free_memory() <= 2**28 < before
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    for name, value in (("limit", 2**27), ("use", 2**26), ("memory.stat", f"cache 1\ninactive_file {2**20}\n")):
        (tmp_path / name).write_text(str(value))
    groups = dict.fromkeys(("", "memory"), (str(tmp_path), ("limit", "use")))
    monkeypatch.setattr(memory, "CGROUPS", groups)
    assert memory.free_memory() == 2**26 + 2**20
