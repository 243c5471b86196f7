"""Energy and firing rates of networks calibrated by LCP, and what rates depend on; writes bench/results/energy.json.

    python bench/energy.py [MODEL=FILE …]     rerun to resume after the last finished row

On the embedded images: all for thresholds, 128 for the bias, 500 test images. Besides the embedded ResNet-20, it
measures the given networks. Those without BN have only `rates`, which take seconds.

`networks`: accuracy, energy as a share of the ANN's (`ratio`, and with all lines), break-even T at these rates, and
firing rates: spikes per neuron and step (`rate`), those of each layer, and their mean, least and most.

`costs_more_from`: the smallest T for which a network made for T steps costs more than its ANN, by `ratio` and by
`ratio_with_all`; by bisection, on 100 test images.

`thresholds`: the same as `networks` at T = 64, for each kind of threshold.

`rates`: firing rates without any simulation, from the ANN's activations on the calibration images: a neuron that passes
on its activation fires at the rate min(x, theta)/theta. The mean over layers for each kind of threshold, and over
layers the share of activations above 0 (`active`).
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spikecal
from spikecal.analysis.evaluate import Evaluation
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.threshold import Threshold
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import Data, load_data, subset
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.reproduce.tables import THRESHOLDS
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "energy.json"
STEPS, THRESHOLD_T, RATE_STEPS = (16, 32, 64), 64, (4, 16, 64)
IMAGES, SEARCH_IMAGES, LARGEST, BATCH = 500, 100, 1024, 100
NETWORKS = ("resnet20", "resnet20-nobn")


class Rows:
    """The measurements by part and row, written after each one."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}

    def measure(self, part: str, row: str, measured: Callable[[], Any]) -> None:
        rows = self.found.setdefault(part, {})
        if row not in rows:
            rows[row] = measured()
            print(part, row, rows[row], flush=True)
            settings = {"images": IMAGES, "search_images": SEARCH_IMAGES, "machine": machine()}
            write_whole(RESULT, json.dumps({**self.found, **settings}, indent=1) + "\n")


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with its calibration images and its test images."""

    name: str
    file: Path | None

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Any]:
        return load_model(self.name, self.file)

    @property
    def model(self) -> nn.Module:
        return self._loaded[0]

    @cached_property
    def calibration(self) -> Prepared:
        return Prepared(load_data("demo", "train"), self._loaded[1])

    def tested(self, count: int) -> Loader:
        test: Data = subset(load_data("demo", "test"), count, 0)
        return Loader(test, self._loaded[1], BATCH)

    @cached_property
    def histograms(self) -> dict[str, Histogram]:
        return spikecal.convert(self.model, self.calibration, T=1, pipeline=spikecal.BASELINE).histograms


def main(files: dict[str, Path]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    rows = Rows()
    subjects = [Subject(name, files.get(name)) for name in dict.fromkeys((*NETWORKS, *files))]
    for subject, T, (kind, threshold) in product(subjects, RATE_STEPS, THRESHOLDS.items()):
        rows.measure("rates", f"{subject.name}, T={T}, {kind}", partial(expected, subject, T, threshold))
    for subject in (subject for subject in subjects if not subject.name.endswith("-nobn")):
        for T in STEPS:
            rows.measure("networks", f"{subject.name}, T={T}", partial(measured, subject, T))
        for kind, threshold in THRESHOLDS.items():
            row = f"{subject.name}, T={THRESHOLD_T}, {kind}"
            rows.measure("thresholds", row, partial(measured, subject, THRESHOLD_T, threshold))
        rows.measure("costs_more_from", subject.name, partial(crossings, subject))


def run(subject: Subject, T: int, threshold: Threshold, images: int) -> Evaluation:
    pipeline = replace(spikecal.LCP, threshold=threshold)
    snn = spikecal.convert(subject.model, subject.calibration, T=T, pipeline=pipeline, records=False).snn
    return spikecal.evaluate(snn, subject.tested(images), ann=subject.model)


def measured(subject: Subject, T: int, threshold: Threshold = spikecal.LCP.threshold) -> dict[str, Any]:
    found = run(subject, T, threshold, IMAGES)
    assert found.energy is not None
    return {
        "ann": found.ann,
        "accuracy": found.accuracy[-1],
        "ratio": found.energy.ratio,
        "ratio_with_all": found.energy.ratio_with_all,
        "break_even": found.energy.break_even,
        "rate": found.rate,
        "layers_mean": statistics.fmean(found.rates.values()),
        "layers_least": min(found.rates.values()),
        "layers_most": max(found.rates.values()),
        "rates": found.rates,
    }


def crossings(subject: Subject) -> dict[str, int]:
    """Rates fall slowly with T, and energy is about rate times T, so it grows with T."""
    ratios: dict[int, dict[str, float]] = {}

    def ratio(T: int, kind: str) -> float:
        if T not in ratios:
            energy = run(subject, T, spikecal.LCP.threshold, SEARCH_IMAGES).energy
            assert energy is not None
            ratios[T] = {"ratio": energy.ratio or 0.0, "ratio_with_all": energy.ratio_with_all or 0.0}
        return ratios[T][kind]

    return {kind: first_above(1.0, partial(ratio, kind=kind)) for kind in ("ratio", "ratio_with_all")}


def first_above(limit: float, grows: Callable[[int], float]) -> int:
    """The smallest T up to LARGEST at which a growing function exceeds a limit."""
    high = STEPS[-1]
    while grows(high) <= limit and high < LARGEST:
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if grows(middle) > limit else (middle, high)
    return high


def expected(subject: Subject, T: int, threshold: Threshold) -> dict[str, float]:
    """Means over layers."""
    rates, active = [], []
    for histogram in subject.histograms.values():
        theta = threshold.solve(histogram, T, "round")
        rates.append(float(expected_rate(histogram, theta)))
        active.append(float(1 - histogram.counts[:, 0].sum() / histogram.counts.sum()))
    return {"rate": statistics.fmean(rates), "active": statistics.fmean(active), "layers_most": max(rates)}


def expected_rate(histogram: Histogram, theta: Tensor) -> Tensor:
    """The mean of min(x, theta)/theta over all values of a layer, each at the middle of its bin."""
    edges = histogram.edges()
    middles = (edges[:, :-1] + edges[:, 1:]) / 2
    fired = (middles / theta[:, None]).clamp(max=1)
    return (histogram.counts[:, 1:] * fired).sum() / histogram.counts.sum()


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:]]
    torch.set_grad_enabled(False)
    main({name: Path(file) for name, _, file in named})
