"""`spikecal evaluate`: accuracy, steps and energy of the networks in a file."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `spikecal convert` wrote.")],
    task: options.Task = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed. (default all)")
    ] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option("-T", min=1, metavar="N", help="Which networks of the file, with every step. (default all)"),
    ] = None,
    within: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="POINTS", help="Which T is that near the ANN?")
    ] = None,
    exit: Annotated[
        float | None,
        typer.Option(
            "--exit", metavar="SHARE", help="Stop an image when its answer is settled; 0.99 of them as the ANN's."
        ),
    ] = None,
    exit_images: Annotated[
        int | None, typer.Option(min=4, metavar="N", help="Calibration images for the rule of --exit. (default 2,048)")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The network it came from. (default what is left of it inside)")
    ] = None,
    weights: options.Weights = None,
    neuron: options.Neurons = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Measure the networks in a file: accuracy after every step, the steps they need, energy, how often they fire."""
    from spikecal.analysis.inspection import inspect
    from spikecal.tasks.choose import task_of_file
    from spikecal.tasks.requests import Evaluation

    info = inspect(file)
    chosen = task_of_file(str(file), "detector" in info, info.get("card"), model, task)
    asked = Evaluation(
        file=file, model=model, weights=options.checkpoint(weights, model), data=data, data_root=data_root,
        steps=sorted(set(steps or ())), images=images, seed=seed, strict=strict, within=within, neurons=neuron or (),
        device=device, exit=exit, exit_images=exit_images,
    )  # fmt: skip
    with bars(json) as progress:
        outcome = chosen.evaluate(asked, progress)
    show(outcome, json)
