"""`spikecal distill`: images for calibration out of a network, where its data is not at hand."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show, silent
from spikecal.cli.several import written


def distill(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: images.npz.")],
    weights: options.Weights = None,
    others: options.With = None,
    count: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Images. (default 1,024)")] = None,
    side: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Of the images. (default the model's own)")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of every batch. (default 40)")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images made together. (default 128, fewer if they are large)"),
    ] = None,
    seed: options.Seed = 0,
    workdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished batches here: killed, the same command goes on.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The picture of the images. (default beside the output, .png)")
    ] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Make calibration images from a network alone, or from several, and write them to a file."""
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
