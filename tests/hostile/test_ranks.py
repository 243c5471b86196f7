"""Variables not set by torchrun: one line, before any rank waits."""

import pytest
from cli.calls import Run, fails


@pytest.mark.parametrize(("rank", "count"), [("0", "x"), ("x", "2"), ("5", "2"), ("-1", "2"), ("0", "9" * 5000)])
def test_invalid_ranks(run: Run, monkeypatch: pytest.MonkeyPatch, rank: str, count: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)
    fails(run("convert", "resnet20", "-o", "net.snn"), "torchrun sets both")


def test_ranks_that_know_no_meeting_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    fails(run("convert", "resnet20", "-o", "net.snn"), "start them with torchrun")
