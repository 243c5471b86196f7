"""`spikecal demo`: run the whole method on the embedded data, in a few minutes."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show


def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for the plot and the figures. (default spikecal-demo)"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", hidden=True)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only T = 4 and 8, on 200 images: takes a minute or two.")
    ] = False,
    report: options.Report = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Convert the embedded ResNet-20 with the paper's pipelines and AUTO; write a table, a plot and the figures."""
    from spikecal.tasks.demo import run_demo

    folder = options.renamed("--out", out, "--output", output) or Path("spikecal-demo")
    with bars(json) as progress:
        outcome = run_demo(folder, quick, report, seed, progress, device)
    show(outcome, json)
