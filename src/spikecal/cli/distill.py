"""`spikecal distill`: make calibration images from a network whose data is not available."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show, silent
from spikecal.cli.several import written


def distill(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, such as images.npz.")],
    weights: options.Weights = None,
    others: options.With = None,
    count: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="Number of images. (default 1,024)")
    ] = None,
    side: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Image size. (default the model's own)")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Iterations per batch. (default 40)")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images per batch. (default 128, fewer if they are large)"),
    ] = None,
    seed: options.Seed = 0,
    workdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished batches here; rerun to resume.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Contact sheet to write. (default the output's name with .png)")
    ] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Make calibration images from one or several networks alone, and write them to a file."""
    from spikecal.tasks.distilling import Distillation, distill_images

    asked = Distillation(
        model=model, weights=options.checkpoint(weights, model),
        others=[options.name_and_file(entry) for entry in others or []],
        output=written(output), sheet=sheet and written(sheet), images=count, size=side, iterations=iterations,
        batch=batch, seed=seed, workdir=workdir, device=device,
    )  # fmt: skip
    with bars(json) as progress:
        outcome = distill_images(asked, progress, silent if json else aside)
    show(outcome, json)
