"""The picture of the frontier: accuracy against cost, in three panels."""

from typing import Any

from matplotlib.figure import Figure

from spikecal.analysis.frontier import Panel, Point, frontier
from spikecal.analysis.measures import from_stored


def draw(summary: dict[str, Any]) -> Figure:
    """A line of panels per network."""
    return frontier([_panel(network) for network in summary["networks"]])


def _panel(network: dict[str, Any]) -> Panel:
    curves = {
        row["method"]: [
            Point(c["mean"], {"latency": c["latency"], "spikes": c["spikes"], "energy": c["energy"]})
            for c in row["columns"].values()
        ]
        for row in network["rows"]
    }
    ann = from_stored(network["ann"][0])
    return Panel(f"{network['model']}, {ann['images']:,} test images", curves, ann["score"])
