"""When networks answer: latency, interval and waits, and how the waits were placed; as plain data and in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikecal.choice.placement import WORTH, Trial, cautions
from spikecal.result import Result
from spikecal.snn.network import SpikingNetwork

NEEDED = 8  # fewest calibration images to try placements with: a quarter is held out, and one image is not enough


@dataclass(frozen=True)
class Search:
    """The placements tried for a network, and the one it has; None if it has none of them."""

    tried: tuple[Trial, ...]
    kept: Trial | None
    images: int  # held out, to compare placements on
    overruled: str | None = None  # the pipeline that AUTO chose, which does as well without waits
    unused: tuple[int, int] | None = None  # the requested latency and the longest useful one, if that is less

    def verdict(self, trial: Trial) -> str:
        """Why a placement was kept or dropped."""
        if trial is self.kept:
            return "kept"
        if not trial.waits or trial.better:
            return "not the lowest divergence" if self.overruled is None else "better for LCP alone"
        return "no gain" if trial.gain <= 0 else "within chance" if trial.gain <= trial.error else "gains too little"

    def why(self) -> str:
        """The decision, in a sentence."""
        waiting = [trial for trial in self.tried if trial.waits]
        if self.kept is None:
            return "this network's waits are not among those tried"
        if not waiting and self.images < 2:
            return f"waiting was not tried: that takes at least {NEEDED} calibration images"
        if self.overruled is not None:
            return f"waits dropped: they help LCP, but not the chosen pipeline ({self.overruled})"
        if self.kept.waits:
            rule = f"they beat the network without waits by more than one standard error and by {100 * WORTH:g} %"
            return f"waits kept: {rule}, and have the lowest divergence"
        if any(trial.better for trial in waiting):
            return f"no layer waits: T = {self.kept.T} without waits has the lowest divergence"
        if not waiting:
            return "no layer waits: T leaves no room for it within the latency"
        return f"waits dropped: none of them gained more than one standard error and {100 * WORTH:g} %"

    def warnings(self) -> list[str]:
        """Warnings to heed before relying on it."""
        return cautions(self.tried, self.images, self.unused)

    def to_dict(self) -> dict[str, Any]:
        tried = [
            {**trial.to_dict(), **_numbers(trial), "kept": trial is self.kept, "verdict": self.verdict(trial)}
            for trial in self.tried
        ]
        return {"images": self.images, "why": self.why(), "warnings": self.warnings(), "tried": tried}


@dataclass(frozen=True)
class Timing:
    """The time that a network takes, in steps. `search` is how its waits were found, if they were searched for."""

    T: int
    latency: int
    interval: int
    waits: Mapping[str, int]
    search: Search | None = None

    @property
    def total(self) -> int:
        """Steps of waiting, summed over layers."""
        return sum(self.waits.values())

    def words(self) -> str:
        """`latency 18, one image every 10 steps`."""
        return f"latency {self.latency}, one image every {self.interval} step{'' if self.interval == 1 else 's'}"

    def to_dict(self) -> dict[str, Any]:
        search = None if self.search is None else self.search.to_dict()
        return {
            "T": self.T,
            "latency": self.latency,
            "interval": self.interval,
            "waits": dict(self.waits),
            "total_waits": self.total,
            "search": search,
        }


def timing(network: SpikingNetwork) -> Timing:
    """When a network answers, and how its waits were found, from its origin."""
    found = network.origin.placements.get(network.T)
    search = None if found is None else search_of(found, network.T, network.waits)
    return Timing(network.T, network.latency, network.interval, network.waits, search)


def timings(result: Result) -> list[Timing]:
    """The timing of all networks of a conversion, by T."""
    return [timing(result.at(T)) for T in sorted(result.networks)]


def search_of(found: Mapping[str, Any], T: int, waits: Mapping[str, int]) -> Search:
    """From the record of a file; ValueError, TypeError, KeyError or AttributeError if that is invalid.

    Placements of one name may differ in their number of waits, so the kept one is identified by its waits.
    """
    tried = tuple(_trial(entry) for entry in found["tried"])
    kept = next((trial for trial in tried if trial.T == T and trial.waits == waits), None)
    overruled, unused = found.get("overruled"), found.get("unused")
    if unused is not None:
        asked, longest = unused
        unused = int(asked), int(longest)
    return Search(tried, kept, int(found["images"]), None if overruled is None else str(overruled), unused)


def _trial(entry: Mapping[str, Any]) -> Trial:
    found = (entry[name] for name in ("divergence", "gain", "error"))
    numbers = (math.nan if number is None else float(number) for number in found)
    waits = {str(name): int(wait) for name, wait in entry["waits"].items()}
    return Trial(str(entry["name"]), int(entry["T"]), int(entry["latency"]), waits, *numbers)


def _numbers(trial: Trial) -> dict[str, float | None]:
    """A measurement; None if missing, as JSON has no NaN."""
    found = {name: getattr(trial, name) for name in ("divergence", "gain", "error")}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
