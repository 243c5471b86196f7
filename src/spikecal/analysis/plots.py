"""Plots: results in, a matplotlib Figure out. Nothing is shown and nothing is written."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by all common kinds of colour vision; markers and dashes tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def accuracy_over_time(
    curves: Mapping[str, Sequence[float]],
    points: Mapping[str, Mapping[int, float]],
    ann: float | None = None,
    title: str = "",
) -> Figure:
    """Accuracy (0..1) after every step, one curve a name; `points` (name, T) are of networks made for that very T."""
    figure = Figure(figsize=(7.5, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    steps = max([len(curve) for curve in curves.values()] + [T for part in points.values() for T in part], default=1)
    names = list(dict.fromkeys((*curves, *points)))
    for number, name in enumerate(names):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        if name in curves:
            curve = [100 * value for value in curves[name]]
            axes.plot(
                range(1, len(curve) + 1), curve, color=colour, linewidth=1.8, label=f"{name}, made for T = {steps}"
            )
        if name in points:
            at = sorted(points[name])
            heights = [100 * points[name][T] for T in at]
            label = f"{name}, made for that T"
            axes.plot(at, heights, linestyle="none", marker=marker, markersize=7, color=colour, label=label, zorder=3)
    if ann is not None:
        axes.axhline(100 * ann, color="black", linestyle="--", linewidth=1.2, label=f"ANN ({100 * ann:.2f} %)")
    _dress(axes, steps, title)
    return figure


def _dress(axes: Axes, steps: int, title: str) -> None:
    axes.set_xlabel("time steps")
    axes.set_ylabel("accuracy (%)")
    axes.set_xlim(0.5, steps + 0.5)
    axes.set_ylim(0, 100)
    ticks = [t for t in (1, 4, 8, 16, 32, 64, 128, 256, 512) if t < steps]
    axes.set_xticks([*ticks, steps])
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize="small", frameon=False)
    if title:
        axes.set_title(title, fontsize="medium")
