"""The paper's claims about each of its tables, and further expectations of ours."""

from itertools import pairwise
from typing import Any

from spikecal.reproduce.claims import Claim, Closed, Gain, Kept, LostByBN, Sooner, Steadier, WithBN
from spikecal.reproduce.tables import BASELINES, SOURCES, THRESHOLDS

PLAIN, LIGHT, ADVANCED = (row.label for row in BASELINES)


def _ladder(*labels: str, suffix: str = "") -> tuple[Claim, ...]:
    """Each label beats the one before it."""
    return tuple(
        Gain(text=f"{b}{suffix} beats {a}{suffix}", row=f"{b}{suffix}", over=f"{a}{suffix}")
        for a, b in pairwise(labels)
    )


def _rounding(name: str, points: int, T: int) -> Claim:
    text = f"ClipRound gives {name} {points} points at T={T}"
    return Gain(text=text, row=f"{name} + ClipRound", over=f"{name} + ClipFloor", least=points, at=T)


def _images(name: str, most: int, fewest: int) -> tuple[Claim, Claim]:
    row, over = (f"{name}, {count:,} images" for count in (most, fewest))
    return (
        Gain(text=f"more images help {name}", row=row, over=over),
        Steadier(text=f"more images, less variance, {name}", row=row, over=over),
    )


def _sources(text: str, row: str, over: str, *, ours: bool = False, **more: Any) -> tuple[Claim, ...]:
    """Claims about where images come from, for both pipelines; the paper's is about ACP."""
    return tuple(
        Gain(
            text=f"{text}, {name}",
            row=f"{SOURCES[row]} + {name}",
            over=f"{SOURCES[over]} + {name}",
            ours=ours or name != "ACP",
            **more,
        )
        for name in ("LCP", "ACP")
    )


def _ahead(row: str, *others: str) -> tuple[Claim, ...]:
    """One row beats each of the others, which the paper does not say. Within half a point of the ANN they are level."""
    return tuple(Gain(text=f"{row} beats {other}", row=row, over=other, ours=True, par=0.5) for other in others)


_PIPELINES = (
    *_ladder(PLAIN, LIGHT, ADVANCED),
    Sooner(text="ACP beats the baseline at twice the steps", row=ADVANCED, over=PLAIN),
)
_BN = (
    WithBN(text="with BN and LCP beats without BN and LCP", row=LIGHT, without=LIGHT),
    WithBN(text="with BN and ACP beats without BN and LCP", row=ADVANCED, without=LIGHT),
    WithBN(text="with BN and ACP beats without BN and ACP", row=ADVANCED, without=ADVANCED, ours=True),
)

# Sizes hold for all networks in the paper's table, as far as it prints them.
SAID: dict[str, tuple[Claim, ...]] = {
    "clipround": (
        *_ladder("MaxAct + ClipFloor", "MaxAct + ClipRound"),
        *_ladder("MMSE + ClipFloor", "MMSE + ClipRound"),
        _rounding("MMSE", 20, 16),
        _rounding("MaxAct", 30, 32),
    ),
    "threshold": (
        *_ladder(*THRESHOLDS),
        Gain(
            text="MMSE* is five points ahead of the percentile at T=16",
            row="MMSE*",
            over="Percentile 99.99 %",
            least=5,
            at=16,
        ),
    ),
    "bn": (
        LostByBN(text="BN hurts the uncalibrated network", row="MMSE + ClipRound"),
        Kept(
            text="with BN the uncalibrated network keeps less than half of the ANN's accuracy",
            row="MMSE + ClipRound",
            most=50,
            bn=True,
        ),
    ),
    "lcp": (
        Gain(text="LCP recovers 20 points", row="MMSE* + LCP", over="MMSE*, uncalibrated", least=20),
        *_ladder(*THRESHOLDS, suffix=" + LCP"),
        Kept(text="MaxAct + LCP keeps less than half of the ANN's accuracy", row="MaxAct + LCP", most=50),
    ),
    "acp": (
        *_ladder("MMSE* + LCP", "MMSE* + ACP"),
        *_ladder(*THRESHOLDS, suffix=" + ACP"),
        Closed(text="ACP closes 40 % of the gap left by LCP", row="MMSE* + ACP", over="MMSE* + LCP", least=40),
        Kept(
            text="MaxAct + ACP keeps less than half of the ANN's accuracy at T=16",
            row="MaxAct + ACP",
            most=50,
            at=16,
        ),
    ),
    "cifar": (
        *_PIPELINES,
        *_BN,
        Gain(text="LCP recovers 20 points at the fewest steps", row=LIGHT, over=PLAIN, least=20, at="fewest", bn=True),
        Closed(
            text="ACP closes a fifth of the gap left by LCP, at the fewest steps",
            row=ADVANCED,
            over=LIGHT,
            least=20,
            at="fewest",
            bn=True,
        ),
        Kept(text="ACP keeps nine tenths of the ANN's accuracy at T=16", row=ADVANCED, least=90, at=16, bn=True),
    ),
    "imagenet": (
        *_PIPELINES,
        *_BN,
        Gain(text="LCP recovers ten points at T=64", row=LIGHT, over=PLAIN, least=10, at=64, bn=True),
        Kept(text="ACP keeps nine tenths of the ANN's accuracy at T=256", row=ADVANCED, least=90, at=256, bn=True),
    ),
    "time": (),
    "space": (),
    "samples": (
        *_images("LCP", 256, 32),
        *_images("ACP", 1024, 128),
        Gain(text="LCP gains five points from 32 to 256 images", row="LCP, 256 images", over="LCP, 32 images", least=5),
        Gain(
            text="ACP gains no more than a point from 128 to 1,024 images",
            row="ACP, 1,024 images",
            over="ACP, 128 images",
            most=1,
        ),
    ),
    "fakedata": (
        *_sources("real images beat distilled ones", "", "distilled"),
        *_sources("at the fewest steps real images are five points ahead", "", "distilled", least=5, at="fewest"),
        *_sources("at the most steps real images are less than a point ahead", "", "distilled", most=1, at="most"),
        *_sources("distilled images beat noise by three points", "distilled", "noise", least=3, at="fewest", ours=True),
        *_sources("two networks beat one", "several", "distilled", ours=True),
    ),
    "frontier": (
        *_ahead("AUTO", "LCP", "PC", "ACP"),
        Gain(text="the two-phase network beats AUTO", row="two-phase", over="AUTO", ours=True),
    ),
    "latency": (*_ahead("AUTO", "LCP", "PC", "ACP"), *_ahead("AUTO with waits", "LCP", "PC", "ACP", "AUTO")),
    "detect": (
        *_PIPELINES,
        Kept(text="ACP keeps nine tenths of the ANN's mAP at T=64", row=ADVANCED, least=90, at=64),
    ),
}
