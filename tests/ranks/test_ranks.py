"""Several ranks do what one does, bit for bit; if one is lost, all others end and report it."""

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from killed import report_of

from spikecal.ranks import Ranks, watch

PROGRAM = Path(__file__).with_name("program.py")
MINUTE = 60


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Any]:
    """What `program.py` reports of all its groups; run once, however many processes run the tests."""
    if worker_id == "master":
        return report_of(PROGRAM, tmp_path_factory.mktemp("ranks"))  # type: ignore[no-any-return]
    kept = tmp_path_factory.getbasetemp().parent / "ranks.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(report_of(PROGRAM, tmp_path_factory.mktemp("ranks"))))
    return json.loads(kept.read_text())  # type: ignore[no-any-return]


def ranks_of(report: dict[str, Any], count: int) -> list[dict[str, Any]]:
    found = report[f"group{count}"]
    assert all("found" in rank for rank in found), found
    return [rank["found"] for rank in found]


# -- the same bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_one_rank_and_several_give_the_same_bytes(report: dict[str, Any], count: int) -> None:
    first, *others = ranks_of(report, count)
    assert first["exact"] == report["alone"]["exact"]
    for other in others:  # they count the same, and write nothing
        assert {name: found for name, found in other["exact"].items() if found is not None} == {
            name: first["exact"][name] for name in ("evaluate", "batches", "exit", "detected", "two-phase", "distilled")
        }


@pytest.mark.parametrize("count", [2, 3])
def test_cells_of_a_table_are_the_same_wherever_they_are_measured(report: dict[str, Any], count: int) -> None:
    figures = [list(found["table"].values()) for found in (*ranks_of(report, count), report["alone"])]
    assert figures[0] and all(found == figures[0] for found in figures)


@pytest.mark.parametrize("count", [2, 3])
def test_learned_weights_are_the_same_up_to_rounding(report: dict[str, Any], count: int) -> None:
    for name, alone in report["alone"]["learned"].items():
        found = [torch.tensor(rank["learned"][name], dtype=torch.float64) for rank in ranks_of(report, count)]
        assert all(torch.equal(one, found[0]) for one in found)
        torch.testing.assert_close(found[0], torch.tensor(alone, dtype=torch.float64), rtol=1e-3, atol=1e-4)


def test_between_network_namespaces(report: dict[str, Any]) -> None:
    if report["apart"] is not None:
        pytest.skip(f"no network namespaces here: {report['apart']}")
    first, second = report["namespaces"]
    assert first["found"] == report["alone"]["exact"]["lcp"] and second["found"] is None


# -- lost ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "lost", "said"),
    [
        ("killed", 1, "no longer answers"),
        ("stopped", 2, "no longer answers"),
        ("asleep", 0, "has made no progress for 20 s"),
        ("frozen", 0, "no longer answers"),  # where all meet
    ],
)
def test_where_a_rank_is_lost_all_others_end_within_a_minute(
    report: dict[str, Any], way: str, lost: int, said: str
) -> None:
    for rank, found in enumerate(report[way]):
        if rank == lost:
            assert found is None
        else:
            assert found["error"] == "RankError" and f"rank {lost} {said}" in found["told"]
            assert "rerun to resume" in found["told"] and "\n" not in found["told"]
            assert found["ended"] - report["lost"][way] < MINUTE


def test_one_of_the_others_reports_a_lost_rank(report: dict[str, Any]) -> None:
    assert [found["tells"] for found in report["stopped"] if found is not None].count(True) == 1


def test_a_conversion_resumes_with_another_number_of_ranks(report: dict[str, Any]) -> None:
    resumed = [ranks_of(report, 2)[0]["resumed"], ranks_of(report, 3)[0]["resumed"], report["alone"]["resumed"]]
    for found in resumed:  # of three ranks with two, of two with three, of two with one
        assert found["print"] == report["uninterrupted"]
        assert found["before"] > 2 and found["again"] == 0


@pytest.mark.parametrize("count", [2, 3])
def test_an_error_of_one_rank_ends_all(report: dict[str, Any], count: int) -> None:
    for rank, found in enumerate(ranks_of(report, count)):
        assert found["failed"].startswith("OSError" if rank == 1 else "RankError: rank 1: the disk is gone")


def test_time_stands_still_while_a_job_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 11.0, 12.5, 3600.0, 3601.0])
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    clock = watch.Clock()
    assert [clock.now() for _ in range(4)] == [11.0, 12.5, 12.5, 13.5]


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_differ_are_refused(report: dict[str, Any], count: int) -> None:
    for found in ranks_of(report, count):
        for what in ("version", "weights", "images", "settings", "evaluated", "detected"):
            named = "images" if what in ("evaluated", "detected") else what
            assert f"rank 1 differs from rank 0 in its {named}" in found["refused"][what]
        assert ".dev" in found["refused"]["version"]
        for what in ("checkpoint", "directory"):
            assert "does not exist on all ranks" in found["refused"][what]


@pytest.mark.parametrize("count", [2, 3])
def test_one_of_several_that_start_at_once_gets_the_working_directory(report: dict[str, Any], count: int) -> None:
    told = [found["at once"] for found in ranks_of(report, count)]
    assert told.count(None) == 1
    assert all("is being used by another process" in one for one in told if one is not None)


@pytest.mark.parametrize("count", [2, 3])
def test_what_one_rank_fetches_the_others_wait_for(report: dict[str, Any], count: int) -> None:
    assert [found["fetched"] for found in ranks_of(report, count)] == ["all of it"] * count


# -- one rank --------------------------------------------------------------------------------------------------


def test_one_rank_has_everything() -> None:
    ranks, total = Ranks(), Ranks().sum(3, torch.device("cpu"))
    assert list(ranks.share(5)) == [0, 1, 2, 3, 4] and ranks.first and ranks.spread([1.0, 1.0]) is None
    total.add(torch.tensor([1.0, 2.0, 3.0]))
    total.add(torch.tensor([1.0]))
    assert total.total().tolist() == [2, 2, 3]


class Placed(Ranks):
    """One of several, without a process group."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count


@pytest.mark.parametrize(("parts", "count"), [(7, 3), (2, 3), (0, 2), (9, 3)])
def test_shares_are_neighbours_and_are_all_there_is(parts: int, count: int) -> None:
    for turn in range(4):
        shares = [Placed(rank, count).share(parts, turn) for rank in range(count)]
        assert sorted(part for share in shares for part in share) == list(range(parts))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
