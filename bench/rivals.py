"""Why Spike-Norm falls short here of what its paper reports: a small experiment on the package's ResNet-20.

    python bench/rivals.py DIR

DIR has CIFAR-10. Writes bench/results/rivals.json, row by row; rerun to resume, and delete it to measure anew.

Spike-Norm with hard and soft resets, with all layers balanced or only those before the first branch, on a network with
biases and on one without, which is the first one trained on for a moment after its biases were cut off.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import spikecal
from spikecal.calibration.augment import moved
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.neurons import IntegrateAndFire, ResetToZero
from spikecal.pipeline import SPIKE_NORM
from spikecal.reproduce.cells import machine
from spikecal.rivals.balancing import SpikeNorm
from spikecal.zoo.models import load_model

RESULTS = Path(__file__).parent / "results" / "rivals.json"
MARKS, BALANCED, LOOKED_AT = (32, 64, 128, 256), 8, 32  # steps, and images for thresholds and for answers
CUT, BATCH, RATE, IMAGES = 300, 64, 2e-3, 8192  # iterations of training without biases, and how

Rows = Iterator[tuple[str, Callable[[], dict[str, Any]]]]
Images = Callable[..., Any]


def without_biases(images: Images) -> nn.Module:
    """The network with its biases cut off, trained until it has found its answers again."""
    model, (x, labels) = load_model("resnet20-nobn", None)[0], images("train", IMAGES)
    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.bias = None
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=CUT)
    generator = torch.Generator().manual_seed(0)
    for number in range(CUT):
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(model(moved(x[chosen], 0.125, True, number)), labels[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def resets(images: Images) -> Rows:
    networks = {"with biases": lambda: load_model("resnet20-nobn", None)[0].eval(), "without": None}
    made: dict[str, nn.Module] = {}

    def row(name: str, residual: Any, reset: Any) -> dict[str, Any]:
        if name not in made:
            made[name] = (networks[name] or (lambda: without_biases(images)))()
        model, (x, labels) = made[name], images("test", LOOKED_AT)
        pipeline = replace(SPIKE_NORM.changed(SpikeNorm, residual=residual), neuron=reset)
        snn = spikecal.convert(
            model, images("train", BALANCED)[0], T=MARKS[-1], pipeline=pipeline, joints="analog", records=False
        ).snn
        found = spikecal.evaluate(snn, (x, labels), ann=model)
        thetas = [float(stage.end.op.height(1).max()) for stage in snn.stages if stage.spiking]
        with torch.no_grad():
            ann = float((model(x).argmax(1) == torch.as_tensor(labels)).float().mean())
        return {"grows": thetas[-1] / thetas[0], "agreement": {T: found.agreement[T - 1] for T in MARKS}, "ann": ann}

    for name in networks:
        for residual in ("balanced", "height"):
            for reset in (ResetToZero(), IntegrateAndFire()):
                kind = "hard" if reset == ResetToZero() else "soft"
                yield f"{name}, {residual}, {kind}", lambda: row(name, residual, reset)  # noqa: B023  # called at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    arguments = parser.parse_args()
    card = load_model("resnet20-nobn", None)[1]

    def images(split: str, count: int) -> Any:
        """Images in a fixed order, stacked, with their labels."""
        data = subset(load_data("cifar10", split, arguments.data), count, 0)
        prepared = Prepared(data, card)
        return torch.stack([prepared[i] for i in range(len(data))]), data.labels

    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"network": "resnet20-nobn", "machine": machine()}
    rows = found.setdefault("resets", {})
    for key, made in resets(images):
        if key not in rows:
            rows[key] = made()
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
