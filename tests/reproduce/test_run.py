"""A command killed at any moment resumes and ends with the same bytes; bad calls are reported."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.conftest import Reproduce

import spikecal
from spikecal.calibration import cache
from spikecal.cli.main import main
from spikecal.data.sets.cifar10 import BINARY_FOLDER
from spikecal.reproduce import accuracy, cells
from spikecal.reproduce.reproduce import way_out
from spikecal.reproduce.run import make_plan, pending, run
from spikecal.reproduce.sizes import PAPER, Sizes
from spikecal.reproduce.tables import OURS, TABLES, find

ARGUMENTS = [
    *("reproduce", "acp", "--model", "nets.py:make", "--data", "npz:images.npz"),
    *("--images", "20", "--seeds", "2", "--iterations", "40", "-T", "2"),
]


def test_killed_and_resumed_it_writes_the_same_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = folder / "killed" / "cells"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(spikecal.__file__).parents[1])}
    command = [sys.executable, "-m", "spikecal.cli.main", *ARGUMENTS, "-o", "killed"]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(done.glob("*.json"))) < 4:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    before = {path.name: path.stat().st_mtime_ns for path in done.glob("*.json")}
    assert not (folder / "killed" / "acp.json").exists()
    assert main([*ARGUMENTS, "-o", "whole"]) == 0
    assert main([*ARGUMENTS, "-o", "killed"]) == 0
    after = {path.name: path.stat().st_mtime_ns for path in done.glob("*.json")}
    assert set(after) == {path.name for path in (folder / "whole" / "cells").glob("*.json")}
    assert 4 <= len(before) < len(after)
    assert before.items() <= after.items()  # nothing was measured again
    for name in ("acp.json", "acp.md"):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    capsys.readouterr()


def test_a_long_cell_resumes_inside(
    reproduce: Reproduce, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = reproduce("lcp", "-T", "2")
    (folder / "out").rename(folder / "before")
    monkeypatch.setattr(cells, "LONG_SECONDS", -1.0)
    monkeypatch.setattr(accuracy, "BATCH", 4)  # five batches
    original, calls = accuracy.evaluate, list[int]()

    def dies(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(accuracy, "evaluate", dies)
    small = ["--images", "20", "--seeds", "2", "--iterations", "3", "--data", "npz:images.npz", "-T", "2"]
    assert main(["reproduce", "lcp", "--model", "nets.py:make", *small, "-o", "out"]) == 130
    capsys.readouterr()
    kept = list((folder / "out" / "cells").glob("*.work"))
    assert len(kept) == 1
    begun = (kept[0] / "evaluation.json").read_text()
    assert json.loads(begun)[0] == 2
    for damaged in (begun[:5], "[2, 3]", '{"done": 2}'):
        (kept[0] / "evaluation.json").write_text(damaged)
        assert accuracy._begun(kept[0] / "evaluation.json") == accuracy._Tested()
    (kept[0] / "evaluation.json").write_text(begun)
    calls.clear()
    calls.extend([1, 1, 1])
    found = reproduce("lcp", "-T", "2")
    cells_made = len(list((folder / "out" / "cells").glob("*.json"))) - 1  # one is the ANN's
    assert len(calls) - 3 == 5 * cells_made - 2  # the two batches were not run again
    assert not list((folder / "out" / "cells").glob("*.work"))
    for network in (*found["networks"], *expected["networks"]):
        for row in network["rows"]:
            assert row["columns"]["2"].pop("rate") > 0  # sums in another order
            assert row["columns"]["2"].pop("energy") > 0
    assert found == expected


def test_another_configuration_is_another_cell(reproduce: Reproduce, folder: Path) -> None:
    def made() -> set[str]:
        return {path.stem for path in (folder / "out" / "cells").glob("*.json")}

    reproduce("bn", "-T", "2")
    first = made()
    reproduce("bn", "-T", "2")
    assert made() == first
    reproduce("bn", "-T", "2", "--images", "10")
    second = made()
    assert len(second) == 2 * len(first)
    text = (folder / "nets.py").read_text().replace("manual_seed(0)", "manual_seed(1)")
    (folder / "nets.py").write_text(text)  # other weights under the same name
    reproduce("bn", "-T", "2", "--images", "10")
    third = made()
    assert len(third) == 3 * len(first)
    arrays = dict(np.load(folder / "images.npz"))
    np.savez(folder / "images.npz", **{**arrays, "x_train": arrays["x_train"][::-1]})
    reproduce("bn", "-T", "2", "--images", "10")
    assert len(made()) == len(third) + 1  # the ANN's accuracy does not depend on calibration images


def test_memory_changes_nothing(reproduce: Reproduce, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reproduce("acp", "-T", "2")
    (folder / "out").rename(folder / "before")
    written = list[Path]()
    original = cache._write
    monkeypatch.setattr(cache, "_write", lambda path, value: (written.append(path), original(path, value)))
    assert reproduce("acp", "-T", "2", "--memory", "1K") == expected
    assert written  # what does not fit goes to disk


def test_a_damaged_cell_is_measured_again(reproduce: Reproduce, folder: Path) -> None:
    expected = reproduce("bn", "-T", "2")
    for path in (folder / "out" / "cells").glob("*.json"):
        path.write_text(path.read_text()[:40])
    assert reproduce("bn", "-T", "2") == expected


@pytest.mark.usefixtures("folder")
def test_the_list_with_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--full", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {name: found["T"] for name, found in tables.items()} == {
        name: list(t.T) for name, t in {**TABLES, **OURS}.items()
    }
    assert "datasets get cifar10" in tables["fakedata"]["needs"]
    for flags in (["--model", "resnet20"], ["--data", "cifar10"], ["--with", "vgg16"]):
        assert main(["reproduce", *flags]) == 2
        assert "name a table" in capsys.readouterr().err


def test_all_test_images_are_those_of_the_whole_set_where_it_is_here(tmp_path: Path) -> None:
    batches = tmp_path / "root" / BINARY_FOLDER
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / f"{name}.bin").write_bytes(bytes(3073 * 4))

    def data(sizes: Sizes, root: Path) -> set[str]:
        return {subject.data for subject in make_plan(find("bn"), sizes, root=root).subjects.values()}

    assert data(PAPER, batches.parent) == {"cifar10"}
    assert data(Sizes(), batches.parent) == data(PAPER, tmp_path) == {"demo"}


@pytest.mark.usefixtures("folder")
def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert set(tables) == {*TABLES, *OURS}
    assert tables["lcp"]["models"] == ["resnet20"]
    assert tables["lcp"]["seconds"] > 0
    assert "--weights" in tables["imagenet"]["needs"]
    assert {"resnet20", "vgg16"} <= set(tables["space"]["models"])
    assert way_out(tables["detect"]["needs"]) == "give --data voc:PATH or --data coco:PATH"
    assert way_out(tables["imagenet"]["needs"]) == "give --model and --weights"
    assert way_out("no images at all") == "no images at all"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["frob"], "there is no table 'frob': choose from clipround"),
        (["lcp", "--model", "resnet21"], "unknown model 'resnet21'"),
        (["lcp", "--model", "resnet32"], "give --weights"),
        (["lcp", "--model", "resnet20", "--weights", "none.pt"], "no weights file none.pt"),
        (["lcp", "--weights", "none.pt"], "--weights MODEL=none.pt"),
        (["lcp", "--weights", "resnet32=none.pt"], "resnet32, which is not measured here"),
        (["lcp", "--model", "nets.py:make"], "comes with no images: give --data"),
        (["lcp", "--model", "nets.py:make", "--data", "npz:bare.npz"], "has no labels"),
        (["lcp", "--data", "frob"], "unknown data 'frob'"),
        (["lcp", "--data", "cifar10"], "spikecal datasets get cifar10"),
        (["lcp", "--images", "0"], "--images"),
        (["lcp", "-T", "0"], "-T"),
        (["bn", "--memory", "much"], "'much' is not a size in bytes"),
        (["imagenet"], "give --model and --weights"),
        (["space", "--model", "nets.py:bare"], "give --data"),
        (["space", "--model", "resnet20", "--data", "frob"], "unknown data 'frob'"),
        (["bn", "-T", "2", "--images", "2", "-o", "nets.py"], "cannot be used as a folder"),
    ],
)
def test_bad_calls(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    (folder / "nets.py").write_text((folder / "nets.py").read_text() + "\n\ndef bare():\n    return make()[0]\n")
    np.savez(folder / "bare.npz", images=np.zeros((4, 12, 12, 3), np.uint8))
    code = main(["reproduce", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert reason in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1


class Recorded:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float | None]] = []

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.phases.append((name, seconds))

    def advance(self, note: str = "") -> None: ...


@pytest.mark.usefixtures("folder")
def test_progress_counts_cells_and_says_what_is_left() -> None:
    plan = make_plan(find("bn"), Sizes(images=10), models=["nets.py:make"], data="npz:images.npz", T=[2, 3])
    assert len(pending(plan, Path("out"))) == 3
    seen = Recorded()
    run(plan, Path("out"), seen)
    cells_seen = dict.fromkeys(name.partition(":")[0] for name, _ in seen.phases)
    assert list(cells_seen) == ["cell 1/3", "cell 2/3", "cell 3/3"]
    first, last = seen.phases[0][1], seen.phases[-1][1]
    assert first is not None and last is not None and first > 0
    assert pending(plan, Path("out")) == []
    again = Recorded()
    run(plan, Path("out"), again)
    assert again.phases == []
