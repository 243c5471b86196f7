"""The plan of a conversion: it matches what is used, and conversions without room are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from networks import images, residual

import spikecal
from spikecal import ConfigError, planning
from spikecal.calibration import cache

T, COUNT = 8, 32


def planned(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> planning.Needs:
    """The needs of a conversion, which is run, too."""
    found = []
    needs = planning.needs
    monkeypatch.setattr(planning, "needs", lambda *given: found.append(needs(*given)) or found[-1])  # type: ignore[func-returns-value]
    spikecal.convert(residual(), images(COUNT), T=T, **settings)
    return found[0]


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes between stages on disk, after each write."""
    sizes: list[int] = []
    write = cache._write

    def measured(path: Path, value: Any) -> None:
        write(path, value)
        sizes.append(sum(file.stat().st_size for file in path.parent.iterdir() if file.suffix in (".ann", ".snn")))

    monkeypatch.setattr(cache, "_write", measured)
    return sizes


@pytest.mark.parametrize("kept", [False, True])
def test_the_disk_holds_what_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_disk: list[int], kept: bool
) -> None:
    """Everything with a working directory; otherwise only what does not fit into memory."""
    settings: dict[str, Any] = {"workdir": tmp_path / "work"} if kept else {"memory": 1}
    found = planned(monkeypatch, pipeline="lcp", micro_batch=COUNT, **settings)
    assert found.disk == found.cached
    assert max(on_disk) == pytest.approx(found.disk, rel=0.1)  # files have headers


def test_what_fits_into_memory_is_not_on_disk(monkeypatch: pytest.MonkeyPatch, on_disk: list[int]) -> None:
    found = planned(monkeypatch, pipeline="lcp")
    assert found.disk == 0 == len(on_disk) and found.held == found.cached
    assert found.memory == found.own + found.histograms + found.working + found.cached
    assert found.own == images(COUNT).nbytes and (found.images, found.T) == (COUNT, T)


def test_lack_of_memory_is_reported_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("spikecal.conversion.histograms", lambda context: pytest.fail("it has started"))
    with monkeypatch.context() as patch:
        patch.setattr("spikecal.planning.free_memory", lambda device: 10_000_000)
        with pytest.raises(ConfigError, match=r"needs [\d.]+ MB of memory .* but 10.0 MB is free"):
            spikecal.convert(residual(), images(4), T=T)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(ConfigError, match=r"would put [\d.]+ kB of values .* but 100 B is free there: give it more"):
        spikecal.convert(residual(), images(4), T=T, memory=1, pipeline="lcp")


def test_more_images_are_on_disk_where_weights_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    few = planned(monkeypatch, pipeline="lcp")
    learned = planned(monkeypatch, pipeline=spikecal.ACP.changed(spikecal.Weights, iterations=1))
    assert learned.cached > few.cached


class Reader:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.lines.append(name)

    def advance(self, note: str = "") -> None: ...

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_a_long_conversion_says_its_plan_first(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    spikecal.convert(residual(), images(4), T=[4, T], pipeline="lcp", progress=reader)
    assert not reader.lines[0].startswith("plan")  # it is done at once
    monkeypatch.setattr(planning, "WORTH_SAYING", 0.0)
    reader.lines.clear()
    spikecal.convert(residual(), images(4), T=[4, T], pipeline="lcp", progress=reader)
    plan, *_ = reader.lines
    assert plan.startswith(f"plan: T={T}, 4 images, 128 images and all steps per call: about ")
    assert "of memory (images " in plan and "on disk" not in plan
    spikecal.convert(residual(), images(4), T=T, pipeline="lcp", memory=1, progress=reader)
    assert any(line.startswith("plan") and "kB on disk, in " in line for line in reader.lines)
