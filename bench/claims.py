"""Why some of the paper's claims are not seen in docs/results.md; writes bench/results/claims.json.

    python bench/claims.py [DIR] [MODEL=FILE …]     killed, it goes on after the last finished row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). All is measured on 1,000 images of the training
set that are not calibrated on; no test image is looked at.

`thresholds`: networks for 4 and 16 steps with three kinds of threshold, run in four ways. `even`: every neuron gets
its mean current at every step, so that its output is the closed form that thresholds are searched with. `spikes`: as
it is. `corrected`: the same, and each output gets what it lacks on average on 512 calibration images, one number a
class. `lcp`: with the bias of every layer calibrated. Beside them `ann`, the original.

`bias`: LCP of ResNet-20 for 8 steps with the bias from 32 or 256 images of some classes only; thresholds are always
those of 1,024 images of all classes.
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
from distill import given_thresholds, thresholds
from torch import Tensor, nn

import spikecal
from spikecal.calibration.threshold import Threshold
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.graph.ops import Spike
from spikecal.reproduce.cells import machine
from spikecal.reproduce.tables import THRESHOLDS
from spikecal.snn.execute import current, shapes_of
from spikecal.snn.functional import clip_round
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "claims.json"
STEPS, CALIBRATION, HELD_OUT, BATCH = (4, 16), 1024, 1000, 250
NETWORKS = ("resnet20-nobn", "resnet20")
CORRECTED = 512  # images
CLASSES, COUNTS, SEEDS, CLASSES_T = (1, 3, 10), (32, 256), 5, 8
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
            settings = {"images": CALIBRATION, "held_out": HELD_OUT, "machine": machine()}
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
    thetas = thresholds(model, prepare(data.images[seen], card, ""), CLASSES_T)
    for count, classes in product(COUNTS, CLASSES):
        chosen = [others[_of_classes(data.labels[others], classes, seed)][:count] for seed in range(SEEDS)]
        samples = [prepare(data.images[some], card, "") for some in chosen]
        of = partial(few_classes, model, thetas, samples, tested, data.labels[held])
        rows.measure("bias", f"{count} images of {classes}", of)


def _of_classes(labels: Tensor, classes: int, seed: int) -> Tensor:
    """Which images are of `classes` classes, chosen by a seed, in an order of that seed."""
    order = shuffled(len(labels), seed)
    return order[torch.isin(labels[order], shuffled(int(labels.max()) + 1, seed)[:classes])]


def threshold(
    model: nn.Module, T: int, kind: Threshold, images: Tensor, tested: Tensor, labels: Tensor
) -> dict[str, float]:
    """Shares of right answers."""
    snn, calibrated = (
        spikecal.convert(model, images, T=T, pipeline=replace(pipeline, threshold=kind), records=False).snn
        for pipeline in (spikecal.BASELINE, spikecal.LCP)
    )
    some = images[:CORRECTED]
    lacking = (outputs(model, some) - outputs(snn, some)).mean(0)
    spikes = outputs(snn, tested)
    return {
        "ann": share(outputs(model, tested), labels),
        "even": share(outputs(lambda x: even(snn, x), tested), labels),
        "spikes": share(spikes, labels),
        "corrected": share(spikes + lacking, labels),
        "lcp": share(outputs(calibrated, tested), labels),
    }


def few_classes(
    model: nn.Module, thetas: list[Tensor], samples: list[Tensor], tested: Tensor, labels: Tensor
) -> dict[str, float]:
    """Mean and deviation of the share of right answers, over samples that the bias is calibrated on."""
    light, right = spikecal.LCP.changed(spikecal.Bias, images=max(COUNTS)), []
    for some in samples:
        with given_thresholds(thetas):
            snn = spikecal.convert(model, some, T=CLASSES_T, pipeline=light, records=False).snn
        right.append(share(outputs(snn, tested), labels))
    return {"accuracy": statistics.fmean(right), "deviation": statistics.stdev(right)}


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
        op, arriving = stage.end.op, current(stage, values, 1, shapes)
        height = op.height(arriving.ndim - 1) if isinstance(op, Spike) else None
        values[stage.name] = op(arriving) if height is None else clip_round(arriving, height, snn.T)
    return values[snn.stages[-1].name][0]


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
