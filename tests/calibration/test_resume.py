"""A killed conversion resumes where it was, and ends with the same bytes as an uninterrupted one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import report_of
from networks import images, residual
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import Bias, ConfigError, FileError, Pipeline, Potential, Result, Weights

KILLING = Path(__file__).with_name("killing.py")


# -- killed ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `killing.py` reports: 20 deaths at random moments and four at chosen ones."""
    return report_of(KILLING, tmp_path_factory.mktemp("killed"))  # type: ignore[no-any-return]


def test_killed_at_twenty_random_moments_it_ends_with_the_same_bytes(killed: dict[str, Any]) -> None:
    (expected,) = set(killed["uninterrupted"])
    assert len(killed["moments"]) == 20
    for death in killed["moments"]:
        assert death["finished"] and death["bytes"] == expected
        assert not death["redone"]
        assert not death["left"]
    # the moments were spread over the whole run: different parts were finished by then, and were not repeated
    assert len({death["done"] for death in killed["moments"]}) >= 6


@pytest.mark.parametrize(
    ("where", "half"),
    [("sgd", None), ("step", r".step.part"), ("boundary", ".snn.part"), ("result", "net.snn.part")],
)
def test_killed_inside_the_sgd_or_a_save_it_ends_with_the_same_bytes(
    killed: dict[str, Any], where: str, half: str | None
) -> None:
    death = killed["traps"][where]
    assert death["finished"] and death["bytes"] == killed["uninterrupted"][0]
    assert death["done"] > 0 and not death["redone"] and not death["left"]
    assert [name.endswith(str(half)) for name in death["half"]] == ([] if half is None else [True])


# -- stopped ---------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


@dataclass
class Watch:
    """Progress that is written down, and that ends the conversion after so many stages."""

    stages: float = float("inf")
    phases: list[tuple[str, int, float | None]] = field(default_factory=list)

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.phases.append((name, total, seconds))

    def advance(self, note: str = "") -> None:
        self.stages -= 1
        if self.stages < 0:
            raise Stopped


class Awkward(nn.Module):
    """Shapes with dimensions of 1, whose memory layout is ambiguous, and weights of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, stride=2)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.one = nn.Conv2d(4, 1, 1)
        self.wide = nn.Conv2d(1, 4, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.tokens, self.fc = nn.Linear(6, 5), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.up(F.relu(self.depthwise(x))) + x)
        x = F.relu(self.wide(F.relu(self.one(x))))
        pooled = F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        x = F.relu(self.excite(pooled) + x).mean(3)
        return self.fc(F.relu(self.tokens(x)).flatten(1))


def awkward() -> Awkward:
    torch.manual_seed(0)
    return Awkward().eval().requires_grad_(False)


def convert_awkward(workdir: Path | None = None, **settings: Any) -> Result:
    weights = Weights(images=12, iterations=2, batch=4, lr=1e-3)
    pipeline = Pipeline(sweeps=((Potential(images=8), weights), (Bias(images=12),)))
    return spikecal.convert(awkward(), images(12, 6), T=4, pipeline=pipeline, workdir=workdir, **settings)


def saved(result: Result, folder: Path) -> bytes:
    result.save(folder / "net.snn")
    return (folder / "net.snn").read_bytes()


def steps(workdir: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in workdir.rglob("*.step")}


def test_stopped_after_every_stage_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    expected = saved(convert_awkward(), tmp_path)
    for stages in range(100):
        before = steps(work)
        try:
            result = convert_awkward(work, progress=Watch(stages))
        except Stopped:
            assert before.items() <= steps(work).items()
            assert len(steps(work)) <= len(before) + 2  # the histograms and the first stage come together
        else:
            break
    assert stages > 15
    assert saved(result, tmp_path) == expected
    # and where everything has to be read from disk, or nothing is ever written
    assert saved(convert_awkward(memory=1), tmp_path) == expected
    assert saved(convert_awkward(tmp_path / "other", memory=1), tmp_path) == expected


def test_nothing_is_left_of_the_boundaries_and_a_finished_conversion_is_only_read(tmp_path: Path) -> None:
    work = tmp_path / "work"
    first = convert_awkward(work)
    files = [path for path in work.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".step", ".json"}
    done = steps(work)
    assert len(done) == 1 + len(first.records)
    second = convert_awkward(work)
    assert steps(work) == done
    assert second.records == first.records  # the seconds too: those of the time when it was done
    assert saved(second, tmp_path) == saved(first, tmp_path)


def test_the_estimate_of_a_resumed_run_is_that_of_the_first(tmp_path: Path) -> None:
    first, second = Watch(4), Watch()
    with pytest.raises(Stopped):
        convert_awkward(tmp_path, progress=first)
    convert_awkward(tmp_path, progress=second)
    assert [name for name, _, _ in first.phases] == ["thresholds", "T=4"]
    assert second.phases[0] == first.phases[1]


# -- refused ---------------------------------------------------------------------------------------------------


def convert(workdir: Path, **changes: Any) -> Result:
    settings = {"model": residual(), "images": images(8), "T": [2, 3], "pipeline": "lcp", **changes}
    return spikecal.convert(**settings, workdir=workdir)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    convert(folder)
    return folder


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    """A working directory of its own that holds a finished conversion."""
    shutil.copytree(finished, tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize(
    "changes",
    [
        {"images": images(8, seed=2)},
        {"images": images(9)},
        {"T": [2]},
        {"T": [2, 4]},
        {"pipeline": "pc"},
        {"pipeline": spikecal.LCP.changed(Bias, images=4)},
        {"model": residual(1)},
        {"model": residual().double()},
        {"seed": 1},
        {"micro_batch": 2},
    ],
)
def test_the_workdir_of_another_conversion_is_refused(work: Path, changes: dict[str, Any]) -> None:
    leftover = work / "T2" / "sweep0" / "relu-0.snn.part"
    leftover.touch()
    with pytest.raises(ConfigError, match=f"{work} holds another conversion"):
        convert(work, **changes)
    assert leftover.exists()  # the other one is unchanged
    convert(work)
    assert not leftover.exists()


def test_a_workdir_without_a_readable_mark_is_refused(work: Path) -> None:
    for text in ("", "[]", "{}", "null"):
        (work / "conversion.json").write_text(text)
        with pytest.raises(ConfigError, match="another conversion"):
            convert(work)


def test_a_workdir_in_use_is_refused(work: Path) -> None:
    holding = f"import fcntl, sys; f = open({str(work / 'conversion.json')!r}); fcntl.flock(f, fcntl.LOCK_EX)"
    command = [sys.executable, "-c", f"{holding}; print('held', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="is being used by another process"):
            convert(work)
        other.kill()
    convert(work)


def test_other_peoples_files_survive(tmp_path: Path) -> None:
    download = tmp_path / "film.mp4.part"
    download.write_text("half of it")
    for _ in ("a new conversion", "and its resumption"):
        convert(tmp_path)
        assert download.read_text() == "half of it"


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    save_file({"x": torch.zeros(2)}, path)


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flipped, truncated, emptied, foreign, replaced_by_a_folder])
@pytest.mark.parametrize("step", ["histograms", "T2/sweep0/0000", "T3/sweep0/0003"])
def test_a_damaged_step_is_named(work: Path, step: str, damage: Callable[[Path], None]) -> None:
    path = work / f"{step}.step"
    damage(path)
    with pytest.raises(ConfigError, match=f"{path} is damaged.*delete {work}"):
        convert(work)


def test_a_damaged_or_missing_boundary_is_named(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        convert(tmp_path, progress=Watch(3))
    boundaries = [path for path in tmp_path.rglob("*-0.*") if path.is_file()]
    assert boundaries
    for path in boundaries:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"-0.* is missing or damaged.*delete"):
        convert(tmp_path)
    for path in boundaries:
        path.unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"-0.* is missing or damaged.*delete") as refusal:
        convert(tmp_path)
    shutil.rmtree(tmp_path / "T2" / "sweep0")  # as the message says
    assert str(tmp_path / "T2" / "sweep0") in str(refusal.value)
    convert(tmp_path)


def test_a_workdir_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below", Path("/proc/nowhere")):
        with pytest.raises(ConfigError, match=f"{folder} cannot be used"):
            convert(folder)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "T2").touch()  # a file where a folder should be
    with pytest.raises(FileError, match=r"work/T2/.* cannot be written"):
        convert(tmp_path / "work")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_workdir_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be used"):
        convert(tmp_path)
