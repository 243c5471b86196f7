"""Plots: the figure says what went in."""

import io

import numpy as np
import pytest
from PIL import Image

from spikecal.analysis.plots import accuracy_over_time

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
