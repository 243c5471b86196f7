"""Quality of distilled images against iterations and seconds, for choosing the default number of iterations.

    python bench/distill.py [DIR]     into bench/results/distill.json; rerun to resume after the last finished row
    python bench/distill.py --whole   the time of 1,024 images on all cores, into the same file
    python bench/distill.py --parts [DIR]      thresholds and biases from real or from distilled images, likewise

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). The embedded ResNet-20 and the one without BN are
calibrated with LCP for 4 steps on 256 images of each kind, and measured on 1,000 other images of the training set. No
test image is used.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spikecal
from spikecal.calibration.threshold import MMSE
from spikecal.data.card import Card
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.distillation.inversion import noise
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "distill.json"
CALIBRATION, HELD_OUT, SEEDS, STEPS = 256, 1000, 2, 4
IMAGES = 1024  # of what is compared part by part
KINDS = {
    "resnet20-nobn": ("real", "white", "pink", "40"),  # numbers: iterations of distilling
    "resnet20": ("real", "white", "pink", "10", "20", "40", "80"),
}


def main(root: Path | None) -> None:
    data = load_data("cifar10", "train", root)
    assert isinstance(data.images, Tensor) and data.labels is not None
    order = shuffled(len(data), 1)
    held, real = order[:HELD_OUT], data.images[order[HELD_OUT : HELD_OUT + CALIBRATION]]
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows: dict[str, Any] = found.get("rows", {})
    for name, kinds in KINDS.items():
        model, card = load_model(name)
        tested = prepare(data.images[held], card, name)
        for kind in (kind for kind in kinds if f"{name}, {kind}" not in rows):
            started, used = time.perf_counter(), time.process_time()
            images, facts = made(kind, model, card, real)
            facts |= {"seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used}
            rows[f"{name}, {kind}"] = row = {**accuracy(model, images, tested, data.labels[held]), **facts}
            print(f"{name}, {kind}", row, flush=True)
            settings = {"images": CALIBRATION, "held_out": HELD_OUT, "T": STEPS, "pipeline": "lcp"}
            settings |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
            write_whole(RESULT, json.dumps({**found, **settings, "rows": rows}, indent=1) + "\n")


def whole() -> None:
    """The time to make all images of a conversion, with torch's default number of threads."""
    model, card = load_model("resnet20")
    started, used = time.perf_counter(), time.process_time()
    images = spikecal.distill(model, card=card).images
    facts = {"images": len(images), "seconds": time.perf_counter() - started, **machine()}
    facts |= {"processor_seconds": time.process_time() - used}
    print(facts, flush=True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    write_whole(RESULT, json.dumps({**found, "whole": facts}, indent=1) + "\n")


def parts(root: Path | None) -> None:
    """LCP on ResNet-20 with thresholds of one kind of images and biases of another; 1,024 images of each."""
    data = load_data("cifar10", "train", root)
    assert isinstance(data.images, Tensor) and data.labels is not None
    model, card = load_model("resnet20")
    order = shuffled(len(data), 1)
    held, real = order[:HELD_OUT], order[HELD_OUT : HELD_OUT + IMAGES]
    tested = prepare(data.images[held], card, "")
    images = {"real": prepare(data.images[real], card, ""), "distilled": spikecal.distill(model, card=card).inputs()}
    thetas = {kind: thresholds(model, some) for kind, some in images.items()}
    ratios = [float(d.mean() / r.mean()) for d, r in zip(thetas["distilled"], thetas["real"], strict=True)]
    thetas["real, scaled"] = [ratio * r for ratio, r in zip(ratios, thetas["real"], strict=True)]
    rows = []
    for kind in thetas:
        for some in ("real", "distilled"):
            with given_thresholds(thetas[kind]):
                found = accuracy(model, images[some], tested, data.labels[held])
            rows.append({"thresholds": kind, "bias": some, **found})
            print(rows[-1], flush=True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    facts = {"images": IMAGES, "distilled_to_real": ratios, "rows": rows}
    write_whole(RESULT, json.dumps({**found, "parts": facts}, indent=1) + "\n")


def thresholds(model: nn.Module, images: Tensor, T: int = STEPS) -> list[Tensor]:
    """Those of BASELINE, stage by stage."""
    snn = spikecal.convert(model, images, T=T, pipeline=spikecal.BASELINE, records=False).snn
    ends: list[Any] = [stage.end.op for stage in snn.stages if stage.spiking]
    return [end.theta.detach() for end in ends]


@contextmanager
def given_thresholds(thetas: list[Tensor]) -> Iterator[None]:
    """Make conversions use these thresholds instead of searching."""
    search, left = MMSE.choose, cycle(thetas)
    MMSE.choose = lambda *_: next(left)  # type: ignore[method-assign]
    try:
        yield
    finally:
        MMSE.choose = search  # type: ignore[method-assign]


def made(kind: str, model: nn.Module, card: Card, real: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Normalised images of a kind, and facts about them."""
    if kind == "real":
        return prepare(real, card, kind), {}
    if kind in ("white", "pink"):  # noise with the card's mean and deviation, as bytes
        images = noise((CALIBRATION, 3, 32, 32), kind, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (card.mean, card.std))
        return prepare((255 * (images * std + mean)).round().clamp(0, 255).to(torch.uint8), card, kind), {}
    distilled = spikecal.distill(model, CALIBRATION, card=card, iterations=int(kind))
    reached = [one.statistics for one in distilled.losses if one.statistics is not None]
    return distilled.inputs(), {"statistics": statistics.fmean(reached) if reached else None}


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, tested: Tensor, labels: Tensor) -> dict[str, Any]:
    right = []
    for seed in range(SEEDS):
        snn = spikecal.convert(model, images, T=STEPS, pipeline=spikecal.LCP, seed=seed).snn
        right.append(float((snn(tested).argmax(1) == labels).double().mean()))
    return {"accuracy": statistics.fmean(right), "values": right}


if __name__ == "__main__":
    if sys.argv[1:] == ["--whole"]:
        whole()
        sys.exit()
    if sys.argv[1:2] == ["--parts"]:
        parts(Path(sys.argv[2]) if len(sys.argv) > 2 else None)
        sys.exit()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
