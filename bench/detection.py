"""What a detector's body should pass on, memory and time; writes bench/results/detection.json.

    python bench/detection.py readout --data voc:PATH [--weights FILE]     mAP on validation images, both readouts
    python bench/detection.py features --data voc:PATH [-T 16 -T 64]       how far the maps are from the analog ones
    python bench/detection.py chance --data voc:PATH [-T 64]               ACP minus LCP on resampled test images
    python bench/detection.py memory [-T 8 -T 32]                          peak memory at 800 x 1333 pixels
    python bench/detection.py steps --data voc:PATH [--weights FILE]       seconds per image, by steps per call
    python bench/detection.py pooling --data voc:PATH                      seconds of Faster R-CNN, by roi_align

`readout` decides the default of `detection.convert`; it and `features` see validation images, never test images.
`chance` uses the test images of the table that it checks, and decides nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import torch

from spikecal import detection
from spikecal.calibration.calibrators import Calibrator, Weights
from spikecal.detection.precision import average_precision, detect_all, redrawn
from spikecal.pipeline import PRESETS, Pipeline
from spikecal.reproduce.sizes import FEW_ITERATIONS
from spikecal.reproduce.tables import find
from spikecal.snn import execute
from spikecal.vision import roi_align, vision
from spikecal.zoo.detectors import build_detector, load_detector

MODEL = "retinanet-r18-quarter"
ROWS = ("baseline", "lcp", "acp")
STEPS = (4, 8)
IMAGES, CALIBRATION, SEED = 40, 32, 0
ITERATIONS, BATCH = 100, 8  # of weights calibration
DRAWS = 200  # sets of test images
TIMED = 4  # images
RESULTS = Path(__file__).parent / "results" / "detection.json"


def keep(part: str, found: Any) -> None:
    """Update one part of the results; the others stay."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.machine()}
    RESULTS.write_text(json.dumps({**known, part: {"found": found, "machine": machine}}, indent=1) + "\n")


def readout(data: str, weights: Path | None) -> None:
    detector = load_detector(MODEL, weights)
    train = detection.load_boxes(data, "train")
    images = detection.load_boxes(data, "val").sample(IMAGES, SEED)
    found: dict[str, Any] = {
        "images": len(images),
        "analog": detection.evaluate(detector, images).to_dict(),
        "rows": [],
    }
    for name in ROWS:
        pipeline = configured(name, CALIBRATION, ITERATIONS)
        for T in STEPS:
            made = detection.convert(detector, train, T, pipeline, count=CALIBRATION, seed=SEED)
            for passed in ("current", "spikes"):
                made.body.snn.readout = passed
                precision = detection.evaluate(made.detector, images)
                row = {"pipeline": name, "T": T, "readout": passed, "map": precision.map, "map50": precision.map50}
                found["rows"].append(row)
                print(row, flush=True)
            keep("readout", found)


def configured(name: str, images: int, iterations: int) -> Pipeline:
    pipeline = PRESETS[name].changed(Weights, iterations=iterations, batch=BATCH, **FEW_ITERATIONS)
    return pipeline.changed(Calibrator, images=images)


@torch.no_grad()
def features(data: str, weights: Path | None, steps: list[int]) -> None:
    """With the images and iterations of `spikecal reproduce detect`."""
    detector: Any = load_detector(MODEL, weights)
    sizes = find("detect").sizes
    assert sizes is not None
    train = detection.load_boxes(data, "train")
    images = detection.load_boxes(data, "val").sample(IMAGES, SEED)
    inputs = [detector.transform([images.image(i)])[0].tensors for i in range(len(images))]
    rows: list[dict[str, Any]] = []
    for T in steps:
        for name in ROWS:
            pipeline = configured(name, sizes.weights, sizes.iterations)
            made: Any = detection.convert(detector, train, T, pipeline, count=sizes.weights, seed=SEED).detector
            wrong, size = 0.0, 0.0
            for x in inputs:
                maps = made.backbone.body(x)
                for key, wanted in detector.backbone.body(x).items():
                    wrong += float((maps[key] - wanted).square().sum())
                    size += float(wanted.square().sum())
            rows.append({"pipeline": name, "T": T, "error": wrong / size})
            print(rows[-1], flush=True)
            keep("features", rows)


def chance(data: str, weights: Path | None, steps: list[int]) -> None:
    """ACP minus LCP in mAP, and its deviation over bootstrap samples of the test images."""
    detector, sizes = load_detector(MODEL, weights), find("detect").sizes
    assert sizes is not None
    train, images = detection.load_boxes(data, "train"), detection.load_boxes(data, "test")
    rows: list[dict[str, Any]] = []
    for T in steps:
        draws, whole = [], []
        for name in ("lcp", "acp"):
            pipeline = configured(name, sizes.weights, sizes.iterations)
            made = detection.convert(detector, train, T, pipeline, count=sizes.weights, seed=SEED).detector
            found, truth = detect_all(made, images, {})
            whole.append(average_precision(found, truth, images.classes).map)
            draws.append(redrawn(found, truth, images.classes, DRAWS, SEED))
        lcp, acp = draws
        row = {"T": T, "images": len(images), "draws": DRAWS, "acp_less_lcp": whole[1] - whole[0]}
        rows.append({**row, "deviation": statistics.stdev(a - b for a, b in zip(acp, lcp, strict=True))})
        print(rows[-1], flush=True)
        keep("chance", rows)


def memory(steps: list[int]) -> None:
    """Each T in its own process, as the peak is that of a process."""
    rows = []
    for T in steps:
        command = [sys.executable, __file__, "peak", "-T", str(T)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print(rows[-1], flush=True)
        keep("memory", rows)


def peak(T: int) -> None:
    """A RetinaNet-R50 with random weights, calibrated (LCP) on one image of 800 x 1333 and run on it."""
    torch.manual_seed(SEED)
    detector = build_detector("retinanet-r50")
    image = torch.rand(3, 800, 1333)
    with torch.no_grad():
        detector([image])
    analog, started = resident("VmHWM"), time.perf_counter()
    made = detection.convert(detector, [image], T, "lcp", memory=2**30)
    converted, taken = resident("VmHWM"), time.perf_counter() - started
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    started = time.perf_counter()
    with torch.no_grad():
        made.detector([image])
    facts = {"T": T, "analog_bytes": analog, "convert_bytes": converted, "detect_bytes": resident("VmHWM")}
    print(json.dumps({**facts, "convert_seconds": taken, "detect_seconds": time.perf_counter() - started}))


def steps_a_call(data: str, weights: Path | None) -> None:
    detector, T = load_detector(MODEL, weights), 64
    train = detection.load_boxes(data, "train")
    made = detection.convert(detector, train, T, "baseline", count=4).detector
    image, rows = train.image(0), []
    for power in (20, 22, 24, 26):
        execute.STEP_FLOATS = 1 << power
        seconds = []
        for _ in range(3):
            started = time.process_time()
            with torch.no_grad():
                made([image])
            seconds.append(time.process_time() - started)
        rows.append({"step_floats": 1 << power, "T": T, "seconds": min(seconds)})
        print(rows[-1], flush=True)
    keep("steps", rows)


def pooling(data: str) -> None:
    """Processor time per image of the small Faster R-CNN, with random weights, in detection and in training."""
    operator: Any = vision("torchvision.ops.roi_align")
    if operator._roi_align is not roi_align:
        sys.exit("torchvision's compiled operators load here, so there is nothing to compare")
    train = detection.load_boxes(data, "train")
    images = [train.image(i) for i in range(TIMED)]
    targets = [{"boxes": train.targets[i].boxes, "labels": train.targets[i].labels} for i in range(TIMED)]
    torch.manual_seed(SEED)
    detector = build_detector("fasterrcnn-r18-quarter")

    @torch.no_grad()
    def detecting() -> None:
        for image in images:
            detector([image])

    def learning() -> None:
        sum(detector(images, targets).values()).backward()

    rows: list[dict[str, Any]] = []
    for name, chosen in (("torchvision's", torchvisions_own()), ("ours", roi_align)):
        operator._roi_align = chosen
        seconds = {}
        for what, call in (("detect", detecting), ("learn", learning)):
            detector.train(what == "learn")
            seconds[what] = fewest_seconds(call) / TIMED
        rows.append({"roi_align": name, **seconds})
        print(rows[-1], flush=True)
    keep("pooling", rows)


def torchvisions_own() -> Any:
    """roi_align as torchvision has it in Python, not compiled: from a second copy of its module."""
    spec = find_spec("torchvision.ops.roi_align")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._roi_align.__wrapped__


def fewest_seconds(call: Callable[[], None]) -> float:
    """The least processor time of three calls after a first one."""
    call()
    taken = []
    for _ in range(3):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return min(taken)


def resident(field: str) -> int:
    """Resident memory of this process in bytes: now (VmRSS) or at most (VmHWM)."""
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["readout", "features", "chance", "memory", "steps", "pooling", "peak"])
    parser.add_argument("--data")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("-T", type=int, action="append")
    given = parser.parse_args()
    if given.part == "memory":
        memory(given.T or [8, 32])
    elif given.part == "peak":
        peak(given.T[0])
    elif given.data is None:
        parser.error("--data voc:PATH is needed")
    elif given.part == "pooling":
        pooling(given.data)
    elif given.part == "features":
        features(given.data, given.weights, given.T or [16, 32, 64])
    elif given.part == "chance":
        chance(given.data, given.weights, given.T or [64])
    else:
        (readout if given.part == "readout" else steps_a_call)(given.data, given.weights)


if __name__ == "__main__":
    main()
