"""Why some of the paper's claims are not seen in docs/results.md; writes bench/results/claims.json.

    python bench/claims.py [DIR] [MODEL=FILE …]     killed, it goes on after the last finished row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). All is measured on 1,000 images of the training
set that are not calibrated on; no test image is looked at.

`thresholds`: networks for 4 and 16 steps with three kinds of threshold, run in three ways. `even`: every neuron gets
its mean current at every step, so that its output is the closed form that thresholds are searched with. `spikes`: as
it is. `lcp`: with the bias calibrated. Of the spikes also two parts of the error (docs/analysis.md), means over the
layers, in % of the activation there: `quantised`, the root of the squares of clipping and flooring, and `surplus`, the
mean of what neurons emit beyond the closed form because spikes come unevenly.

`classes`: LCP of ResNet-20 for 8 steps, thresholds and bias from 32 or 256 images of some classes only.
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spikecal
from spikecal.analysis.errors import LayerErrors, measure_errors
from spikecal.calibration.threshold import Threshold
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.graph.ops import Spike
from spikecal.reproduce.tables import THRESHOLDS
from spikecal.snn.execute import current, shapes_of
from spikecal.snn.functional import clip_round
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "claims.json"
STEPS, CALIBRATION, HELD_OUT, BATCH = (4, 16), 1024, 1000, 250
NETWORKS = ("resnet20-nobn", "resnet20")
CLASSES, COUNTS, SEEDS, CLASSES_T = (1, 3, 10), (32, 256), 3, 8
KINDS = ("Percentile 99.99 %", "MMSE", "MMSE*")


class Rows:
    """What was measured, by part and row; written after each one."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}

    def measure(self, part: str, row: str, measured: Callable[[], dict[str, float]]) -> None:
        rows = self.found.setdefault(part, {})
        if row not in rows:
            rows[row] = measured()
            print(part, row, rows[row], flush=True)
            settings = {"images": CALIBRATION, "held_out": HELD_OUT, "torch": torch.__version__}
            write_whole(RESULT, json.dumps({**self.found, **settings}, indent=1) + "\n")


def main(root: Path | None, files: dict[str, Path]) -> None:
    data, rows = load_data("cifar10", "train", root), Rows()
    assert isinstance(data.images, Tensor) and data.labels is not None
    order = shuffled(len(data), 1)
    held, seen = order[:HELD_OUT], order[HELD_OUT : HELD_OUT + CALIBRATION]
    for name in (*NETWORKS, *files):
        model, card = load_model(name, files.get(name))
        images, tested = (prepare(data.images[some], card, name) for some in (seen, held))
        for T, kind in product(STEPS, KINDS):
            of = partial(threshold, model, T, THRESHOLDS[kind], images, tested, data.labels[held])
            rows.measure("thresholds", f"{name}, T={T}, {kind}", of)
    model, card = load_model("resnet20")
    others, tested = order[HELD_OUT:], prepare(data.images[held], card, "")
    for count, classes in product(COUNTS, CLASSES):
        chosen = [others[_of_classes(data.labels[others], classes, seed)][:count] for seed in range(SEEDS)]
        samples = [prepare(data.images[some], card, "") for some in chosen]
        of = partial(few_classes, model, samples, tested, data.labels[held])
        rows.measure("classes", f"{count} images of {classes}", of)


def _of_classes(labels: Tensor, classes: int, seed: int) -> Tensor:
    """Which images are of `classes` classes, chosen by a seed, in an order of that seed."""
    order = shuffled(len(labels), seed)
    return order[torch.isin(labels[order], shuffled(int(labels.max()) + 1, seed)[:classes])]


def threshold(
    model: nn.Module, T: int, kind: Threshold, images: Tensor, tested: Tensor, labels: Tensor
) -> dict[str, float]:
    """Shares of right answers, and parts of the error."""
    snn, calibrated = (
        spikecal.convert(model, images, T=T, pipeline=replace(pipeline, threshold=kind), records=False).snn
        for pipeline in (spikecal.BASELINE, spikecal.LCP)
    )
    layers = measure_errors(model, snn, images).neurons()[1:]  # the first gets the image, the same at every step
    return {
        "even": share(lambda x: even(snn, x), tested, labels),
        "spikes": share(snn, tested, labels),
        "lcp": share(calibrated, tested, labels),
        "quantised": 100 * statistics.fmean(quantised(layer) for layer in layers),
        "surplus": 100 * statistics.fmean(surplus(layer) for layer in layers),
    }


def few_classes(model: nn.Module, samples: list[Tensor], tested: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean and deviation of the share of right answers, over samples."""
    light = spikecal.LCP.changed(spikecal.Bias, images=max(COUNTS))
    right = [share(spikecal.convert(model, some, T=CLASSES_T, pipeline=light).snn, tested, labels) for some in samples]
    return {"accuracy": statistics.fmean(right), "deviation": statistics.stdev(right)}


@torch.no_grad()
def share(network: Any, images: Tensor, labels: Tensor) -> float:
    answers = torch.cat([network(some).argmax(1) for some in images.split(BATCH)])
    return float((answers == labels).double().mean())


def even(snn: SpikingNetwork, images: Tensor) -> Tensor:
    """The network with every spiking layer replaced by the closed form of its mean output."""
    shapes = shapes_of(snn.graph, (images,))
    values = {snn.graph.inputs()[0]: images.unsqueeze(0)}
    for stage in snn.stages:
        op, arriving = stage.end.op, current(stage, values, 1, shapes)
        height = op.height(arriving.ndim - 1) if isinstance(op, Spike) else None
        values[stage.name] = op(arriving) if height is None else clip_round(arriving, height, snn.T)
    return values[snn.stages[-1].name][0]


def quantised(layer: LayerErrors) -> float:
    return (layer.share("clipping") + layer.share("flooring")) ** 0.5


def surplus(layer: LayerErrors) -> float:
    """Of the mean output of the layer."""
    assert layer.rate is not None and layer.threshold is not None
    return -float(layer.parts["unevenness"].mean.sum() / (layer.rate * layer.threshold).sum())


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
