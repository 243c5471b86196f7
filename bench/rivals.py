"""Why methods of others do not reach the figures of their papers here: small experiments on the package's ResNet-20.

    python bench/rivals.py DIR [PART …]

DIR has CIFAR-10. Writes bench/results/rivals.json, part by part:

- `resets`: Spike-Norm by a plain loop, layer by layer. How much of each layer's activations gets through, with hard and
  soft resets, with images as Poisson spikes, and with biases that shrink as the layer's input does.
- `training`: the accuracy of Hybrid Train and QCFS before training, and after more and more iterations.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.finetune import FineTune
from spikecal.data.prepare import Prepared, PreparedPairs
from spikecal.data.sources import load_data, subset
from spikecal.pipeline import HYBRID_TRAIN, QCFS, Pipeline
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULTS = Path(__file__).parent / "results" / "rivals.json"
STEPS, LOOKED_AT = 1500, 8
TESTED, CALIBRATION = 100, 32
TRAINED = {  # T and iterations of what is trained; 0 is the network that training starts from
    "Hybrid Train": (HYBRID_TRAIN, 16, (0, 10, 37)),
    "QCFS": (QCFS, 32, (0, 150, 600)),
}
IMAGE = -1


@dataclass(frozen=True)
class Train:
    """What a layer passes on: theta where `levels` `[T, N, ...]` is 1."""

    theta: float
    levels: list[Tensor]

    def __getitem__(self, t: int) -> Tensor:
        return self.levels[t] * self.theta


def layers(model: Any) -> list[list[tuple[nn.Module, int]]]:
    """The linear maps in front of each layer of neurons, and the layer that each reads."""
    found: list[list[tuple[nn.Module, int]]] = [[(model.conv1, IMAGE)]]
    for block in model.blocks:
        before = len(found) - 1
        found += [[(block.conv1, before)], [(block.conv2, before + 1), (block.skip, before)]]
    return found


def linear(part: nn.Module, x: Tensor, bias: float) -> Tensor:
    """A convolution with its bias times `bias`, or nothing."""
    conv = part[0] if isinstance(part, nn.Sequential) else part
    if not isinstance(conv, nn.Conv2d):
        return x
    assert conv.bias is not None
    return F.conv2d(x, conv.weight, conv.bias * bias, conv.stride, conv.padding)


@torch.no_grad()
def spike_norm(
    model: Any, x: Tensor, T: int, soft: bool = False, shrinking: bool = False, poisson: bool = False
) -> dict[str, Any]:
    """Each layer's threshold is its largest input of any step, and then it runs: gain and cosine of its mean output."""
    top = x.abs().amax()

    def image(t: int) -> Tensor:
        """The image at a step: itself, or spikes of one height and both signs that have it as their mean."""
        chance = torch.rand(x.shape, generator=torch.Generator().manual_seed(t))
        return x.sign() * top * (chance < x.abs() / top) if poisson else x

    values, trains, rows = {IMAGE: x}, dict[int, Train](), list[dict[str, float]]()
    gain = 1.0
    for number, parts in enumerate(layers(model)):
        bias = gain if shrinking else 1.0
        values[number] = torch.stack([linear(part, values[source], 1.0) for part, source in parts]).sum(0)

        def current(t: int, parts: Any = parts, bias: float = bias) -> Tensor:
            return sum(linear(part, image(t) if source == IMAGE else trains[source][t], bias) for part, source in parts)

        theta = max(float(current(t).amax()) for t in range(T))
        v, total, levels = torch.zeros_like(values[number]), torch.zeros_like(values[number]), list[Tensor]()
        for t in range(T):
            v += current(t)
            fires = v >= theta
            v -= theta * fires if soft else v * fires
            total += fires
            levels.append(fires)
        trains[number] = Train(theta, levels)
        largest, ann, mean = float(values[number].amax()), values[number].relu_(), total * (theta / T)
        product = float((mean * ann).sum())
        gain = product / float(ann.square().sum())
        cosine = product / max(float(mean.norm() * ann.norm()), 1e-12)
        rows.append({"theta": theta / largest, "rate": float(total.mean()) / T, "gain": gain, "cosine": cosine})
        if number >= 2 and number % 2 == 0:  # the end of a block: nothing reads its inside, or its input, any more
            del trains[number - 1], trains[number - 2]
    scores = F.linear(mean.mean((2, 3)), model.fc.weight, model.fc.bias * (gain if shrinking else 1.0))
    agreed = scores.argmax(1) == model(x).argmax(1)
    return {"layers": rows, "agreement": float(agreed.float().mean())}


def resets(images: Any, model: nn.Module) -> dict[str, Any]:
    x = images("test", LOOKED_AT)[0]
    ways: dict[str, dict[str, bool]] = {
        "hard": {},
        "hard, Poisson images": {"poisson": True},
        "hard, shrinking biases": {"shrinking": True},
        "soft": {"soft": True},
    }
    found = {name: spike_norm(model, x, STEPS, **way) for name, way in ways.items()}
    return {"T": STEPS, "images": LOOKED_AT, "ways": found}


def training(images: Any, model: nn.Module) -> dict[str, Any]:
    tested, found = images("test", TESTED), {}
    for name, (pipeline, T, counts) in TRAINED.items():
        rows = {}
        for count in counts:
            part: Pipeline = pipeline.changed(Calibrator, images=CALIBRATION)
            part = part.changed(FineTune, iterations=count) if count else replace(part, sweeps=part.sweeps[:-1])
            data = images("train", part.images, pairs=True)
            snn = spikecal.convert(model, data, T=T, pipeline=part, joints="analog", records=False).snn
            rows[count] = spikecal.evaluate(snn, tested).accuracy
        found[name] = {"T": T, "accuracy": rows}
    return {"images": TESTED, "methods": found}


PARTS = {"resets": resets, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    arguments = parser.parse_args()
    model, card = load_model("resnet20-nobn", None)
    model.eval()

    def images(split: str, count: int, pairs: bool = False) -> Any:
        """Images in a fixed order: as a dataset of pairs to learn from, or stacked, with their labels."""
        data = subset(load_data("cifar10", split, arguments.data), count, 0)
        if pairs:
            return PreparedPairs(data, card)
        prepared = Prepared(data, card)
        return torch.stack([prepared[i] for i in range(len(data))]), data.labels

    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"network": "resnet20-nobn"}
    for name in arguments.parts or PARTS:
        found[name] = {**PARTS[name](images, model), "machine": machine()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
