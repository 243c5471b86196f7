"""Exports of the embedded ResNet-20 in every installed simulator, spike by spike; writes bench/results/exports.json.

    python bench/exports.py     rerun to resume after the last finished row

`make verify-exports` runs it in one environment with SpikingJelly and ONNX Runtime and in another one with sinabs: they
want different versions of nir. Networks are calibrated by LCP on 128 embedded images and run on 500 test images.
"""

import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import spikecal
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.export.simulators import SIMULATORS
from spikecal.files import write_whole
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "exports.json"
T, CALIBRATION, IMAGES = 8, 128, 500
NETWORKS: dict[str, dict[str, Any]] = {"resnet20, T=8": {}, "resnet20, T=8, latency 18": {"latency": 18}}
SUFFIXES = {"nir": ".nir", "onnx": ".onnx", "spikingjelly": ".py"}


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {name: version(name) for name in ("torch", *packages)}


def verified(snn: spikecal.SpikingNetwork, to: str, images: torch.Tensor, labels: torch.Tensor) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        made = snn.export(Path(folder) / f"network{SUFFIXES[to]}")
        return [verdict.to_dict() for verdict in made.verify(images, labels)]


def main() -> None:
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    network, card = load_model("resnet20", None)
    calibration = Prepared(subset(load_data("demo", "train"), CALIBRATION, 0), card)
    test = subset(load_data("demo", "test"), IMAGES, 0)
    images = torch.cat([batch for batch, _ in Prepared(test, card).batches(100)])
    assert test.labels is not None
    for name, settings in NETWORKS.items():
        todo = [
            to
            for to, simulators in SIMULATORS.items()
            if any(s.installed and f"{name}, {to}, {s.name}" not in found["rows"] for s in simulators)
        ]
        if not todo:
            continue
        result = spikecal.convert(network, calibration, T=T, pipeline=spikecal.LCP, **settings)
        result.describe(card=card.to_dict())
        for to in todo:
            packages = {simulator.name: simulator.packages for simulator in SIMULATORS[to]}
            for verdict in verified(result.snn, to, images, test.labels):
                row = {**verdict, "latency": result.snn.latency, "packages": versions(packages[verdict["simulator"]])}
                found["rows"][f"{name}, {to}, {verdict['simulator']}"] = row
                print(name, to, row, flush=True)
            found["machine"] = platform.machine()
            write_whole(RESULT, json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
