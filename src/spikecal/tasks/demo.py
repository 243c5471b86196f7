"""The whole method on embedded data, in a few minutes."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikecal.analysis.evaluate import Evaluation
from spikecal.analysis.plots import accuracy_over_time
from spikecal.calibration.calibrators import Weights
from spikecal.conversion import convert
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import load_data, subset
from spikecal.errors import ConfigError
from spikecal.evaluation import accuracy, evaluate
from spikecal.files import check_folder, check_output, write_whole
from spikecal.pipeline import ACP, BASELINE, LCP, Auto, Plan
from spikecal.progress import Progress
from spikecal.result import Result
from spikecal.tasks.outcome import Line, Outcome, Table, duration, percent
from spikecal.tasks.pages import report_results
from spikecal.zoo.models import load_model

MODEL = "resnet20"
STEPS = (4, 8, 16, 32)
BATCH = 250
TEST_IMAGES = 500
FEWER_IMAGES, FEWER_ITERATIONS = 128, 50  # of weights calibration, to keep the demo short
FASTER_RATE = 3e-3  # of Adam; at SGD's 1e-5 so few iterations change next to nothing
QUICK_IMAGES, QUICK_STEPS = 200, (4, 8)
AUTO_IMAGES = 128  # for AUTO, a quarter of them held out: trying pipelines is expensive
AUTO_TO = 16  # longest network it makes, in steps
WAITS = 10  # steps that an answer may come after T
WAITS_TO = 8  # longest network that waits: placing waits is expensive, and gains less as T grows


@dataclass(frozen=True)
class Row:
    """One row of the table: how its networks are made, on how many images, their latency, and the largest T."""

    plan: Plan
    images: int | None = None  # all of them
    latency: str | None = None
    most: int = max(STEPS)


@dataclass(frozen=True)
class Made:
    """The networks of a row, with their measurements."""

    result: Result
    seconds: float
    runs: Mapping[int, Evaluation]

    @property
    def final(self) -> dict[int, float]:
        return {T: run.accuracy[-1] for T, run in self.runs.items()}

    @property
    def longest(self) -> Evaluation:
        return self.runs[max(self.runs)]


def run_demo(
    out: Path, quick: bool, report: Path | None, seed: int, progress: Progress | None, device: str | None = None
) -> Outcome:
    """Convert the embedded ResNet-20 in several ways; show a table, and write a plot and the figures to `out`."""
    started = time.perf_counter()
    if report is not None:
        check_output(report)
    check_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be created: {error.strerror}") from error
    steps = QUICK_STEPS if quick else STEPS
    model, card = load_model(MODEL, device=device)
    images = load_data("demo", "train")
    tested = subset(load_data("demo", "test"), QUICK_IMAGES if quick else TEST_IMAGES, seed)
    test = Loader(tested, card, BATCH)
    ann = accuracy(model, test)
    teacher = None if report is None else model  # a report also compares answers with the ANN's
    made: dict[str, Made] = {}
    for name, row in rows().items():
        begun = time.perf_counter()
        result = convert(
            model,
            Prepared(subset(images, row.images, seed), card),
            T=[T for T in steps if T <= row.most],
            pipeline=row.plan,
            latency=row.latency,
            seed=seed,
            records=report is not None,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
        runs = {T: evaluate(network, test, progress, ann=teacher) for T, network in result.networks.items()}
        made[name] = Made(result, seconds, runs)
    page = None
    if report is not None:
        pairs = {name: (of.result, of.runs) for name, of in made.items()}
        page = report_results(report, pairs, model, tested, card, progress)

    title = f"ResNet-20, CIFAR-10, {made['LCP'].longest.images:,} test images"
    plot, numbers = out / "accuracy.png", out / "demo.json"
    _draw(made, ann, title, plot)
    facts: dict[str, Any] = {
        "model": MODEL,
        "test_images": made["LCP"].longest.images,
        "calibration_images": len(images),
        "seed": seed,
        "ann": ann,
        **_facts(made),
        "note": note(),
        "seconds": time.perf_counter() - started,
        **({} if page is None else {"report": page.facts()}),
    }
    write_whole(numbers, json.dumps(facts, indent=2) + "\n")
    lines = [("ANN", *(percent(ann) for _ in steps), "")]
    lines += [
        (name, *(percent(of.final[T]) if T in of.final else "" for T in steps), f"{of.seconds:.0f}")
        for name, of in made.items()
    ]
    table = Table(title, ("accuracy %", *(f">T={T}" for T in steps), ">conversion, s"), lines, note())
    said = [] if page is None else page.lines()
    took = duration(time.perf_counter() - started)
    return Outcome(facts, [table, *said, Line(f"{plot} and {numbers}; {took} in total")])


def _draw(made: Mapping[str, Made], ann: float, title: str, path: Path) -> None:
    """Curves of the longest networks, and the end points of all of them, by latency."""
    curves = {name: of.longest.accuracy for name, of in made.items()}
    points = {name: {run.latency: run.accuracy[-1] for run in of.runs.values()} for name, of in made.items()}
    latencies = {name: of.longest.latency for name, of in made.items()}
    accuracy_over_time(curves, points, ann, title, latencies).savefig(path)


def _facts(made: Mapping[str, Made]) -> dict[str, Any]:
    """By row, and in a row by T."""
    return {
        "accuracy": {name: of.final for name, of in made.items()},
        "latency": {name: {T: run.latency for T, run in of.runs.items()} for name, of in made.items()},
        "kept": {
            name: {T: found["kept"] for T, found in of.result.origin.choices.items()}
            for name, of in made.items()
            if of.result.origin.choices
        },
        "after_every_step": {name: {T: list(run.accuracy) for T, run in of.runs.items()} for name, of in made.items()},
        "conversion_seconds": {name: of.seconds for name, of in made.items()},
        "pipelines": {name: row.plan.to_dict() for name, row in rows().items()},
    }


def rows() -> dict[str, Row]:
    shorter = ACP.changed(Weights, images=FEWER_IMAGES, iterations=FEWER_ITERATIONS, optimiser="adam", lr=FASTER_RATE)
    auto = Auto(effort="low")
    return {
        "BASELINE": Row(BASELINE),
        "LCP": Row(LCP),
        "ACP": Row(shorter),
        "AUTO": Row(auto, AUTO_IMAGES, most=AUTO_TO),
        f"AUTO, latency T+{WAITS}": Row(auto, AUTO_IMAGES, f"+{WAITS}", WAITS_TO),
    }


def note() -> str:
    full = Weights()
    return (
        f"ACP is shortened here: its weights calibration runs {FEWER_ITERATIONS} iterations of Adam on {FEWER_IMAGES} "
        f"images, not {full.iterations:,} of SGD on {full.images:,}. So is AUTO: it uses low effort on {AUTO_IMAGES} "
        f"images, up to T={AUTO_TO}. With latency T+{WAITS}, layers may wait and answers come up to {WAITS} steps "
        f"later; these networks are shown up to T={WAITS_TO}."
    )
