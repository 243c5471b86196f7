"""Plots: the figure says what went in."""

import io

import numpy as np
import pytest
from networks import images, residual
from PIL import Image

import spikecal
from spikecal.analysis.errors import NetworkErrors, measure_errors
from spikecal.analysis.plots import (
    MEDIAN,
    accuracy_over_images,
    accuracy_over_steps,
    accuracy_over_time,
    clip_functions,
    error_parts,
    firing_rates,
    relative_error,
    relative_error_compared,
    thresholds,
)  # fmt: skip

CURVES = {"LCP": [0.1, 0.5, 0.8, 0.9], "ACP": [0.2, 0.6, 0.85, 0.91]}
POINTS = {"LCP": {2: 0.7, 4: 0.9}, "ACP": {2: 0.75, 4: 0.91}}


def test_lines_are_the_numbers_in_percent() -> None:
    (axes,) = accuracy_over_time(CURVES, POINTS, 0.92, "title").axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert set(lines) == {
        "LCP, made for T = 4", "ACP, made for T = 4", "LCP, made for that T", "ACP, made for that T", "ANN (92.00 %)",
    }  # fmt: skip
    curve = lines["LCP, made for T = 4"]
    assert np.asarray(curve.get_xdata()).tolist() == [1, 2, 3, 4]
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([10, 50, 80, 90])
    points = lines["ACP, made for that T"]
    assert np.asarray(points.get_xdata()).tolist() == [2, 4]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("time steps", "accuracy (%)", "title")
    assert len({line.get_color() for line in lines.values()}) == 3  # a pipeline keeps its colour


def test_it_becomes_a_picture() -> None:
    buffer = io.BytesIO()
    accuracy_over_time(CURVES, POINTS).savefig(buffer)
    with Image.open(buffer) as picture:
        assert min(picture.size) > 400


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def errors() -> dict[str, NetworkErrors]:
    return {
        name: measure_errors(residual(), spikecal.convert(residual(), images(16), T=4, pipeline=name).snn, images(16))
        for name in ("baseline", "lcp")
    }


def test_boxes_are_percentiles_of_the_channels(errors: dict[str, NetworkErrors]) -> None:
    figure = relative_error(errors, "title")
    for axes, (name, found) in zip(figure.axes, errors.items(), strict=True):
        assert axes.get_title(loc="left") == name
        assert [label.get_text() for label in axes.get_xticklabels()] == [layer.stage for layer in found.neurons()]
        lines, layers = axes.get_lines(), found.neurons()
        assert len(axes.patches) == len(layers)
        medians = [line for line in lines if line.get_color() == MEDIAN]
        means = [line for line in lines if line.get_marker() == "^"]
        for layer, median, mean in zip(layers, medians, means, strict=True):
            values = layer.relative[layer.relative.isfinite()].numpy()
            assert float(np.asarray(median.get_ydata())[0]) == pytest.approx(np.median(values))
            assert float(np.asarray(mean.get_ydata())[0]) == pytest.approx(values.mean())
        ends = sorted(float(value) for line in lines for value in np.asarray(line.get_ydata(), dtype=float))
        for layer in layers:
            for end in np.percentile(layer.relative[layer.relative.isfinite()].numpy(), (5, 95)):
                assert min(abs(end - value) for value in ends) < 1e-9  # where a whisker ends


def test_networks_of_one_ann_stand_side_by_side(errors: dict[str, NetworkErrors]) -> None:
    figure = relative_error_compared(errors)
    (axes,) = figure.axes
    layers = errors["lcp"].neurons()
    assert len(axes.patches) == 2 * len(layers)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["baseline", "lcp", "median", "mean"]
    places = sorted(float(np.asarray(line.get_xdata())[0]) for line in axes.get_lines() if line.get_marker() == "^")
    assert places == pytest.approx([n + shift for n in range(len(layers)) for shift in (-0.2, 0.2)])


def test_parts_of_the_error(errors: dict[str, NetworkErrors]) -> None:
    (axes,) = error_parts(errors["lcp"]).axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()}
    assert set(lines) == {"total", "input", "flooring", "clipping", "unevenness"}  # no weights were calibrated
    shares = [layer.share("flooring") for layer in errors["lcp"].neurons()]
    assert lines["flooring"].tolist() == pytest.approx(shares)


# -- neurons, accuracy ---------------------------------------------------------------------------------------------


def test_clip_functions_are_the_paper_s() -> None:
    (axes,) = clip_functions().axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    z = np.asarray(lines["ReLU"].get_xdata(), dtype=float)
    relu = np.asarray(lines["ReLU"].get_ydata(), dtype=float)
    floor = np.asarray(lines["ClipFloor"].get_ydata(), dtype=float)
    rounded = np.asarray(lines["ClipRound"].get_ydata(), dtype=float)
    assert (floor <= relu + 1e-12).all()  # the paper's sentence has it the other way round
    assert set(np.unique(floor)) == set(np.unique(rounded)) == {0, 2, 4, 6, 8, 10}
    inside = (z > 0) & (z < 10)
    assert np.abs(rounded - relu)[inside].max() <= 1 + 1e-9
    assert np.abs(floor - relu)[inside].max() <= 2 + 1e-9
    assert (floor[z > 10] == 10).all()


def test_thresholds_of_one_t_can_be_seen() -> None:
    (axes,) = thresholds({"MaxAct": {4: 3.0}, "MMSE": {4: 2.0}}).axes
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "s"]
    (axes,) = thresholds({"MMSE": dict.fromkeys(range(1, 65), 1.0)}).axes
    assert axes.get_lines()[0].get_marker() == "None"


def test_thresholds_rates_and_samples_show_what_went_in() -> None:
    (axes,) = thresholds({"MaxAct": {1: 3.0, 2: 3.0, 4: 3.0}, "MMSE": {1: 1.0, 2: 1.5, 4: 2.0}}, "t").axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()] == [[3, 3, 3], [1, 1.5, 2]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    (axes,) = firing_rates({"a.relu": 0.1, "b.relu": 0.3}, "t").axes
    assert [bar.get_height() for bar in axes.patches] == [0.1, 0.3]  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a.relu", "b.relu"]
    (axes,) = accuracy_over_images({"LCP": {32: [0.5, 0.7], 128: [0.8, 0.8]}}, 0.9).axes
    curve = axes.get_lines()[0]
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([60, 80])
    assert axes.get_legend() is not None


def test_curves_of_networks_that_wait_end_at_their_latency() -> None:
    figure = accuracy_over_time({"late": [0.5, 0.6], "plain": [0.1, 0.2, 0.3, 0.4]}, {}, latencies={"late": 5})
    (axes,) = figure.axes
    lines = {str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()}
    assert lines == {"late, made for T = 2, latency 5": [4, 5], "plain, made for T = 4": [1, 2, 3, 4]}
    assert axes.get_xlabel() == "latency in steps"


def test_accuracy_over_steps_has_one_panel_per_network() -> None:
    means = {"Baseline": {4: (10.0, 1.0), 8: (20.0, None)}, "ACP": {4: (50.0, 2.0), 8: (60.0, 1.0)}}
    figure = accuracy_over_steps(dict.fromkeys("abcde", (means, 70.0)))
    figure.savefig(io.BytesIO())
    assert [axes.get_title() for axes in figure.axes] == list("abcde")  # the sixth place is empty
    for axes in figure.axes:
        heights = [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()]
        assert [10.0, 20.0] in heights and [50.0, 60.0] in heights and [70.0, 70.0] in heights
        assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8"]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"Baseline", "ACP", "ANN"}
