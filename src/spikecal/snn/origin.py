"""Where networks come from: a file's record of how they were made, and how long it took."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from spikecal.files import read_regular
from spikecal.graph.joints import JOINTS, Joints
from spikecal.graph.ops.base import is_number

Plain = dict[str, Any]  # data for JSON
LARGEST_INPUT = 2**28  # numbers
MOST_TIMINGS = 2**20  # bytes of the file beside a network


@dataclass(frozen=True)
class Origin:
    """The making of networks, as plain data; the same for the same conversion. None or empty means unknown."""

    pipelines: Mapping[int, Plain] = field(default_factory=dict)  # by T
    records: tuple[Plain, ...] = ()  # of all T
    micro_batches: Mapping[int, int] = field(default_factory=dict)  # images per kernel call, by T
    placements: Mapping[int, Plain] = field(default_factory=dict)  # trials of waits, by T
    choices: Mapping[int, Plain] = field(default_factory=dict)  # what AUTO tried and kept, by T
    images: int | None = None  # available calibration images; parts of a pipeline may use fewer
    inputs: tuple[tuple[int, ...], ...] = ()  # shapes of the first of them, without the batch
    keep: tuple[str, ...] = ()  # submodules that stayed analog
    joints: Joints = "analog"  # how linear values that weights read are passed on
    card: Plain | None = None  # what the network expects of images
    measured: Plain | None = None  # measurements of it and of the ANN
    calibration: str | None = None  # "distilled": calibrated on images made from the network
    detector: str | None = None  # of a detector's body: a hash of the rest

    def to_info(self) -> Plain:
        """Data for a file. Several T with one pipeline store it once."""
        plans = list(self.pipelines.values())
        alike = all(plan == plans[0] for plan in plans)
        found = {
            "pipeline": plans[0] if plans and alike else None,
            "pipelines": None if alike else {str(T): plan for T, plan in self.pipelines.items()},
            "records": list(self.records) if self.pipelines else None,
            "micro_batch": {str(T): n for T, n in self.micro_batches.items()} if self.pipelines else None,
            "inputs": [list(shape) for shape in self.inputs] or None,
            "keep": list(self.keep) or None,
            "joints": None if self.joints == "analog" else self.joints,
            "placements": {str(T): found for T, found in self.placements.items()} or None,
            "choices": {str(T): found for T, found in self.choices.items()} or None,
            **{name: getattr(self, name) for name in ("card", "measured", "images", "calibration", "detector")},
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_info(cls, info: Mapping[str, Any], steps: Iterable[int]) -> Self:
        """From a file of any format; ValueError if invalid."""
        plans = info.get("pipelines")
        if plans is None:
            plans = {str(T): info["pipeline"] for T in steps} if "pipeline" in info else {}
        tables = {name: info.get(name, {}) for name in ("placements", "choices")}
        return cls(
            pipelines=_by_steps("pipelines", plans, dict),
            records=tuple(_all("records", info.get("records", []), dict)),
            micro_batches=_by_steps("micro_batch", info.get("micro_batch", {}), int),
            inputs=tuple(tuple(_shape(found)) for found in _all("inputs", info.get("inputs", []), list)),
            keep=tuple(_all("keep", info.get("keep", []), str)),
            joints=_joints(info.get("joints", "analog")),
            images=_or_none(info, "images", int),
            card=_card(_or_none(info, "card", dict)),
            measured=_or_none(info, "measured", dict),
            calibration=_or_none(info, "calibration", str),
            detector=_or_none(info, "detector", str),
            **{name: _by_steps(name, found, dict) for name, found in tables.items()},
        )

    def trained(self) -> Self:
        """For further trained networks: records and measurements no longer hold, and the ANN is gone."""
        return replace(self, pipelines={}, records=(), micro_batches={}, choices={}, measured=None)

    def changed(self, **facts: Any) -> Self:
        return replace(self, **facts)


def _or_none(info: Mapping[str, Any], name: str, kind: type) -> Any:
    found = info.get(name)
    return None if found is None else _all(name, [found], kind)[0]


def _all(name: str, values: Any, kind: type) -> list[Any]:
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ValueError(f"its record of {name} is invalid")
    return values


def _shape(found: list[Any]) -> list[int]:
    """The shape of one input, small enough to try."""
    sizes = _all("inputs", found, int)
    if not 0 < len(sizes) < 16 or min(sizes) < 1 or math.prod(sizes) > LARGEST_INPUT:
        raise ValueError("its record of inputs is not the shape of an image")
    return sizes


def _by_steps(name: str, found: Any, kind: type) -> dict[int, Any]:
    """A table by T."""
    if not isinstance(found, dict) or not all(T.isascii() and T.isdigit() and len(T) < 9 for T in found):
        raise ValueError(f"its record of {name} is not by number of steps")
    return {int(T): value for T, value in zip(found, _all(name, list(found.values()), kind), strict=True)}


def _card(found: Plain | None) -> Plain | None:
    """Check what running and exporting need of a card; the card checks everything else."""
    if found is None:
        return None
    size, mean, std = (found.get(name) for name in ("size", "mean", "std"))
    rows = [row for row in (mean, std) if row is not None]
    numbers = all(isinstance(row, list) and all(map(is_number, row)) for row in rows)
    if not numbers or (mean is None) != (std is None) or (mean and len(mean) != len(std or ())) or 0 in (std or ()):
        raise ValueError("mean and std on its card are invalid")
    if size is not None and (not isinstance(size, list) or len(_shape([len(mean or ()) or 1, *size])) != 3):
        raise ValueError("the size of images on its card is invalid")
    return found


def _joints(found: Any) -> Joints:
    if found not in JOINTS:
        raise ValueError(f"it has joints of a kind unknown to this version of spikecal: {str(found)[:20]!r}")
    kind: Joints = found
    return kind


@dataclass
class Timings:
    """Seconds of a conversion by phase. They differ from run to run, so they are in a separate file."""

    lowering: float = 0.0
    thresholds: float = 0.0
    steps: dict[int, float] = field(default_factory=dict)  # of the network for each T
    distilling: float = 0.0

    def alone(self) -> dict[int, float]:
        """The time of a conversion for each T alone, including everything before it."""
        before = self.distilling + self.lowering + self.thresholds
        return {T: before + seconds for T, seconds in self.steps.items()}

    def to_dict(self) -> dict[str, float]:
        named = {"distilling": self.distilling} if self.distilling else {}
        steps = {f"T={T}": seconds for T, seconds in self.steps.items()}
        return {**named, "lower": self.lowering, "thresholds": self.thresholds, **steps}

    @classmethod
    def from_dict(cls, phases: Mapping[str, Any]) -> Self:
        """From the output of `to_dict`; ValueError or TypeError if invalid."""
        known = {str(name): float(seconds) for name, seconds in phases.items()}
        first = [known.pop(name, 0.0) for name in ("lower", "thresholds", "distilling")]
        return cls(first[0], first[1], {int(name.removeprefix("T=")): value for name, value in known.items()}, first[2])

    @classmethod
    def beside(cls, path: str | Path) -> Self:
        """The timings written beside a network; all 0 if that file is missing or invalid."""
        try:
            return cls.from_dict(json.loads(read_regular(f"{path}.json", MOST_TIMINGS))["seconds"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()
