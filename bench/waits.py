"""What waiting gains at a latency; writes bench/results/waits.json.

    [IMAGENET_SAMPLES=FOLDER] python bench/waits.py [DIR] [MODEL=FILE …]     rerun to resume after the last finished row

DIR is where CIFAR-10 is (default: where `spikecal datasets` puts it). Networks are calibrated on 1,024 training images
and tested on the first 2,000 test images: `below` is how many points they are below the ANN there. Each row with waits
is paired with one without them, of the same T (`T`) or, if T is also chosen, of T = latency (`free`); `gain` is what
waiting gains over it, in points, and `error` its standard error, paired over images. With photographs as in
bench/imagenet_samples.py there are rows of an ImageNet network, calibrated on 128 of them and tested on 100.
`delayed` compares skips that charge the membrane early with delay lines, in otherwise identical networks: every
layer waits one step, so that every skip leads. `gain` is what delay lines gain, `changed` the answers that differ.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from imagenet_samples import FOLDER, efficientnet_lite0, photographs
from torch import Tensor, nn

import spikecal
from spikecal.analysis.energy import EnergyMeter
from spikecal.choice.placement import Placement, Trial
from spikecal.data.images import shuffled
from spikecal.data.prepare import Loader, prepare
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.reproduce.paired import packed, unpacked
from spikecal.reproduce.ways import PAPERS_JOINTS
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "waits.json"
CALIBRATION, TESTED, BATCH = 1024, 2000, 100
PHOTOGRAPHS, FEW = 128, 100
PIPELINES = ("lcp", "pc")
EARLY = {"resnet20": 8, "resnet20-nobn": 8, "resnet56": 16}  # networks with skips into neurons, and a T for each
EMBEDDED = ("resnet20", "resnet20-nobn")
# network -> T and latency; those with T = None are `free`
ROWS: dict[str, list[tuple[int | None, int]]] = {
    "resnet20": [(4, 14), (8, 18), (16, 26), (None, 14), (None, 18), (None, 26)],
    "resnet20-nobn": [(8, 18)],
    "vgg16-half": [(4, 11), (8, 15)],
    "resnet56": [(16, 40), (None, 40)],
    "efficientnet-lite0": [(16, 50)],
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with images for calibration and tests."""

    model: nn.Module
    seen: Tensor
    test: Tensor
    labels: Tensor

    @property
    def right(self) -> Tensor:
        return right(self.model, self)


@cache
def cifar(
    name: str, file: Path | None, root: Path | None, calibration: int = CALIBRATION, tested: int = TESTED
) -> Subject:
    model, card = load_model(name, file)
    train, test = (load_data("cifar10", split, root) for split in ("train", "test"))
    assert isinstance(train.images, Tensor) and isinstance(test.images, Tensor) and test.labels is not None
    seen = prepare(train.images[shuffled(len(train), 1)[-calibration:]], card, name)
    return Subject(model, seen, prepare(test.images[:tested], card, name), test.labels[:tested])


@cache
def imagenet(calibration: int = PHOTOGRAPHS, tested: int = FEW) -> Subject:
    model, card = efficientnet_lite0()
    parts = []
    for split, count in (("train", calibration), ("test", tested)):
        found = list(Loader(photographs(split), card, BATCH))
        parts.append([torch.cat(part)[:count] for part in zip(*found, strict=True)])
    (seen, _), (test, labels) = parts
    return Subject(model, seen, test, labels)


@torch.no_grad()
def right(network: nn.Module, one: Subject) -> Tensor:
    """Whether each test image is answered correctly, as numbers."""
    outputs = torch.cat([network(some) for some in one.test.split(BATCH)])
    return (outputs.argmax(1) == one.labels).double()


def planned(names: list[str]) -> Iterator[tuple[str, str, str, int | None, int | None]]:
    """Row, network, pipeline, T and latency; those without waits come first."""
    for name in names:
        for T, latency in ROWS[name]:
            for pipeline in PIPELINES:
                alone = T or latency
                yield f"{name}, {pipeline}, T={alone}", name, pipeline, alone, None
                which = f"T={T}" if T else "free"
                yield f"{name}, {pipeline}, {which}, latency {latency}", name, pipeline, T, latency


def main(root: Path | None, files: dict[str, Path]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"calibration": CALIBRATION, "tested": TESTED, "machine": machine()}
    names = [name for name in ROWS if name in files or name in EMBEDDED]
    if FOLDER in os.environ:
        names.append("efficientnet-lite0")

    def subject(name: str) -> Subject:
        return imagenet() if name == "efficientnet-lite0" else cifar(name, files.get(name), root)

    rows = found.setdefault("rows", {})
    beside = ""
    for row, name, pipeline, T, latency in planned(names):
        beside = row if latency is None else beside
        if row not in rows:
            put(found, "rows", row, measured(subject(name), pipeline, T, latency), beside if latency else None)
    for name, T in EARLY.items():
        if name in names:
            compare_skips(found.setdefault("delayed", {}), subject(name), name, T)
            write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def compare_skips(found: dict[str, Any], one: Subject, name: str, T: int) -> None:
    """Skips that charge early, and the same network with delay lines. Every layer waits 1, so that every skip leads."""
    row = f"{name}, lcp, T={T}, every layer waits 1"
    if row in found:
        return
    early = everywhere(one, T)
    with patch("spikecal.snn.windows.gathers", lambda stage: False):
        delayed = everywhere(one, T)
        leads = sum(bool(delayed.windows.delays(stage)) for stage in delayed.stages if stage.spiking)
        late = facts_of(one, delayed)
    facts = facts_of(one, early)
    gains = 100 * (unpacked(late["answers"]) - unpacked(facts["answers"]))
    found[row] = {
        "T": T, "latency": early.latency, "skips": leads, "early": facts["below"], "delayed": late["below"],
        "changed": int(gains.count_nonzero()), "gain": float(gains.mean()),
        "error": float(gains.std()) / len(gains) ** 0.5,
    }  # fmt: skip
    print(row, found[row], flush=True)


def everywhere(one: Subject, T: int) -> spikecal.SpikingNetwork:
    """By LCP, with every layer waiting one step: no search, so that nothing else differs."""
    plain = spikecal.convert(one.model, one.seen, T=T, pipeline="baseline", joints=PAPERS_JOINTS, records=False).snn
    waits = {stage.name: 1 for stage in plain.stages if stage.spiking}
    latency = spikecal.SpikingNetwork(plain.graph, T, waits).latency
    kept = Trial("everywhere", T, latency, waits, 0.0)
    with patch("spikecal.choice.placement.Search.run", lambda self, steps: Placement(kept, (kept,), 0)):
        return spikecal.convert(
            one.model, one.seen, T=T, latency=latency, pipeline="lcp", joints=PAPERS_JOINTS, records=False
        ).snn


def put(found: dict[str, Any], part: str, row: str, facts: dict[str, Any], beside: str | None) -> None:
    """Write a row, with what it gains over the row `beside`."""
    if beside is not None:
        gains = 100 * (unpacked(facts["answers"]) - unpacked(found["rows"][beside]["answers"]))
        gain, error = float(gains.mean()), float(gains.std()) / len(gains) ** 0.5
        facts |= {"without": beside, "gain": gain, "error": error}
    found[part][row] = facts
    print(part, row, {key: value for key, value in facts.items() if key != "answers"}, flush=True)
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def measured(one: Subject, pipeline: str, T: int | None, latency: int | None) -> dict[str, Any]:
    started = time.perf_counter()
    snn = spikecal.convert(
        one.model, one.seen, T=T, latency=latency, pipeline=pipeline, joints=PAPERS_JOINTS, records=False
    ).snn
    seconds = time.perf_counter() - started
    return {**facts_of(one, snn), "seconds": seconds}


def facts_of(one: Subject, snn: spikecal.SpikingNetwork) -> dict[str, Any]:
    """Facts about a network: its time, points below the ANN, spikes and energy on some images."""
    answers = right(snn, one)
    some = one.test[:BATCH]
    spikes, meter = snn.run(some).spikes, EnergyMeter(snn)
    meter.add((some,), spikes)
    return {
        "T": snn.T,
        "latency": snn.latency,
        "waits": sum(snn.waits.values()),
        "placement": snn.origin.placements.get(snn.T, {}).get("kept"),
        "ann": 100 * float(one.right.mean()),
        "below": 100 * float(one.right.mean() - answers.mean()),
        "spikes": float(sum(int(count.sum()) for count in spikes.values())) / len(some),
        "energy": meter.result().ratio,
        "answers": packed(answers),
    }


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[1:] if "=" in argument]
    folders = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    main(folders[0] if folders else None, {name: Path(file) for name, _, file in named})
