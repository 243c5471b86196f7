"""The whole method on what the package carries, in a few minutes."""

import json
import time
from pathlib import Path
from typing import Any

from spikecal.analysis.evaluate import Evaluation, accuracy, evaluate
from spikecal.analysis.plots import accuracy_over_time
from spikecal.calibration.calibrators import Weights
from spikecal.conversion import convert
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import load_data, subset
from spikecal.errors import ConfigError
from spikecal.files import check_output, write_whole
from spikecal.pipeline import ACP, BASELINE, LCP, Pipeline
from spikecal.progress import Progress
from spikecal.result import Result
from spikecal.tasks.outcome import Line, Outcome, Table, duration, percent
from spikecal.tasks.pages import report_results
from spikecal.zoo.models import load_model

MODEL = "resnet20"
STEPS = (4, 8, 16, 32)
BATCH = 250
TEST_IMAGES = 500
FEWER_IMAGES, FEWER_ITERATIONS = 128, 50  # of weights calibration, so that the demo is short
FASTER_RATE = 3e-3  # of Adam; at SGD's 1e-5 so few iterations change next to nothing
QUICK_IMAGES, QUICK_STEPS = 200, (4, 8)


def run_demo(out: Path, quick: bool, report: Path | None, seed: int, progress: Progress | None) -> Outcome:
    """Convert the embedded ResNet-20 with three pipelines; a table, and in `out` a plot and the numbers."""
    started = time.perf_counter()
    if report is not None:
        check_output(report)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made: {error.strerror}") from error
    steps = QUICK_STEPS if quick else STEPS
    model, card = load_model(MODEL)
    calibration = Prepared(load_data("demo", "train"), card)
    tested = subset(load_data("demo", "test"), QUICK_IMAGES if quick else TEST_IMAGES, seed)
    test = Loader(tested, card, BATCH)
    ann = accuracy(model, test)
    teacher = None if report is None else model  # a report also compares answers with the ANN's
    runs: dict[str, dict[int, Evaluation]] = {}
    results: dict[str, Result] = {}
    seconds: dict[str, float] = {}
    for name, pipeline in pipelines().items():
        begun = time.perf_counter()
        result = convert(model, calibration, T=steps, pipeline=pipeline, seed=seed, progress=progress)
        seconds[name] = time.perf_counter() - begun
        runs[name] = {T: evaluate(result.at(T), test, progress, ann=teacher) for T in steps}
        results[name] = result
    page = None if report is None else report_results(report, results, model, tested, card, runs, progress)

    final = {name: {T: run.accuracy[-1] for T, run in of.items()} for name, of in runs.items()}
    longest = {name: of[max(steps)] for name, of in runs.items()}
    images = longest["LCP"].images
    title = f"ResNet-20, CIFAR-10, {images:,} test images"
    plot, numbers = out / "accuracy.png", out / "demo.json"
    accuracy_over_time({name: run.accuracy for name, run in longest.items()}, final, ann, title).savefig(plot)
    facts: dict[str, Any] = {
        "model": MODEL,
        "test_images": images,
        "calibration_images": len(calibration),
        "seed": seed,
        "ann": ann,
        "accuracy": final,
        "after_every_step": {name: {T: list(run.accuracy) for T, run in of.items()} for name, of in runs.items()},
        "conversion_seconds": seconds,
        "pipelines": {name: pipeline.to_dict() for name, pipeline in pipelines().items()},
        "note": note(),
        "seconds": time.perf_counter() - started,
        **({} if page is None else {"report": page.facts()}),
    }
    write_whole(numbers, json.dumps(facts, indent=2) + "\n")
    rows = [("ANN", *(percent(ann) for _ in steps), "")]
    rows += [(name, *(percent(of[T]) for T in steps), f"{seconds[name]:.0f}") for name, of in final.items()]
    table = Table(title, ("accuracy %", *(f">T={T}" for T in steps), ">conversion, s"), rows, note())
    lines = [] if page is None else page.lines()
    took = duration(time.perf_counter() - started)
    return Outcome(facts, [table, *lines, Line(f"{plot} and {numbers}; {took} in all")])


def pipelines() -> dict[str, Pipeline]:
    shorter = ACP.changed(Weights, images=FEWER_IMAGES, iterations=FEWER_ITERATIONS, optimiser="adam", lr=FASTER_RATE)
    return {"BASELINE": BASELINE, "LCP": LCP, "ACP": shorter}


def note() -> str:
    full = Weights()
    return (
        f"ACP is shortened here: its weights calibration has {FEWER_ITERATIONS} iterations of Adam on {FEWER_IMAGES} "
        f"images, not {full.iterations:,} of SGD on {full.images:,}."
    )
