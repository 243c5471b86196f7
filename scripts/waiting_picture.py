"""Draws docs/images/waiting.png: the windows of three layers with a skip, without waits and with them."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor, nn

import spikecal
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.windows import Windows

T = 4
WAITS = {"first": 1, "second": 1}
ROWS = {"input": "input", "first": "layer 1", "second": "layer 2", "sum": "layer 3", "head.joint": "output"}
BLUE, GREY, ORANGE = "#2f6fb0", "#c9ced6", "#c8641b"


class Three(nn.Module):
    """Three layers of neurons; a skip leads from the first to the third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
        self.first, self.second, self.sum = (nn.ReLU() for _ in range(3))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(self.a(x))
        return self.head(self.sum(first + self.c(self.second(self.b(first)))).mean((2, 3)))


def windows(waits: Mapping[str, int]) -> Windows:
    """The windows that spikecal gives this network."""
    torch.manual_seed(0)
    snn = spikecal.convert(Three(), torch.rand(8, 2, 6, 6), T=T, pipeline="baseline").snn
    return SpikingNetwork(snn.graph, T, waits).windows


def draw(axes: Axes, found: Windows, title: str) -> None:
    starts = {"input": 0, **found.starts}
    for y, (name, label) in enumerate(ROWS.items()):
        axes.text(-0.9, y, label, ha="right", va="center")
        wait = found.waits.get(name, 0)
        for j in range(wait):
            step(axes, starts[name] - wait + j, y, GREY, hatch="////")
        for j in range(T):
            step(axes, starts[name] + j, y, BLUE, text=str(j + 1))
        if wait:
            axes.text(starts[name] - wait - 0.1, y, "waits", ha="right", va="center", color="#555555", fontsize=9)
    skip(axes, found, starts)
    latency = T + starts["head.joint"]
    axes.axvline(latency, color="black", linewidth=1, linestyle=":")
    axes.set(xlim=(-0.7, T + 4), ylim=(len(ROWS) - 0.4, -0.6), yticks=[], title=f"{title}: latency {latency}")
    axes.set_xticks([t + 0.5 for t in range(T + 4)], [str(t + 1) for t in range(T + 4)])
    axes.set_xlabel("steps since the image came")
    axes.spines[["top", "right", "left"]].set_visible(False)


def step(axes: Axes, x: float, y: float, colour: str, text: str = "", hatch: str | None = None) -> None:
    face = "white" if hatch else colour
    axes.add_patch(
        Rectangle((x + 0.04, y - 0.26), 0.92, 0.52, facecolor=face, edgecolor=colour, hatch=hatch, linewidth=0.8)
    )
    axes.text(x + 0.5, y, text, ha="center", va="center", color="white", fontsize=9)


def skip(axes: Axes, found: Windows, starts: Mapping[str, int]) -> None:
    """From layer 1 to layer 3, whose neurons it charges before their own window if it arrives first."""
    first, last = list(ROWS).index("first"), list(ROWS).index("sum")
    ends = [(starts[name] + T + 0.05, y) for name, y in (("first", first), ("sum", last))]
    style = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 1.6, "connectionstyle": "arc3,rad=-0.6"}
    axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=style)
    axes.text(ends[0][0] + 0.85 + 0.5 * (ends[1][0] - ends[0][0]), 2, "skip", va="center", color=ORANGE, fontsize=9)
    stage = next(stage for stage in found.stages if stage.name == "sum")
    for j in range(found.charges(stage)["first"]):
        step(axes, starts["first"] + j, last, ORANGE, hatch="....")
        axes.text(starts["first"] + j - 0.1, last, "charged\nearly", ha="right", va="center", color=ORANGE, fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=Path(__file__).parents[1] / "docs/images/waiting.png")
    output = parser.parse_args().output
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    draw(panels[0], windows({}), "No layer waits")
    draw(panels[1], windows(WAITS), "Layers 1 and 2 wait")
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
