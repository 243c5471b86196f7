"""`spikecal demo`: the whole method on what the package carries, in a few minutes."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show


def demo(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="For the plot and the numbers. (default spikecal-demo)"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", hidden=True)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="T = 4 and 8 on 200 images: a minute or two.")] = False,
    report: options.Report = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Convert the embedded ResNet-20 with the paper's pipelines and with AUTO; a table, a plot and the numbers."""
    from spikecal.tasks.demo import run_demo

    folder = options.renamed("--out", out, "--output", output) or Path("spikecal-demo")
    with bars(json) as progress:
        outcome = run_demo(folder, quick, report, seed, progress, device)
    show(outcome, json)
