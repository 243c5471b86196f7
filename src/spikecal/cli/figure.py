"""`spikecal figure`: the paper's figures, each by its name."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show

TESTED = 500


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which figure; without a name they are listed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The picture to write: a.png, .svg or .pdf.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="The network, several for `bn`. (default the figure's)")
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
            min=1, metavar="N", help="Of weights calibration, per layer: 5,000 are the paper's, fewer are done by Adam."
        ),
    ] = 200,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Calibration samples of `samples`.")] = 3,
    layer: Annotated[str | None, typer.Option(metavar="NAME", help="Of `threshold`. (default the middle one)")] = None,
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
