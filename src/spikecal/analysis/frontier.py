"""Accuracy against its cost: latency, spikes and energy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from spikecal.analysis.plots import COLOURS, DPI, MARKERS

# the label below each panel, and the unit: thousands of spikes, as ticks are powers of two
COSTS = {
    "latency": ("latency in steps", 1),
    "spikes": ("spikes per image, in thousands", 1000),
    "energy": ("energy relative to the ANN", 1),
}
MARGIN = 0.2  # of a doubling
STYLES = [*zip(COLOURS, MARKERS, strict=True), ("#555555", "X")]


@dataclass(frozen=True)
class Point:
    """The accuracy (%) of one network, and its value of each of `COSTS`."""

    accuracy: float
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Panel:
    """The curves of one ANN, and its own accuracy (%), drawn as a line."""

    title: str
    curves: Mapping[str, Sequence[Point]]
    ann: float


def frontier(panels: Sequence[Panel]) -> Figure:
    """Three panels per ANN that share the accuracy axis; costs double from tick to tick."""
    figure = Figure(figsize=(9, 0.8 + 3.4 * len(panels)), dpi=DPI, layout="constrained")
    grid = figure.subplots(len(panels), len(COSTS), squeeze=False, sharey="row")
    for line, panel in zip(grid, panels, strict=True):
        for axes, (cost, (label, unit)) in zip(line, COSTS.items(), strict=True):
            _draw(axes, panel, cost, unit)
            axes.set_xlabel(label)
        line[0].set_ylabel("accuracy (%)")
        line[1].set_title(panel.title, fontsize="medium")
    lines, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", frameon=False, ncols=4)
    return figure


def _draw(axes: Axes, panel: Panel, cost: str, unit: int) -> None:
    for number, (name, points) in enumerate(panel.curves.items()):
        colour, marker = STYLES[number % len(STYLES)]
        across = [point.costs[cost] / unit for point in points]
        heights = [point.accuracy for point in points]
        axes.plot(across, heights, color=colour, marker=marker, markersize=5, linewidth=1.5, label=name)
    axes.axhline(panel.ann, color="black", linestyle="--", linewidth=1.2, label="ANN")
    axes.set_xscale("log", base=2)
    _limit(axes, [point.costs[cost] / unit for points in panel.curves.values() for point in points])
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: _power(tick)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _limit(axes: Axes, values: Sequence[float]) -> None:
    """Limits at powers of two, so that there are ticks however close the values are."""
    if shown := [value for value in values if value > 0]:
        low, high = math.floor(math.log2(min(shown))), math.ceil(math.log2(max(shown)))
        axes.set_xlim(2 ** (low - MARGIN), 2 ** (high + MARGIN))


def _power(tick: float) -> str:
    """A power of two in few characters: `64` or `1/32`."""
    return f"{tick:,.0f}" if tick >= 1 else f"1/{1 / tick:,.0f}"
