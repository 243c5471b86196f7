"""What linear values cost as currents, as signed spikes and multiplied away; writes bench/results/joints.json.

    [IMAGENET_SAMPLES=FOLDER] python bench/joints.py [DIR] [NETWORK=FILE …]       rerun to resume after the last row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it), FILE the weights of a network of
bench/small_networks.py. Networks are calibrated on 512 training images by LCP and tested on the first 1,000 test
images, without waits and within a latency of T + 10. `below` is how many points they are below the ANN there, `energy`
that of synapses in multiples of the ANN's; `loss` is what they lose against analog joints, in points, and `error` its
standard error, paired over images. With photographs as in bench/imagenet_samples.py there are rows of
EfficientNet-Lite0, calibrated on 32 of them and tested on 60, all scaled to 128 x 128 pixels, with every layer waiting
one step: without waits it knows next to nothing.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from imagenet_samples import FOLDER
from torch import Tensor
from torch.nn import functional as F
from waits import Subject, cifar, facts_of, imagenet, unpacked

import spikecal
from spikecal.arguments import home_of
from spikecal.files import write_whole
from spikecal.graph.graph import describe
from spikecal.graph.joints import JOINTS, Joints, analog_readers, staged
from spikecal.phases import Context, run_phases
from spikecal.progress import Silent
from spikecal.reproduce.cells import machine

RESULT = Path(__file__).parent / "results" / "joints.json"
NETWORKS = ("mobilenet", "mnasnet", "preact", "densenet")
CALIBRATION, TESTED = 512, 1000
PHOTOGRAPHS, FEW, PIXELS = 32, 60, 128
STEPS = (16, 8, 32)
LATENCIES = (None, "+10")
IMAGENET = "efficientnet-lite0"


@cache
def small(name: str, file: Path, root: Path | None) -> Subject:
    return cifar(f"{Path(__file__).parent / 'small_networks.py'}:{name}", file, root, CALIBRATION, TESTED)


@cache
def shrunk() -> Subject:
    one = imagenet(PHOTOGRAPHS, FEW)
    return replace(one, seen=scaled(one.seen), test=scaled(one.test))


def scaled(images: Tensor) -> Tensor:
    return F.interpolate(images, size=(PIXELS, PIXELS), mode="bilinear", antialias=True)


def planned(names: list[str]) -> Iterator[tuple[str, str, int, str | None, Joints]]:
    """Row, network, T, latency and joints; analog ones come before those that are compared with them."""
    for T in STEPS:
        for name in names:
            for latency in LATENCIES if name != IMAGENET else ("every layer waits 1",):
                for joints in JOINTS if T == STEPS[0] or name != IMAGENET else ():
                    when = f"T={T}" if latency is None else f"T={T}, {latency}"
                    yield f"{name}, {when}, {joints}", name, T, latency, joints


def main(root: Path | None, files: dict[str, Path]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"calibration": CALIBRATION, "tested": TESTED, "machine": machine()}
    rows = found.setdefault("rows", {})
    names = [name for name in NETWORKS if name in files] + ([IMAGENET] if FOLDER in os.environ else [])
    for row, name, T, latency, joints in planned(names):
        if row in rows:
            continue
        one = shrunk() if name == IMAGENET else small(name, files[name], root)
        analog = rows.get(f"{row.removesuffix(joints)}analog")
        if analog is not None and not differs(one, joints):
            rows[row] = {**analog, "joints": joints}
            continue
        snn = everywhere(one, T, joints) if name == IMAGENET else converted(one, T, latency, joints)
        facts = {"network": name, "joints": joints, "readers": len(analog_readers(snn.graph)), **facts_of(one, snn)}
        losses = 100 * (unpacked((analog or facts)["answers"]) - unpacked(facts["answers"]))
        facts |= {"loss": float(losses.mean()), "error": float(losses.std()) / len(losses) ** 0.5}
        rows[row] = facts
        print(row, {key: value for key, value in facts.items() if key != "answers"}, flush=True)
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def differs(one: Subject, joints: Joints) -> bool:
    """Whether the network is another one than with analog joints."""
    found = [describe(staged(one.model, (one.seen[:2],), joints=kind)) for kind in (joints, "analog")]
    return found[0] != found[1]


def converted(one: Subject, T: int, latency: str | None, joints: Joints) -> spikecal.SpikingNetwork:
    settings: dict[str, Any] = {"pipeline": "lcp", "records": False, "joints": joints}
    return spikecal.convert(one.model, one.seen, T=T, latency=latency, **settings).snn


def everywhere(one: Subject, T: int, joints: Joints) -> spikecal.SpikingNetwork:
    """By LCP, with every layer waiting one step: a search would take too long."""
    plain = spikecal.convert(one.model, one.seen, T=T, pipeline="baseline", joints=joints, records=False).snn
    waits = {stage.name: 1 for stage in plain.stages if stage.spiking}
    network = spikecal.SpikingNetwork(plain.graph, T, waits)
    device, dtype = home_of(one.model)
    context = Context(
        ann=plain.graph.clone(), images=[(x.to(device, dtype),) for x in one.seen.split(1)],
        pipeline=spikecal.LCP, seed=0, micro_batch=None, memory=2**31, records=False, progress=Silent(), workdir=None,
    )  # fmt: skip
    run_phases(context, network, 0.0)
    return network


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
