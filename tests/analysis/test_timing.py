"""Reports about waits: why placements were kept or dropped, also as JSON."""

import json
import math
from typing import Any

import pytest

from spikecal.analysis.timing import Search, Timing, search_of
from spikecal.choice.placement import Trial


def trial(name: str = "evenly", **settings: Any) -> Trial:
    return Trial(**{"name": name, "T": 4, "latency": 6, "waits": {"a": 2}, "divergence": 0.5, **settings})


NONE = trial("no waits", latency=4, waits={}, divergence=1.0)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (trial(gain=0.5, error=0.1), "not the lowest divergence"),
        (trial(gain=0.2, error=0.3), "within chance"),
        (trial(gain=0.002, error=0.001), "gains too little"),
        (trial(gain=-0.1, error=0.1), "no gain"),
        (trial("no waits", waits={}), "not the lowest divergence"),
    ],
)
def test_a_verdict_says_why_a_placement_is_not_the_one(other: Trial, verdict: str) -> None:
    kept = trial("by unevenness", divergence=0.4, gain=0.6, error=0.1)
    search = Search((NONE, other, kept), kept, 16)
    assert [search.verdict(one) for one in search.tried] == ["not the lowest divergence", verdict, "kept"]


@pytest.mark.parametrize(
    ("tried", "kept", "images", "why"),
    [
        ([trial(gain=0.5, error=0.1)], 1, 16, "waits kept: they beat the network without waits"),
        (
            [trial(gain=0.2, error=0.3)],
            0,
            16,
            "waits dropped: none of them gained more than one standard",
        ),
        ([trial(T=2, gain=2.0, error=0.1, divergence=1.5)], 0, 16, "no layer waits: T = 4 without waits"),
        ([], 0, 16, "T leaves no room for it within the latency"),
        ([], 0, 1, "waiting was not tried: that takes at least 8 calibration images"),
    ],
)
def test_decisions_are_reported(tried: list[Trial], kept: int, images: int, why: str) -> None:
    whole = (NONE, *tried)
    assert why in Search(whole, whole[kept], images).why()


def test_the_kept_placement_is_known_by_its_waits() -> None:
    fewer = trial(waits={"a": 1}, latency=5)
    stored = {"kept": "evenly", "images": 16, "tried": [one.to_dict() for one in (NONE, trial(), fewer)]}
    assert search_of(stored, 4, {"a": 1}).kept == fewer
    assert search_of(stored, 4, {}).kept == NONE
    assert search_of(stored, 8, {"a": 1}).kept is None
    assert "not among those" in search_of(stored, 8, {"a": 1}).why()


def test_what_was_not_measured_is_null() -> None:
    search = Search((trial("no waits", waits={}, divergence=math.nan),), None, 1)
    found = json.loads(json.dumps(Timing(4, 4, 4, {}, search).to_dict(), allow_nan=False))
    assert found["search"]["tried"][0]["divergence"] is None


def test_time_in_words() -> None:
    assert Timing(8, 18, 10, {"a": 2}).words() == "latency 18, one image every 10 steps"
    assert Timing(1, 1, 1, {}).words() == "latency 1, one image every 1 step"


def test_few_held_out_images_and_latency_beyond_use_are_warned_of() -> None:
    whole = (NONE, trial(gain=0.5, error=0.1))
    assert Search(whole, whole[1], 32).warnings() == []
    assert Search(whole[:1], NONE, 31).warnings() == []  # nothing was decided
    (few,) = Search(whole, whole[1], 31).warnings()
    assert "on only 31 held-out images" in few and "128 calibration images" in few
    (unused,) = Search(whole, whole[1], 64, unused=(90, 16)).warnings()
    assert unused == "a latency of 90 is more than this network can use: at most 16 helps"
    stored = {"kept": "evenly", "images": 64, "tried": [one.to_dict() for one in whole], "unused": [90, 16]}
    assert search_of(stored, 4, {"a": 2}).unused == (90, 16)
