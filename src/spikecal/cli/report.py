"""`spikecal report`: write one HTML page about the networks of one or several files."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show
from spikecal.files import check_output

TESTED = 1000


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files written by `spikecal convert`.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Page to write.")] = Path(
        "report.html"
    ),
    task: options.Task = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int, typer.Option(min=0, metavar="N", help="Test images, drawn by the seed; 0 shows only what the files hold.")
    ] = TESTED,
    steps: Annotated[
        list[int] | None,
        typer.Option(
            "-T", min=1, metavar="N", help="Show only the networks for N steps; may be repeated. (default all)"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Source model. (default the one in the file, if its weights were not calibrated)"
        ),
    ] = None,
    weights: options.Weights = None,
    neuron: options.Neurons = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Write one HTML page that shows what a conversion did; several files and T are compared side by side."""
    check_output(output, files)
    from spikecal.tasks.report import report_files
    from spikecal.tasks.requests import Reporting

    asked = Reporting(
        model=model,
        weights=options.checkpoint(weights, model),
        data=data,
        data_root=data_root,
        images=images,
        seed=seed,
        strict=strict,
        neurons=neuron or (),
        device=device,
    )
    with bars(json) as progress:
        outcome = report_files(files, output, sorted(set(steps or ())), asked, task, progress, aside)
    show(outcome, json)
