"""Which optimiser weights calibration should have: SGD as the paper writes, or Adam as the authors' code has it.

    python bench/weights.py        into bench/results/weights.json; killed, it goes on after the last finished row

On the embedded ResNet-20: calibrated on 768 of the embedded training images, compared with the ANN on the other 256.
No test image is looked at.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch

import spikecal
from spikecal import Weights
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "weights.json"
CALIBRATION, ITERATIONS, STEPS = 768, 300, (4,)
RATES = {"sgd": (1e-5, 1e-4, 1e-3, 1e-2), "adam": (1e-5, 1e-4, 1e-3, 1e-2)}


def main() -> None:
    model, card = load_model("resnet20")
    prepared = Prepared(load_data("demo", "train"), card)
    images = torch.stack([prepared[i] for i in range(len(prepared))])
    rows: dict[str, Any] = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else {}
    variants = {"potential only": spikecal.PC}
    for optimiser, rates in RATES.items():
        for lr in rates:
            pipeline = spikecal.ACP.changed(Weights, optimiser=optimiser, lr=lr, iterations=ITERATIONS)
            variants[f"{optimiser} {lr:g}"] = pipeline
    for name, pipeline in variants.items():
        for T in STEPS:
            if f"{name}, T={T}" not in rows:
                rows[f"{name}, T={T}"] = row = measure(model, images, pipeline, T)
                print(f"{name}, T={T}", row)
                facts = {"calibration": CALIBRATION, "held_out": len(images) - CALIBRATION, "iterations": ITERATIONS}
                write_whole(RESULT, json.dumps({**facts, "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


@torch.no_grad()
def measure(model: torch.nn.Module, images: torch.Tensor, pipeline: spikecal.Pipeline, T: int) -> dict[str, float]:
    started = time.perf_counter()
    result = spikecal.convert(model, images[:CALIBRATION], T=T, pipeline=pipeline)
    seconds = time.perf_counter() - started
    wanted, found = model(images[CALIBRATION:]), result.snn(images[CALIBRATION:])
    kept = sum("old ones kept" in note for record in result.records for note in record.notes)
    return {
        "relative_error": float((wanted - found).square().sum() / wanted.square().sum()),
        "agreement": float((wanted.argmax(1) == found.argmax(1)).double().mean()),
        "stages_left_alone": kept,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
