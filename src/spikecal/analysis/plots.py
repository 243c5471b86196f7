"""Plots: take results and return a matplotlib Figure, without showing or writing it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spikecal.analysis.errors import NetworkErrors
from spikecal.neurons import clip_floor, clip_round

# Okabe and Ito's palette: distinct for all common kinds of colour vision; markers and dashes distinguish them in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LIGHT = ("#FFFFFF", "#A6CEE8", "#F2C9A1", "#A8DCCB", "#E6BFD3", "#F6E3B0")  # the same, for boxes with a line in them
MEDIAN, MEAN = "#D55E00", "#009E73"
TRIANGLE: dict[str, Any] = {
    "marker": "^", "markerfacecolor": MEAN, "markeredgecolor": "black", "markeredgewidth": 0.4,
}  # fmt: skip
DPI = 150
NOTHING = 1e-9  # share of the error that is just rounding
FEW = 12  # curves with at most this many points have markers


def accuracy_over_time(
    curves: Mapping[str, Sequence[float]],
    points: Mapping[str, Mapping[int, float]],
    ann: float | None = None,
    title: str = "",
    latencies: Mapping[str, int] | None = None,
) -> Figure:
    """Accuracy (0..1) after every step, one curve per name; `points` (name, T) show networks made for that T.

    `latencies` belong to networks whose layers wait: their curves end there, in steps since the image began, and points
    are then placed by latency.
    """
    known = latencies or {}
    figure = Figure(figsize=(7.5, 5.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    ends = {name: known.get(name, len(curve)) for name, curve in curves.items()}
    steps = max([*ends.values(), *(T for part in points.values() for T in part)], default=1)
    names = list(dict.fromkeys((*curves, *points)))
    for number, name in enumerate(names):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        if name in curves:
            curve = [100 * value for value in curves[name]]
            late = f", latency {ends[name]}" if ends[name] > len(curve) else ""
            label = f"{name}, made for T = {len(curve)}{late}"
            after = range(1 + ends[name] - len(curve), 1 + ends[name])
            axes.plot(after, curve, color=colour, linewidth=1.8, label=label)
        if name in points:
            at = sorted(points[name])
            heights = [100 * points[name][T] for T in at]
            label = f"{name}, made for that {'latency' if known else 'T'}"
            axes.plot(at, heights, linestyle="none", marker=marker, markersize=7, color=colour, label=label, zorder=3)
    if ann is not None:
        axes.axhline(100 * ann, color="black", linestyle="--", linewidth=1.2, label=f"ANN ({100 * ann:.2f} %)")
    _dress(axes, steps, title, "latency in steps" if known else "time steps")
    figure.legend(loc="outside lower center", fontsize="small", frameon=False, ncols=2)  # curves go anywhere inside
    return figure


def _dress(axes: Axes, steps: int, title: str, across: str = "time steps") -> None:
    axes.set_xlim(0.5, steps + 0.5)
    axes.set_ylim(0, 100)
    ticks = [t for t in (1, 4, 8, 16, 32, 64, 128, 256, 512) if t < steps]
    axes.set_xticks([*ticks, steps])
    _finish(axes, across, "accuracy (%)", title)


def _finish(axes: Axes, across: str, up: str, title: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")


# -- errors --------------------------------------------------------------------------------------------------------


def relative_error(panels: Mapping[str, NetworkErrors], title: str = "") -> Figure:
    """Box plots of the channels' relative errors, one box per layer of neurons, one panel per network (paper, fig. 2).

    Whiskers reach from the 5th to the 95th percentile; the line is the median, the triangle the mean.
    """
    layers = max(len(found.neurons()) for found in panels.values())
    figure = Figure(figsize=(max(7.5, 2 + 0.36 * layers), 1 + 3.1 * len(panels)), dpi=DPI, layout="constrained")
    all_axes = figure.subplots(len(panels), squeeze=False, sharey=True)[:, 0]
    for axes, (name, found) in zip(all_axes, panels.items(), strict=True):
        _boxes(axes, found, 0.0, 0.6, "white")
        _name_layers(axes, [layer.stage for layer in found.neurons()])
        axes.set_title(name, fontsize="medium", loc="left")
        axes.set_ylabel("relative error of a channel")
        axes.set_yscale("log")
    _box_legend(figure, {})
    figure.suptitle(title, fontsize="medium")
    return figure


def relative_error_compared(networks: Mapping[str, NetworkErrors], title: str = "") -> Figure:
    """The same for several networks of one ANN, side by side in every layer (paper, fig. 5)."""
    stages = [layer.stage for layer in next(iter(networks.values())).neurons()]
    figure = Figure(figsize=(max(7.5, 2 + 0.62 * len(stages)), 4.8), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(networks)
    colours = dict(zip(networks, LIGHT, strict=False))
    for number, (name, found) in enumerate(networks.items()):
        _boxes(axes, found, (number - (len(networks) - 1) / 2) * width, 0.85 * width, colours[name])
    for edge in range(1, len(stages)):
        axes.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
    _name_layers(axes, stages)
    axes.set_xlim(-0.6, len(stages) - 0.4)
    axes.set_yscale("log")
    axes.set_ylabel("relative error of a channel")
    _box_legend(figure, colours)
    axes.set_title(title, fontsize="medium")
    return figure


def _boxes(axes: Axes, found: NetworkErrors, shift: float, width: float, colour: str) -> None:
    layers = found.neurons()
    drawn = axes.bxp(
        [_box(layer.relative.numpy()) for layer in layers],
        positions=[number + shift for number in range(len(layers))],
        widths=width,
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        manage_ticks=False,
        medianprops={"color": MEDIAN, "linewidth": 1.6},
        meanprops={**TRIANGLE, "markersize": 5},
    )
    for box in drawn["boxes"]:
        box.set(facecolor=colour, linewidth=0.8)


def _box(values: np.ndarray) -> dict[str, float]:
    """The values for a box; channels that are zero in the ANN have no relative error."""
    values = values[np.isfinite(values)]
    values = values if len(values) else np.array([math.nan])
    low, q1, median, q3, high = np.percentile(values, (5, 25, 50, 75, 95))
    return {"whislo": low, "q1": q1, "med": median, "q3": q3, "whishi": high, "mean": float(values.mean())}


def _box_legend(figure: Figure, colours: Mapping[str, str]) -> None:
    handles: list[Artist] = [Patch(facecolor=colour, edgecolor="black", label=name) for name, colour in colours.items()]
    handles.append(Line2D([], [], color=MEDIAN, linewidth=1.6, label="median"))
    handles.append(Line2D([], [], linestyle="none", label="mean", markersize=6, **TRIANGLE))
    figure.legend(handles=handles, loc="outside lower center", fontsize="small", ncols=len(handles), frameon=False)


def error_parts(found: NetworkErrors, title: str = "") -> Figure:
    """The parts of each layer's error, as squared norms relative to the ANN's value."""
    layers = found.neurons()
    figure = Figure(figsize=(max(7.5, 2 + 0.36 * len(layers)), 4.8), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    parts = ("total", "input", "flooring", "clipping", "unevenness", "weights")
    styles = zip(parts, ("black", *COLOURS), ("", *MARKERS), strict=False)
    for part, colour, marker in styles:
        heights = [layer.share(part) for layer in layers]
        if max(heights) > NOTHING:  # weights contribute only if they were calibrated
            shown = [height if height > NOTHING else math.nan for height in heights]
            axes.plot(range(len(layers)), shown, color=colour, marker=marker, markersize=5, linewidth=1.5, label=part)
    axes.set_yscale("log")
    axes.set_ylabel("‖part‖² / ‖x‖²")
    _name_layers(axes, [layer.stage for layer in layers])
    figure.legend(fontsize="small", ncols=len(parts), loc="outside lower center", frameon=False)
    axes.set_title(title, fontsize="medium")
    return figure


def _name_layers(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


# -- neurons -------------------------------------------------------------------------------------------------------


def clip_functions(theta: float = 10.0, T: int = 5) -> Figure:
    """ReLU against the mean output of a neuron with constant input, floored and rounded (paper, fig. 3)."""
    figure = Figure(figsize=(6.4, 4.6), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    z = torch.linspace(-0.3 * theta, 1.4 * theta, 3401, dtype=torch.float64)
    level = torch.tensor(theta, dtype=torch.float64)
    axes.plot(z, z.clamp(min=0), color="black", linestyle="--", linewidth=1.4, label="ReLU")
    axes.plot(z, clip_floor(z, level, T), color=COLOURS[0], linewidth=4, alpha=0.7, label="ClipFloor")
    axes.plot(z, clip_round(z, level, T), color=COLOURS[1], linewidth=1.6, label="ClipRound")
    axes.axvspan(theta, float(z[-1]), color="#EEEEEE", zorder=0, label="clipped above θ")
    axes.set_xlabel("input current")
    axes.set_ylabel("mean output")
    axes.set_title(f"Neuron with θ = {theta:g} after T = {T} steps", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", loc="upper left")
    return figure


def thresholds(curves: Mapping[str, Mapping[int, float]], title: str = "") -> Figure:
    """Threshold against T, one curve per method (paper, fig. 4)."""
    figure = Figure(figsize=(6.8, 4.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    dashes = ("-", "--", "-.", ":")
    for (name, curve), colour, dash, marker in zip(curves.items(), COLOURS, dashes, MARKERS, strict=False):
        line: dict[str, Any] = {"color": colour, "linestyle": dash, "linewidth": 1.8, "label": name}
        if len(curve) <= FEW:  # a line with one point is invisible
            line["marker"] = marker
        axes.plot(list(curve), list(curve.values()), **line)
    longest = max(T for curve in curves.values() for T in curve)
    axes.set_xscale("log", base=2)
    ticks = [2**k for k in range(longest.bit_length())]
    axes.set_xticks(ticks, [str(T) for T in ticks])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    _finish(axes, "time steps T", "threshold θ", title)
    return figure


def firing_rates(rates: Mapping[str, float], title: str = "") -> Figure:
    """Spikes per neuron and step, one bar per layer (paper, fig. 6)."""
    figure = Figure(figsize=(max(6.4, 2 + 0.34 * len(rates)), 4.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.bar(range(len(rates)), list(rates.values()), color=COLOURS[0], width=0.7)
    mean = sum(rates.values()) / max(len(rates), 1)
    axes.axhline(mean, color=COLOURS[1], linestyle="--", linewidth=1.3, label=f"mean over layers, {mean:.3f}")
    _name_layers(axes, list(rates))
    axes.set_ylabel("firing rate (spikes per neuron and step)")
    axes.legend(fontsize="small", loc="upper right")
    axes.set_title(title, fontsize="medium")
    return figure


# -- accuracy ------------------------------------------------------------------------------------------------------


Means = Mapping[str, Mapping[int, tuple[float, float | None]]]  # by row and column: mean and deviation, in %


def accuracy_over_images(
    found: Mapping[str, Mapping[int, Sequence[float]]], ann: float | None = None, title: str = ""
) -> Figure:
    """Accuracy (0..1) against calibration images: the mean over seeds, with bars of one standard deviation."""
    figure = Figure(figsize=(6.4, 4.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    means = {
        name: {
            count: (100 * statistics.fmean(of), 100 * statistics.stdev(of) if len(of) > 1 else None)
            for count, of in points.items()
        }
        for name, points in found.items()
    }
    _with_bars(axes, means, ann and 100 * ann, f"ANN ({100 * (ann or 0):.2f} %)")
    axes.legend(fontsize="small")
    _finish(axes, "calibration images", "accuracy (%)", title)
    return figure


def accuracy_over_steps(panels: Mapping[str, tuple[Means, float]]) -> Figure:
    """Accuracy (%) of networks made for each T, with the ANN's: one panel per network, one line per pipeline."""
    columns = math.ceil(len(panels) / 2) if len(panels) > 3 else len(panels)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(0.8 + 3.4 * columns, 0.5 + 2.9 * rows), dpi=DPI, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten().tolist()
    for axes, (title, (means, ann)) in zip(every, panels.items(), strict=False):
        _with_bars(axes, means, ann, "ANN")
        _finish(axes, "time steps T", "", title)
    for axes in every[len(panels) :]:
        axes.remove()
    for axes in every[::columns]:
        axes.set_ylabel("accuracy (%)")
    lines, names = every[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", frameon=False, ncols=len(names))
    return figure


def _with_bars(axes: Axes, means: Means, ann: float | None, label: str) -> None:
    for (name, points), colour, marker in zip(means.items(), COLOURS, MARKERS, strict=False):
        heights, bars = [mean for mean, _ in points.values()], [std or 0.0 for _, std in points.values()]
        axes.errorbar(list(points), heights, yerr=bars, color=colour, marker=marker, capsize=3, label=name)
    if ann is not None:
        axes.axhline(ann, color="black", linestyle="--", linewidth=1.2, label=label)
    ticks = sorted({at for points in means.values() for at in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
