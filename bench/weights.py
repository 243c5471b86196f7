"""The gain of weights calibration, by loss, optimiser and rate; writes bench/results/weights.json.

    python bench/weights.py [DIR] [MODEL=FILE …]     rerun to resume after the last finished row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). Networks are calibrated on 1,024 training images
and compared with the ANN on 2,000 others: `agreement` is the share of equal answers, `relative_error` the squared error
of the outputs over the ANN's squares. Settings are chosen by these. `test` is the share of correct answers on the first
2,000 test images, of the rows at the end only, which confirm what was chosen.
"""

import json
import sys
import time
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spikecal
from spikecal import ACP, LCP, PC, Pipeline, Weights
from spikecal.calibration.calibrators import Update
from spikecal.calibration.view import StageView
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "weights.json"
CALIBRATION, HELD_OUT, TESTED, BATCH = 1024, 2000, 2000, 250
FEW, PAPERS = 500, Weights.iterations


@dataclass(frozen=True, kw_only=True)
class Averaged(Weights):
    """The loss averaged over positions: for SGD, that is the sum at a rate smaller by their number."""

    def solve(self, view: StageView) -> Update:
        positions = prod(view.shapes[0][view.stage.name][1:]) // view.shapes[0][view.stage.name][view.channel]
        return Weights.solve(replace(self, lr=self.lr / positions), view)


def few(**settings: Any) -> Pipeline:
    return ACP.changed(Weights, iterations=FEW, **settings)


REFERENCES = {"LCP": LCP, "PC": PC}
TRIED = {
    **REFERENCES,
    "SGD 1e-05, averaged": replace(PC, sweeps=((PC.sweeps[0][0], Averaged(iterations=FEW)),)),
    "SGD 1e-05": few(),
    "SGD 0.0001": few(lr=1e-4),
    "Adam 0.0001": few(optimiser="adam", lr=1e-4),
    "Adam 0.001": few(optimiser="adam", lr=1e-3),
}
CONFIRMED = {**REFERENCES, f"ACP, {PAPERS:,} iterations": ACP}


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with images for calibration, comparison and tests."""

    model: nn.Module
    seen: Tensor
    others: Tensor
    test: Tensor
    labels: Tensor


def main(root: Path | None, files: dict[str, Path]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    plan = [("tried", "resnet20", T, TRIED, False) for T in (4, 8)]
    plan += [("confirmed", "resnet20", T, CONFIRMED, True) for T in (4, 16)]
    plan += [("confirmed", name, 8, CONFIRMED, True) for name in files]
    for part, name, T, pipelines, tested in plan:
        rows = found.setdefault(part, {})
        missing = {
            f"{name}, T={T}, {label}": p for label, p in pipelines.items() if f"{name}, T={T}, {label}" not in rows
        }
        one = subject(name, files.get(name), root) if missing else None
        for row, pipeline in missing.items():
            assert one is not None
            rows[row] = measured(one, pipeline, T, tested)
            print(row, rows[row], flush=True)
            facts = {"calibration": CALIBRATION, "held_out": HELD_OUT, "tested": TESTED, "machine": machine()}
            write_whole(RESULT, json.dumps({**found, **facts}, indent=1) + "\n")


def subject(name: str, file: Path | None, root: Path | None) -> Subject:
    model, card = load_model(name, file)
    train, test = (load_data("cifar10", split, root) for split in ("train", "test"))
    order = shuffled(len(train), 1)
    assert isinstance(train.images, Tensor) and isinstance(test.images, Tensor) and test.labels is not None
    seen, others = train.images[order[-CALIBRATION:]], train.images[order[:HELD_OUT]]
    inputs = [prepare(images, card, name) for images in (seen, others, test.images[:TESTED])]
    return Subject(model, inputs[0], inputs[1], inputs[2], test.labels[:TESTED])


def measured(one: Subject, pipeline: Pipeline, T: int, tested: bool) -> dict[str, float]:
    started = time.perf_counter()
    result = spikecal.convert(one.model, one.seen, T=T, pipeline=pipeline)
    seconds = time.perf_counter() - started
    wanted, given = outputs(one.model, one.others), outputs(result.snn, one.others)
    notes = [note for record in result.records for note in record.notes]
    facts = {
        "relative_error": float((wanted - given).square().sum() / wanted.square().sum()),
        "agreement": float((wanted.argmax(1) == given.argmax(1)).double().mean()),
        "stages": len(result.records),
        "stages_left_alone": sum("left unchanged" in note for note in notes),
        "stages_slowed": sum("would diverge" in note for note in notes),
        "seconds": seconds,
    }
    if tested:
        right = [(outputs(network, one.test).argmax(1) == one.labels).double() for network in (one.model, result.snn)]
        facts |= {"ann_test": float(right[0].mean()), "test": float(right[1].mean())}
    return facts


@torch.no_grad()
def outputs(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(some) for some in images.split(BATCH)])


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
