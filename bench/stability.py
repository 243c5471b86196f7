"""The steepness of weights calibration's loss, and the effect of the paper's rate; writes bench/results/stability.json.

    python bench/stability.py BCCD [IMAGENET]     rerun to resume after the last finished row

BCCD is a folder of Pascal-VOC blood-cell images; IMAGENET one of photographs, as `bench/imagenet_samples.py` reads
them, which also needs the network's packages. SGD diverges where its rate times the largest curvature of a stage is
above 2 (1 + momentum) = 3.8. Each network is calibrated for 8 steps with 15 iterations on 16 images: `lowered` by
default, `as it is` at the paper's rate everywhere. `steepness` is rate times curvature, by stage; `raised` are the
stages whose error would have risen, with the error before and the refused one.
"""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spikecal
from spikecal import Pipeline, Potential, Weights, detection
from spikecal.calibration.calibrators import curvature
from spikecal.calibration.samples import Samples
from spikecal.calibration.sweep import StageRecord
from spikecal.calibration.view import StageView
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.reproduce.ways import PAPERS_JOINTS
from spikecal.zoo.detectors import load_detector
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "stability.json"
SAMPLES = Path(__file__).with_name("imagenet_samples.py")
IMAGES, T = 16, 8
SETTINGS: dict[str, Any] = {"iterations": 15, "batch": 8, "images": IMAGES}
STEEPNESS: dict[str, float] = {}  # of the stages calibrated last


@dataclass(frozen=True, kw_only=True)
class Lowered(Weights):
    """The default; records the steepness it finds."""

    def stable_rate(self, view: StageView, samples: Samples, learned: dict[str, Tensor]) -> float:
        steepest = curvature(view.stage, samples.first(self.batch), learned, view.seed)
        STEEPNESS[view.stage.name] = self.lr * steepest
        return super().stable_rate(view, samples, learned)


@dataclass(frozen=True, kw_only=True)
class AsItIs(Weights):
    """Always at the paper's rate."""

    def stable_rate(self, view: StageView, samples: Samples, learned: dict[str, Tensor]) -> float:
        return self.lr


def records(name: str, weights: Weights, folder: Path | None) -> list[StageRecord]:
    pipeline = Pipeline(sweeps=((Potential(images=IMAGES), weights),))
    if name == "retinanet-r18-quarter":
        boxes = detection.load_boxes(f"voc:{folder}", "train")
        return detection.convert(load_detector(name, None), boxes, T=[T], pipeline=pipeline, count=IMAGES).records
    specification, data = (f"{SAMPLES}:{part}" for part in ("efficientnet_lite0", "photographs"))
    if folder is None:
        specification, data = name, "demo"
    else:
        os.environ["IMAGENET_SAMPLES"] = str(folder)
    model, card = load_model(specification)
    prepared = Prepared(load_data(data, "train"), card)
    images = torch.stack([prepared[i] for i in range(IMAGES)])
    return spikecal.convert(model, images, T=T, pipeline=pipeline, joints=PAPERS_JOINTS).records


def facts(found: list[StageRecord]) -> dict[str, Any]:
    learned = [record for record in found if record.errors[-1][0] == "weights"]
    refused = {r.stage: re.search(r"raised the error to ([\d.]+)", " ".join(r.notes)) for r in learned}
    errors = {r.stage: r.errors[-2][1] for r in learned}
    raised = {stage: [errors[stage], float(match[1])] for stage, match in refused.items() if match}
    lowered = sum("would diverge" in note for record in learned for note in record.notes)
    return {"stages": len(learned), "lowered": lowered, "raised": raised}


def main(folders: list[Path]) -> None:
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    networks: dict[str, Path | None] = {"resnet20": None}
    networks |= dict(zip(("retinanet-r18-quarter", "efficientnet-lite0"), folders, strict=False))
    for name, folder in networks.items():
        if name in found:
            continue
        STEEPNESS.clear()
        lowered = facts(records(name, Lowered(**SETTINGS), folder))
        as_it_is = facts(records(name, AsItIs(**SETTINGS), folder))
        found[name] = {"steepness": dict(STEEPNESS), "lowered": lowered, "as it is": as_it_is}
        print(name, max(STEEPNESS.values()), lowered["lowered"], len(as_it_is["raised"]), flush=True)
        write_whole(RESULT, json.dumps({**found, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
