"""What goes beyond the paper's calibration, part by part; writes bench/results/past_the_paper.json.

    python bench/past_the_paper.py [T …]     default 4 8 16; rerun to resume after the last finished row

The ResNet-20 and the images in the package: calibrated on 768 of the training images and compared with the ANN on the
256 others. `divergence` is the mean KL(ANN || SNN) on these, and `agreement` the share of equal answers: settings are
chosen by them. `test` is the share of correct answers on the 1,000 test images, which choose nothing.
"""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import spikecal
from spikecal import LCP, PC, Bias, ClosedFormWeights, Pipeline, Potential, ReadOut, RefineThreshold, TemporalBias
from spikecal.calibration.calibrators import Update, mean_values
from spikecal.calibration.divergence import divergences, standard_error
from spikecal.calibration.regression import blocks_of
from spikecal.calibration.view import StageView
from spikecal.data.images import shuffled
from spikecal.data.prepare import prepare
from spikecal.data.sets.demo import load_demo
from spikecal.files import write_whole
from spikecal.graph.stages import Stage
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model
from weights import Subject

RESULT = Path(__file__).parent / "results" / "past_the_paper.json"
HELD_OUT, BATCH, STEPS = 256, 64, (4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class BranchesAlone(ClosedFormWeights):
    """Weights fitted to their output in the ANN, assuming that other terms of the sum are right."""

    def solve(self, view: StageView) -> Update:
        names = [branch.node.name for block in blocks_of(view) for branch in block.branches]

        def beside(stage: Stage, inputs: dict[str, Tensor], call: range) -> Tensor:
            values = mean_values(stage, inputs, view.shapes[call.start])
            return values[stage.end.inputs[0]] - sum(values[name] for name in names)

        def moved(call: range) -> Tensor:
            """The ANN's pre-activations where they are positive, with the error of the other terms."""
            z = StageView.ann_current(view, call)
            ann = beside(view.ann, {name: view.value(name, call, "ann") for name in view.stage.inputs}, call)
            snn = beside(view.stage, {name: view.mean_value(name, call) for name in view.stage.inputs}, call)
            return torch.where(z > 0, (z + snn - ann).clamp(min=0), z)

        with patch.object(view, "ann_current", moved):
            return super().solve(view)


BOTH = (ClosedFormWeights(), Bias())
ALL = (*BOTH, TemporalBias())
STEPWISE = Pipeline(sweeps=(ALL,))
PIPELINES = {
    "LCP": LCP,
    "PC": PC,
    "bias, read-out": Pipeline(sweeps=((Bias(),), ReadOut())),
    "refined thresholds, bias": Pipeline(sweeps=((RefineThreshold(), Bias()),)),
    "refined thresholds, temporal bias": Pipeline(sweeps=((RefineThreshold(), TemporalBias()),)),
    "closed form": Pipeline(sweeps=((ClosedFormWeights(),),)),
    "closed form, branches alone": Pipeline(sweeps=((BranchesAlone(),),)),
    "closed form, bias": Pipeline(sweeps=(BOTH,)),
    "closed form, potential": Pipeline(sweeps=((ClosedFormWeights(), Potential()),)),
    "temporal bias": Pipeline(sweeps=((TemporalBias(),),)),
    "closed form, bias, temporal bias": STEPWISE,
    "closed form, bias, temporal bias, rounding by potential": replace(STEPWISE, rounding="potential"),
    "closed form, bias, temporal bias, rounding split": replace(STEPWISE, rounding="split"),
    "closed form, bias, temporal bias, two sweeps": replace(STEPWISE, sweeps=(ALL, ALL)),
}


def main(steps: list[int]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    one = subject()
    found |= {"calibration": len(one.seen), "held_out": HELD_OUT, "tested": len(one.test), "machine": machine()}
    found["ann_test"] = right(one.model, one)
    for T in steps:
        for label, pipeline in PIPELINES.items():
            row = f"T={T}, {label}"
            if row not in found["rows"]:
                found["rows"][row] = measured(one, pipeline, T)
                print(row, found["rows"][row], flush=True)
                write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def subject() -> Subject:
    model, card = load_model("resnet20", None)
    (train, _), (test, labels) = load_demo("train"), load_demo("test")
    images = prepare(train, card, "resnet20")[shuffled(len(train), 0)]
    return Subject(model, images[HELD_OUT:], images[:HELD_OUT], prepare(test, card, "resnet20"), labels)


def measured(one: Subject, pipeline: Pipeline, T: int) -> dict[str, Any]:
    started = time.perf_counter()
    result = spikecal.convert(one.model, one.seen, T=T, pipeline=pipeline)
    seconds = time.perf_counter() - started
    batches = [(some,) for some in one.others.split(BATCH)]
    output = result.snn.graph.outputs()[0]
    with torch.no_grad():
        wanted = [{output: one.model(*batch)} for batch in batches]
    each = divergences(result.snn, batches, wanted)
    same = [
        values[output].argmax(1) == result.snn(*batch).argmax(1) for batch, values in zip(batches, wanted, strict=True)
    ]
    notes = [note for record in result.records for note in record.notes]
    return {
        "divergence": float(each.mean()),
        "divergence_error": standard_error(each),
        "agreement": float(torch.cat(same).double().mean()),
        "test": right(result.snn, one),
        "stages_left_alone": sum("left unchanged" in note for note in notes),
        "seconds": seconds,
    }


@torch.no_grad()
def right(network: nn.Module, one: Subject) -> float:
    answers = torch.cat([network(some).argmax(1) for some in one.test.split(BATCH)])
    return float((answers == one.labels).double().mean())


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or list(STEPS))
