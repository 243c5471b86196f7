"""Which optimiser weights calibration should have: SGD as in the paper, or Adam as in its code.

    python bench/weights.py        the embedded ResNet-20, into bench/results/weights.json

Compared by the mean relative error of the stages and by agreement with the ANN on training images that calibration
did not see. Accuracy on the embedded test images is shown beside them, and nothing is chosen by it.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import spikecal
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import load_data, subset
from spikecal.zoo.models import load_model

RESULTS = Path(__file__).parent / "results" / "weights.json"
STEPS = (4, 8)
CHOICES: dict[str, dict[str, Any] | None] = {
    "potential only": None,
    "SGD, lr 1e-5 (paper)": {"optimiser": "sgd", "lr": 1e-5},
    "SGD, lr 1e-4": {"optimiser": "sgd", "lr": 1e-4},
    "Adam, lr 1e-5": {"optimiser": "adam", "lr": 1e-5},
    "Adam, lr 1e-4": {"optimiser": "adam", "lr": 1e-4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--images", type=int, default=512, help="for calibration; the rest of the 1,024 is held out")
    arguments = parser.parse_args()
    model, card = load_model("resnet20")
    data = Prepared(load_data("demo", "train"), card)
    known = torch.stack([data[i] for i in range(len(data))])
    seen, held_out = known[: arguments.images], known[arguments.images :]
    test = Loader(subset(load_data("demo", "test"), 500, 0), card, 250)
    with torch.no_grad():
        answers = model(held_out).argmax(1)
    rows = []
    for name, settings in CHOICES.items():
        pipeline = spikecal.PC if settings is None else spikecal.ACP.changed(
            spikecal.Weights, iterations=arguments.iterations, images=arguments.images, **settings
        )  # fmt: skip
        started = time.perf_counter()
        result = spikecal.convert(model, seen, T=list(STEPS), pipeline=pipeline)
        seconds = time.perf_counter() - started
        for T in STEPS:
            errors = [record.errors[-1][1] for record in result.records if record.T == T]
            row = {
                "weights": name,
                "T": T,
                "mean_error": sum(errors) / len(errors),
                "agreement": spikecal.evaluate(result.at(T), (held_out, answers)).accuracy[-1],
                "test_accuracy": spikecal.evaluate(result.at(T), test).accuracy[-1],
                "kept_old": sum(bool(record.notes) for record in result.records if record.T == T),
                "seconds_for_all_T": seconds,
            }
            rows.append(row)
            print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    RESULTS.parent.mkdir(exist_ok=True)
    facts = {"iterations": arguments.iterations, "images": arguments.images, "torch": torch.__version__, "rows": rows}
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
