"""Both sides of the paper's bound on a small trained network; writes bench/results/theory.json.

    python bench/theory.py

A perceptron 48-32-32-32-10 learns the package's images at 4x4 pixels. It is converted for several T, without
calibration and with LCP, and the bound is evaluated with exact Hessians on 64 test images; likewise for a random one of
the same shape, and for many with four neurons per layer, to see how often the bound fails.
"""

import json
import platform
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal.analysis.theory import evaluate_bound
from spikecal.data.sources import load_data

WIDTHS = (48, 32, 32, 32, 10)
STEPS = (4, 16, 64)
IMAGES, EPOCHS, BATCH, SEED = 64, 60, 64, 0
NARROW = 50  # networks
RESULTS = Path(__file__).parent / "results" / "theory.json"


def perceptron(seed: int, widths: tuple[int, ...] = WIDTHS) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for read, made in pairwise(widths):
        layers += [nn.Linear(read, made), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_images(split: str) -> tuple[Tensor, Tensor]:
    data = load_data("demo", split)
    images = torch.stack([data.images[i] for i in range(len(data))]).float() / 255
    labels = torch.zeros(len(images), dtype=torch.int64) if data.labels is None else data.labels
    return (F.adaptive_avg_pool2d(images, 4).flatten(1) - 0.5) / 0.25, labels


def train(model: nn.Sequential, images: Tensor, labels: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimiser.step()


def narrow() -> dict[str, int]:
    """How often the bound fails for random perceptrons with four neurons per layer, over networks and images."""
    totals = {"images": 0, "holds": 0, "repaired_holds": 0}
    for seed in range(NARROW):
        model = perceptron(seed, (4, 4, 4, 4, 2)).eval().requires_grad_(False)
        inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
        snn = spikecal.convert(model, inputs, T=4, pipeline="baseline", seed=SEED).snn
        bound = evaluate_bound(model, snn, inputs).to_dict()
        totals = {name: totals[name] + bound[name] for name in totals}
    print(f"narrow   baseline  T=4   {totals}")
    return totals


def main() -> None:
    images, labels = small_images("train")
    test, _ = small_images("test")
    trained = perceptron(SEED)
    train(trained, images, labels)
    found = {}
    for name, model in (("trained", trained), ("random", perceptron(SEED + 1))):
        model.eval().requires_grad_(False)
        for pipeline in ("baseline", "lcp"):
            result = spikecal.convert(model, images, T=STEPS, pipeline=pipeline, seed=SEED)
            for T in STEPS:
                bound = evaluate_bound(model, result.at(T), test[:IMAGES]).to_dict()
                found[f"{name}, {pipeline}, T={T}"] = bound
                print(
                    f"{name:8} {pipeline:9} T={T:<3} left {bound['left']:9.4f}  right {bound['right']:10.3f} holds "
                    f"{bound['holds']}/{bound['images']}  repaired {bound['repaired']:10.3f} holds "
                    f"{bound['repaired_holds']}/{bound['images']}  uniform {bound['uniform']:9.3f}"
                )
    found["narrow, baseline, T=4"] = narrow()
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.machine()}
    settings = {"widths": WIDTHS, "images": IMAGES, "epochs": EPOCHS, "seed": SEED}
    RESULTS.write_text(json.dumps({"settings": settings, "machine": machine, "bounds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
