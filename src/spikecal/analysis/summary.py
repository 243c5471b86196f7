"""The summary of a converted network in one table: accuracy, energy, steps, time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spikecal.analysis.energy import stored_costs
from spikecal.analysis.evaluate import Evaluation, steps_needed

SPREADS = 2  # standard deviations above chance that still count as chance
POINTS = 1.0  # how close to the ANN counts as near, in percentage points


@dataclass(frozen=True)
class Summary:
    """Networks of one file, measured on the same images. `seconds` is the time to convert for each T alone."""

    data: str
    split: str
    found: Sequence[Evaluation]
    points: float = POINTS
    seconds: Mapping[int, float] = field(default_factory=dict)

    @property
    def images(self) -> int:
        return self.found[0].images

    @property
    def ann(self) -> float | None:
        """The ANN's accuracy, if the ANN and the labels are known."""
        return self.found[0].ann

    @property
    def compared(self) -> bool:
        """Whether there was an ANN to compare with."""
        return bool(self.found[0].agreement)

    @property
    def measure(self) -> str:
        return "accuracy" if self.found[0].accuracy else "agreement with the ANN"

    @property
    def needed(self) -> Evaluation | None:
        """The network with the fewest steps that is near enough."""
        return steps_needed(self.found, self.points)

    @property
    def by_chance(self) -> bool:
        """Whether no network agrees with the ANN more often than by guessing."""
        classes = max(e.classes for e in self.found)
        if not self.compared or classes < 2:
            return False
        chance = 1 / classes
        spread = math.sqrt(chance * (1 - chance) / self.images)
        return max(e.agreement[-1] for e in self.found) <= chance + SPREADS * spread

    def doubt(self, name: str) -> str:
        """The warning about a network that agrees only by chance."""
        best = max(e.agreement[-1] for e in self.found)
        return (
            f"{name} agrees with the model on {100 * best:.1f} % of the images, which is about chance: "
            f"was it made from these weights?"
        )

    def answer(self) -> str:
        """One sentence: which T is enough."""
        needed, points = self.needed, f"{self.points:g} point{'' if self.points == 1 else 's'}"
        target = f"the ANN's {100 * self.ann:.2f} %" if self.ann is not None else "the ANN's own answers"
        if needed is not None:
            what = f"{self.measure} {100 * needed.curve[-1]:.2f} %"
            late = "" if needed.latency == needed.T else f" with latency {needed.latency}"
            return f"T = {needed.T}{late} is enough: {what}, within {points} of {target}"
        best = max(self.found, key=lambda e: e.curve[-1])
        these = ", ".join(str(e.T) for e in self.found)
        return (
            f"none of T = {these} comes within {points} of {target}; T = {best.T} comes closest with "
            f"{self.measure} {100 * best.curve[-1]:.2f} %: convert for more steps or with another pipeline"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with every step and every layer."""
        facts: dict[str, Any] = {"data": self.data, "split": self.split, "images": self.images, "ann": self.ann}
        if self.compared:
            needed = self.needed
            facts |= {"within": self.points, "needed": None if needed is None else needed.T}
        return facts | {"networks": [self._network(e) for e in self.found]}

    def _network(self, e: Evaluation) -> dict[str, Any]:
        return {
            "T": e.T,
            "latency": e.latency,
            "interval": e.interval,
            "latencies": e.latencies,
            "accuracy": e.accuracy,
            "agreement": e.agreement,
            **self._near(e),
            "spikes": e.spikes_per_image,
            "rate": e.rate,
            "rates": e.rates,
            "energy": None if e.energy is None else e.energy.to_dict(),
            "conversion_seconds": self.seconds.get(e.T),
            **({} if e.exits is None else {"exit": e.exits.to_dict()}),
        }

    def _near(self, e: Evaluation) -> dict[str, int | None]:
        """The step from which a network stays near the ANN, and its time."""
        step = e.first_within(self.points) if self.compared else None
        return {"first_within": step, "first_within_latency": None if step is None else e.latencies[step - 1]}

    def measured(self) -> dict[str, Any]:
        """The facts that a file keeps: the numbers of the table."""
        return {
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "ann": self.ann,
            "networks": {
                str(e.T): {
                    "accuracy": e.accuracy[-1] if e.accuracy else None,
                    "agreement": e.agreement[-1] if e.agreement else None,
                    **stored_costs(e.energy),
                }
                for e in self.found
            },
        }
