"""`spikecal figure`: draw one of the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show

TESTED = 500


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the figure; without it, the figures are listed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Picture to write: .png, .svg or .pdf.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Network to show; may be repeated for `bn`. (default the figure's)"),
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option(metavar="[MODEL=]FILE", help="Weights of a network; may be repeated.")
    ] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    steps: Annotated[
        list[int] | None, typer.Option("-T", min=1, metavar="N", help="Time steps. (default the paper's)")
    ] = None,
    images: Annotated[int, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed.")] = TESTED,
    iterations: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Iterations of weights calibration per layer: 5,000 in the paper; fewer use Adam."
        ),
    ] = 200,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="For `samples`: calibration samples to draw.")] = 3,
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="For `threshold`: the layer. (default the middle one)")
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Draw one of the paper's figures."""
    from spikecal.figures import Settings
    from spikecal.tasks.figures import Drawing, draw_figure, list_figures

    if name is None:
        show(list_figures(), json)
        return
    settings = Settings(T=tuple(sorted(set(steps or ()))), iterations=iterations, seeds=seeds, seed=seed, layer=layer)
    asked = Drawing(
        name=name, output=output, models=model or [], weights=options.checkpoints(weights or [], model or []),
        data=data, data_root=data_root, images=images, settings=settings, device=device,
    )  # fmt: skip
    with bars(json) as progress:
        outcome = draw_figure(asked, progress, aside)
    show(outcome, json)
