"""The cost of linear values as currents, as signed spikes and merged; writes bench/results/joints.json.

    [IMAGENET_SAMPLES=FOLDER] python bench/joints.py [DIR] [NETWORK=FILE …]       rerun to resume after the last row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it), FILE the weights of a network of
bench/small_networks.py. Networks are calibrated on 256 training images and tested on the first 500 test images: with
every layer waiting one step by LCP, without waits by LCP and, at T=16, by the first pipeline that AUTO tries beside it.
`below` is how many points they are below the ANN there, `energy` that of synapses relative to the ANN's; `loss` is
how many points they lose relative to analog joints, and `error` its standard error, paired over images. With
photographs as in bench/imagenet_samples.py there are rows of EfficientNet-Lite0, calibrated on 32 of them and tested on
100, all scaled to 128 x 128 pixels, by LCP at T=16 alone.
`reaches` are dead zones tried for signed neurons, on training images not used for calibration: how far
the outputs are from the ANN's (KL divergence), and the share of steps in which signed neurons fire; by LCP at T=16,
with every layer waiting one step and without waits.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from imagenet_samples import FOLDER
from torch import Tensor
from torch.nn import functional as F
from waits import BATCH, Subject, cifar, facts_of, imagenet, unpacked

import spikecal
from spikecal.analysis.energy import EnergyMeter
from spikecal.arguments import home_of
from spikecal.calibration.divergence import ann_outputs, divergences, standard_error
from spikecal.choice.candidates import swept
from spikecal.files import write_whole
from spikecal.graph.graph import describe
from spikecal.graph.joints import JOINTS, Joints, analog_readers, staged
from spikecal.graph.ops import SignedSpike, frozen
from spikecal.phases import Context, run_phases
from spikecal.progress import Silent
from spikecal.reproduce.cells import machine

RESULT = Path(__file__).parent / "results" / "joints.json"
NETWORKS = ("mobilenet", "mnasnet", "preact", "densenet")
CALIBRATION, HELD_OUT, TESTED = 256, 256, 500
PHOTOGRAPHS, FEW, PIXELS = 32, 100, 128
IMAGENET = "efficientnet-lite0"
REACHES = {"1/2": (0.5, 0.5), "1 to 1/2": (1.0, 0.5), "3/4": (0.75, 0.75), "1": (1.0, 1.0), "3/2 to 1/2": (1.5, 0.5)}
TRIED = "mobilenet"  # the network to try reaches on


@dataclass(frozen=True)
class Way:
    """How a network is converted."""

    T: int
    wait: int  # of every layer
    pipeline: str = "LCP"

    def __str__(self) -> str:
        parts = [f"T={self.T}", "every layer waits 1" if self.wait else "", self.pipeline]
        return ", ".join(part for part in parts if part not in ("", "LCP"))


AUTOS = next(swept())
PIPELINES = {"LCP": spikecal.LCP, AUTOS.name: AUTOS.pipeline}
WAYS = (Way(16, 1), Way(16, 0), Way(16, 0, AUTOS.name), Way(8, 1), Way(8, 0))


@cache
def small(name: str, file: Path, root: Path | None) -> tuple[Subject, Tensor]:
    """A network, and held-out training images."""
    model = f"{Path(__file__).parent / 'small_networks.py'}:{name}"
    one = cifar(model, file, root, CALIBRATION + HELD_OUT, TESTED)
    return replace(one, seen=one.seen[HELD_OUT:]), one.seen[:HELD_OUT]


@cache
def shrunk() -> tuple[Subject, Tensor]:
    """The ImageNet network, and held-out photographs."""
    one = imagenet(PHOTOGRAPHS + FEW, FEW)
    seen = scaled(one.seen)
    return replace(one, seen=seen[:PHOTOGRAPHS], test=scaled(one.test)), seen[PHOTOGRAPHS:]


def scaled(images: Tensor) -> Tensor:
    return F.interpolate(images, size=(PIXELS, PIXELS), mode="bilinear", antialias=True)


def planned(names: list[str]) -> Iterator[tuple[str, str, Way, Joints]]:
    """Row, network, how to convert it, and joints; analog ones come before those compared with them."""
    for way in WAYS:
        for name in names if way in WAYS[:2] else [name for name in names if name != IMAGENET]:
            for joints in JOINTS:
                yield f"{name}, {way}, {joints}", name, way, joints


def main(root: Path | None, files: dict[str, Path]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"calibration": CALIBRATION, "tested": TESTED, "machine": machine()}
    rows = found.setdefault("rows", {})
    names = [name for name in NETWORKS if name in files] + ([IMAGENET] if FOLDER in os.environ else [])

    def subject(name: str) -> tuple[Subject, Tensor]:
        return shrunk() if name == IMAGENET else small(name, files[name], root)

    for row, name, way, joints in planned(names):
        if row in rows:
            continue
        one, _ = subject(name)
        analog = rows.get(f"{row.removesuffix(joints)}analog")
        rows[row] = {**analog, "joints": joints} if analog and not differs(one, joints) else told(one, way, joints)
        losses = 100 * (unpacked((analog or rows[row])["answers"]) - unpacked(rows[row]["answers"]))
        rows[row] |= {
            "network": name,
            "pipeline": way.pipeline,
            "loss": float(losses.mean()),
            "error": standard_error(losses),
        }
        put(found, row, rows[row])
    if TRIED in names:
        for way in WAYS[:2]:
            try_reaches(found, TRIED, *subject(TRIED), way)


def put(found: dict[str, Any], row: str, facts: dict[str, Any]) -> None:
    print(row, {key: value for key, value in facts.items() if key != "answers"}, flush=True)
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def told(one: Subject, way: Way, joints: Joints) -> dict[str, Any]:
    snn = converted(one, way, joints)
    return {"joints": joints, "readers": len(analog_readers(snn.graph)), **facts_of(one, snn)}


def differs(one: Subject, joints: Joints) -> bool:
    """Whether the network differs from that with analog joints."""
    found = [describe(staged(one.model, (one.seen[:2],), joints=kind)) for kind in (joints, "analog")]
    return found[0] != found[1]


def converted(
    one: Subject, way: Way, joints: Joints, reach: tuple[float, float] | None = None
) -> spikecal.SpikingNetwork:
    """With every layer waiting `wait` steps; signed neurons with a reach that goes from one number to another."""
    T, pipeline = way.T, PIPELINES[way.pipeline]
    plain = spikecal.convert(one.model, one.seen, T=T, pipeline="baseline", joints=joints, records=False).snn
    waits = {stage.name: way.wait for stage in plain.stages if stage.spiking and way.wait}
    network = spikecal.SpikingNetwork(plain.graph, T, waits)
    reach = reach or (REACHES["1 to 1/2"] if way.wait else None)
    for stage in network.stages:
        if reach is not None and isinstance(stage.end.op, SignedSpike):
            first, last = reach
            stage.end.op.reach = frozen(first + (last - first) * torch.arange(1, T + 1)[:, None] / T)
    device, dtype = home_of(one.model)
    context = Context(
        ann=plain.graph.clone(), images=[(x.to(device, dtype),) for x in one.seen.split(1)],
        pipeline=pipeline, seed=0, micro_batch=None, memory=2**31, records=False, progress=Silent(), workdir=None,
    )  # fmt: skip
    run_phases(context, network, 0.0)
    return network


def try_reaches(found: dict[str, Any], network: str, one: Subject, held: Tensor, way: Way) -> None:
    """Each dead zone, and analog joints beside them."""
    rows, batches = found.setdefault("reaches", {}), [(x,) for x in held.split(BATCH)]
    targets = ann_outputs(staged(one.model, (held[:2],), joints="analog"), batches)
    for name, reach in {**REACHES, "analog joints": None}.items():
        row = f"{network}, {name}" if way.wait else f"{network}, without waits, {name}"
        if row in rows:
            continue
        snn = converted(one, way, "signed" if reach else "analog", reach)
        far = divergences(snn, batches, targets)
        spikes, meter = snn.run(held[:BATCH]).spikes, EnergyMeter(snn)
        meter.add((held[:BATCH],), spikes)
        rates = [float(spikes[s.name].double().mean()) / way.T for s in snn.stages if s.kind == "signed neurons"]
        rows[row] = {
            "network": network, "wait": way.wait, "reach": name, "T": way.T, "images": len(held),
            "divergence": float(far.mean()), "error": standard_error(far), "energy": meter.result().ratio,
            "rate": sum(rates) / len(rates) if rates else None,
        }  # fmt: skip
        put(found, row, rows[row])


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
