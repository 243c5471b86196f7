"""What fine-tuning gains, with waits and without; writes bench/results/finetune.json.

    python bench/finetune.py WORK     rerun to resume, also inside fine-tuning: WORK is its working directory

The ResNet-20 in the package, fine-tuned and calibrated on 768 of the 1,024 calibration images in the package. On the
other 256, `divergence` is KL(ANN || network) and `agreement` the share of equal answers: settings are chosen by these.
`test` is the share of correct answers on the 1,000 embedded test images, which choose nothing. `quantised`
has the quantised networks, `rows` the spiking ones.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import spikecal
from spikecal import LCP, PC, FineTune, Pipeline
from spikecal.calibration.divergence import divergence
from spikecal.calibration.whole import NetworkPhase, State, Whole
from spikecal.data.prepare import prepare
from spikecal.data.sets.demo import load_demo
from spikecal.files import write_whole
from spikecal.graph.graph import Graph
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "finetune.json"
SEEN, BATCH = 768, 100
TUNED = FineTune(iterations=200)  # a third of the default, for time
PIPELINES = {"LCP": LCP, "PC": PC}
STEPS = (4, 8)

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Known(NetworkPhase):
    """Fine-tuning done before, from a working directory."""

    file: str
    rounds: int = 1
    label = "fine-tuning"

    def passes(self, images: int, T: int) -> float:
        return 0.0

    def start(self, whole: Whole) -> State:
        return load_file(self.file)

    def advance(self, whole: Whole, state: State, number: int) -> State:
        return state

    def finish(self, whole: Whole, state: State) -> Graph:
        return TUNED.finish(whole, state)


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with images for calibration, comparison and tests."""

    model: nn.Module
    seen: Tensor
    held: Tensor
    test: Tensor
    labels: Tensor

    @torch.no_grad()
    def measured(self, network: Network) -> dict[str, float]:
        wanted, given, tested = (
            torch.cat([run(some) for some in images.split(BATCH)])
            for run, images in ((self.model, self.held), (network, self.held), (network, self.test))
        )
        return {
            "divergence": float(divergence({"": wanted}, {"": given}, {}).mean()),
            "agreement": 100 * float((wanted.argmax(1) == given.argmax(1)).double().mean()),
            "test": 100 * float((tested.argmax(1) == self.labels).double().mean()),
        }


def subject() -> Subject:
    model, card = load_model("resnet20")
    (train, _), (test, labels) = load_demo("train"), load_demo("test")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    images = prepare(train[order], card, "calibration images")
    return Subject(model, images[:SEEN], images[SEEN:], prepare(test, card, "test images"), labels)


def main(work: Path) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    one = subject()
    found |= {"seen": SEEN, "iterations": TUNED.iterations, "ann": one.measured(one.model), "machine": machine()}
    tuned = {T: fine_tuned(one, T, work, found) for T in STEPS}
    for more, (name, pipeline), T in product((0, 10), PIPELINES.items(), STEPS):
        phases = {"": pipeline, ", fine-tuned": replace(pipeline, sweeps=(tuned[T], *pipeline.sweeps))}
        for label, variant in phases.items():
            row = f"T={T}, {name}{label}" + (f", latency {T + more}" if more else "")
            if row not in found.setdefault("rows", {}):
                put(found, "rows", row, converted(one, variant, T, T + more if more else None))


def fine_tuned(one: Subject, T: int, work: Path, found: dict[str, Any]) -> Known:
    """Fine-tune, or resume, and measure the quantised network before and after it."""
    plan = Pipeline(sweeps=(TUNED,))
    snn = spikecal.convert(one.model, one.seen, T=T, pipeline=plan, workdir=work / f"T{T}", records=False).snn
    plain = spikecal.convert(one.model, one.seen, T=T, pipeline="baseline", records=False).snn
    for name, network in (("not fine-tuned", plain), ("fine-tuned", snn)):
        row = f"T={T}, {name}"
        if row not in found.setdefault("quantised", {}):
            put(found, "quantised", row, one.measured(two_phase(network)))
    return Known(file=str(work / f"T{T}" / f"T{T}" / "phase0.step"))


def two_phase(snn: spikecal.SpikingNetwork) -> Network:
    """Every layer waits for all of its input: the answers are those of the quantised network."""
    waits = {stage.name: snn.T - 1 for stage in snn.stages if stage.spiking}
    return spikecal.SpikingNetwork(snn.graph, snn.T, waits)


def converted(one: Subject, pipeline: Pipeline, T: int, latency: int | None) -> dict[str, Any]:
    snn = spikecal.convert(one.model, one.seen, T=T, latency=latency, pipeline=pipeline, records=False).snn
    spikes = sum(int(count.sum()) for count in snn.run(one.held[:BATCH]).spikes.values()) / BATCH
    return {**one.measured(snn), "latency": snn.latency, "waits": sum(snn.waits.values()), "spikes": spikes}


def put(found: dict[str, Any], part: str, row: str, facts: dict[str, Any]) -> None:
    found[part][row] = facts
    print(part, row, facts, flush=True)
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
