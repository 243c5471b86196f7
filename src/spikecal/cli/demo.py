"""`spikecal demo`: the whole method on what the package carries, in a few minutes."""

import json as json_text
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show_json, show_parts, show_table
from spikecal.errors import ConfigError
from spikecal.files import write_whole
from spikecal.tasks.outcome import duration, percent

if TYPE_CHECKING:
    from spikecal.pipeline import Pipeline

MODEL = "resnet20"
STEPS = (4, 8, 16, 32)
BATCH = 250
TEST_IMAGES = 500
FEWER_IMAGES, FEWER_ITERATIONS = 128, 50  # of weights calibration, so that the demo is short
FASTER_RATE = 3e-3  # of Adam; at SGD's 1e-5 so few iterations change next to nothing
QUICK_IMAGES, QUICK_STEPS = 200, (4, 8)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For the plot and the numbers.")] = Path("spikecal-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="T = 4 and 8 on 200 images: about a minute.")] = False,
    report: options.Report = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Convert the embedded ResNet-20 with three pipelines; a table, a plot and the numbers."""
    import spikecal
    from spikecal.analysis.evaluate import accuracy
    from spikecal.analysis.plots import accuracy_over_time
    from spikecal.data.prepare import Loader, Prepared
    from spikecal.data.sources import load_data, subset
    from spikecal.tasks.pages import report_results
    from spikecal.zoo.models import load_model

    started = time.perf_counter()
    if report is not None:
        options.check_output(report)
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
    runs: dict[str, dict[int, Any]] = {}
    results: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    with bars(json) as progress:
        for name, pipeline in pipelines().items():
            begun = time.perf_counter()
            result = spikecal.convert(model, calibration, T=steps, pipeline=pipeline, seed=seed, progress=progress)
            seconds[name] = time.perf_counter() - begun
            runs[name] = {T: spikecal.evaluate(result.at(T), test, progress, ann=teacher) for T in steps}
            results[name] = result
        written = None
        if report is not None:
            written = report_results(report, results, model, tested, card, runs, progress)

    longest = max(steps)
    final = {name: {T: run.accuracy[-1] for T, run in of.items()} for name, of in runs.items()}
    images = runs["LCP"][longest].images
    title = f"ResNet-20, CIFAR-10, {images:,} test images"
    curves = {name: of[longest].accuracy for name, of in runs.items()}
    plot, numbers = out / "accuracy.png", out / "demo.json"
    accuracy_over_time(curves, final, ann, title).savefig(plot)
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
    }
    if written is not None:
        facts["report"] = written.facts()
    write_whole(numbers, json_text.dumps(facts, indent=2) + "\n")
    if json:
        show_json(facts)
        return
    rows = [("ANN", *(percent(ann) for _ in steps), "")]
    rows += [(name, *(percent(of[T]) for T in steps), f"{seconds[name]:.0f}") for name, of in final.items()]
    columns = ("accuracy %", *(f">T={T}" for T in steps), ">conversion, s")
    show_table(title, columns, rows, note())
    if written is not None:
        show_parts(written.lines())
    typer.echo(f"{plot} and {numbers}; {duration(time.perf_counter() - started)} in all")


def pipelines() -> dict[str, "Pipeline"]:
    from spikecal.calibration.calibrators import Weights
    from spikecal.pipeline import ACP, BASELINE, LCP

    shorter = ACP.changed(Weights, images=FEWER_IMAGES, iterations=FEWER_ITERATIONS, optimiser="adam", lr=FASTER_RATE)
    return {"BASELINE": BASELINE, "LCP": LCP, "ACP": shorter}


def note() -> str:
    from spikecal.calibration.calibrators import Weights

    full = Weights()
    return (
        f"ACP is shortened here: its weights calibration has {FEWER_ITERATIONS} iterations of Adam on {FEWER_IMAGES} "
        f"images, not {full.iterations:,} of SGD on {full.images:,}."
    )
