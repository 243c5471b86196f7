"""Why some of the paper's claims are not seen in docs/results.md; writes bench/results/claims.json.

    python bench/claims.py [DIR] [MODEL=FILE …]     rerun to resume after the last finished row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). Everything is measured on images of the training
set that calibration does not see: 1,000 of them, 5,000 for `weights`. No test image is used.

`thresholds`: networks for 4 and 16 steps with three kinds of threshold, run in four ways. `even`: every neuron gets
its mean current at every step, so that its output is the closed form with which thresholds are searched. `spikes`: the
network itself. `corrected`: the same, with the mean error on 512 calibration images added to each output, one number
per class. `lcp`: with the bias of every layer calibrated. `ann` is the original.

`bias`: LCP of ResNet-20 for 8 steps with the bias from 32 or 256 images of some classes only; thresholds are always
those of 1,024 images of all classes.

`weights`: networks without BN for 4 steps, calibrated in some ways on 256 images and more, with thresholds of 1,024.
Correct answers on calibration images (`seen_right`) and on others (`right`), and on both the squared
error of the outputs, relative to the variance of the ANN's (`seen_error`, `error`).
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from distill import given_thresholds, thresholds
from torch import Tensor, nn

import spikecal
from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.threshold import Threshold
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.graph.ops import Spike
from spikecal.neurons import clip_round
from spikecal.pipeline import FEW_ITERATIONS
from spikecal.reproduce.cells import machine
from spikecal.reproduce.sizes import Sizes
from spikecal.reproduce.tables import THRESHOLDS
from spikecal.snn.execute import current, shapes_of
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "claims.json"
STEPS, CALIBRATION, HELD_OUT, BATCH = (4, 16), 1024, 1000, 250
TESTED = slice(HELD_OUT)
NETWORKS = ("resnet20-nobn", "resnet20")
CORRECTED = 512  # images
CLASSES, COUNTS, SEEDS, CLASSES_T = (1, 3, 10), (32, 256), 5, 8
KINDS = ("Percentile 99.99 %", "MMSE", "MMSE*")
FEW, MANY, MOST, OTHERS, WEIGHTS_T = Sizes.weights, CALIBRATION, 4096, slice(-5000, None), 4
LEARNED = spikecal.Weights(iterations=Sizes.iterations, batch=Sizes.batch, images=MOST, **FEW_ITERATIONS)
SLOWLY = replace(LEARNED, lr=LEARNED.lr / 10)
CALIBRATED: dict[str, tuple[int, tuple[Calibrator, ...]]] = {
    "nothing": (FEW, ()),
    "bias (LCP)": (FEW, (spikecal.Bias(images=FEW),)),
    "potentials (PC)": (FEW, (spikecal.Potential(images=FEW),)),
    "potentials and weights (ACP)": (FEW, (spikecal.Potential(images=FEW), LEARNED)),
    "ACP, a tenth of the rate": (FEW, (spikecal.Potential(images=FEW), SLOWLY)),
    "ACP, 1,024 images": (MANY, (spikecal.Potential(images=FEW), LEARNED)),
    "ACP, 4,096 images": (MOST, (spikecal.Potential(images=FEW), LEARNED)),
    "bias and weights": (FEW, (spikecal.Bias(images=FEW), LEARNED)),
    "bias and weights, 1,024 images": (MANY, (spikecal.Bias(images=FEW), LEARNED)),
}


class Rows:
    """The measurements by part and row, written after each one."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}

    def measure(self, part: str, row: str, measured: Callable[[], dict[str, float]]) -> None:
        rows = self.found.setdefault(part, {})
        if row not in rows:
            rows[row] = measured()
            print(part, row, rows[row], flush=True)
            settings = {"images": CALIBRATION, "held_out": HELD_OUT, "machine": machine()}
            write_whole(RESULT, json.dumps({**self.found, **settings}, indent=1) + "\n")


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, its normalised calibration images and other images, with the labels of both."""

    model: nn.Module
    seen: Tensor
    seen_labels: Tensor
    tested: Tensor
    labels: Tensor


def main(root: Path | None, files: dict[str, Path]) -> None:
    data, rows = load_data("cifar10", "train", root), Rows()
    images, labels, order = data.images, data.labels, shuffled(len(data), 1)
    assert isinstance(images, Tensor) and labels is not None

    def subject(name: str, count: int | None, others: slice = TESTED) -> Subject:
        model, card = load_model(name, files.get(name))
        seen, tested = order[HELD_OUT:][:count], order[others]
        inputs = [prepare(images[some], card, name) for some in (seen, tested)]
        return Subject(model, inputs[0], labels[seen], inputs[1], labels[tested])

    for name in (*NETWORKS, *files):
        one = subject(name, CALIBRATION)
        for T, kind in product(STEPS, KINDS):
            rows.measure("thresholds", f"{name}, T={T}, {kind}", partial(threshold, one, T, THRESHOLDS[kind]))
    for name in (name for name in (*NETWORKS, *files) if name.endswith("-nobn")):
        one = subject(name, MOST, OTHERS)
        rows.measure("weights", f"{name}: ANN", partial(compared, one, one.model, FEW))
        for way, (count, calibrators) in CALIBRATED.items():
            rows.measure("weights", f"{name}: {way}", partial(learned, one, count, calibrators))
    one = subject("resnet20", None)
    for count, classes in product(COUNTS, CLASSES):
        rows.measure("bias", f"{count} images of {classes}", partial(few_classes, one, count, classes))


def threshold(one: Subject, T: int, kind: Threshold) -> dict[str, float]:
    """Shares of correct answers."""
    snn, calibrated = (
        spikecal.convert(one.model, one.seen, T=T, pipeline=replace(pipeline, threshold=kind), records=False).snn
        for pipeline in (spikecal.BASELINE, spikecal.LCP)
    )
    some = one.seen[:CORRECTED]
    lacking = (outputs(one.model, some) - outputs(snn, some)).mean(0)
    spikes = outputs(snn, one.tested)
    return {
        "ann": share(outputs(one.model, one.tested), one.labels),
        "even": share(outputs(lambda x: even(snn, x), one.tested), one.labels),
        "spikes": share(spikes, one.labels),
        "corrected": share(spikes + lacking, one.labels),
        "lcp": share(outputs(calibrated, one.tested), one.labels),
    }


def learned(one: Subject, count: int, calibrators: tuple[Calibrator, ...]) -> dict[str, float]:
    """The effect of calibrating a network on some images."""
    pipeline = spikecal.Pipeline(sweeps=(calibrators,))
    with given_thresholds(thetas(one, WEIGHTS_T)):
        snn = spikecal.convert(one.model, one.seen[:count], T=WEIGHTS_T, pipeline=pipeline, records=False).snn
    return compared(one, snn, count)


def compared(one: Subject, network: nn.Module, count: int) -> dict[str, float]:
    """Shares of correct answers, and errors, on the first calibration images and on others."""
    found = {}
    parts = {"seen_": (one.seen[:count], one.seen_labels[:count]), "": (one.tested, one.labels)}
    for prefix, (images, labels) in parts.items():
        given, wanted = outputs(network, images), outputs(one.model, images)
        found[f"{prefix}right"] = share(given, labels)
        found[f"{prefix}error"] = float((given - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean())
    return found


def few_classes(one: Subject, count: int, classes: int) -> dict[str, float]:
    """Mean and deviation of the share of correct answers, over samples of some classes for calibrating the bias."""
    light, right = spikecal.LCP.changed(spikecal.Bias, images=count), []
    for seed in range(SEEDS):
        chosen = _of_classes(one.seen_labels, classes, seed)[:count]
        with given_thresholds(thetas(one, CLASSES_T)):
            snn = spikecal.convert(one.model, one.seen[chosen], T=CLASSES_T, pipeline=light, records=False).snn
        right.append(share(outputs(snn, one.tested), one.labels))
    return {"accuracy": statistics.fmean(right), "deviation": statistics.stdev(right)}


@cache
def thetas(one: Subject, T: int) -> list[Tensor]:
    """Thresholds from 1,024 images, shared by all rows of a network."""
    return thresholds(one.model, one.seen[:CALIBRATION], T)


def _of_classes(labels: Tensor, classes: int, seed: int) -> Tensor:
    """The images of `classes` classes drawn by a seed, in random order."""
    order = shuffled(len(labels), seed)
    return order[torch.isin(labels[order], shuffled(int(labels.max()) + 1, seed)[:classes])]


@torch.no_grad()
def outputs(network: Any, images: Tensor) -> Tensor:
    return torch.cat([network(some) for some in images.split(BATCH)])


def share(answers: Tensor, labels: Tensor) -> float:
    return float((answers.argmax(1) == labels).double().mean())


def even(snn: SpikingNetwork, images: Tensor) -> Tensor:
    """The network with every spiking layer replaced by the closed form of its mean output."""
    shapes = shapes_of(snn.graph, (images,))
    values = {snn.graph.inputs()[0]: images.unsqueeze(0)}
    for stage in snn.stages:
        op, arriving = stage.end.op, current(stage, values, 1, shapes, None)
        height = op.height(arriving.ndim - 1) if isinstance(op, Spike) else None
        values[stage.name] = op(arriving) if height is None else clip_round(arriving, height, snn.T)
    return values[snn.stages[-1].name][0]


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
