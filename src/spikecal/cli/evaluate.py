"""`spikecal evaluate`: measure accuracy, steps and energy of the networks in a file."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `spikecal convert`.")],
    task: options.Task = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed. (default all)")
    ] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option(
            "-T",
            min=1,
            metavar="N",
            help="Only the network for N steps, shown after every step; may be repeated. (default all)",
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(min=0, max=100, metavar="POINTS", help="Report the smallest T within POINTS of the ANN."),
    ] = None,
    exit: Annotated[
        float | None,
        typer.Option(
            "--exit",
            metavar="SHARE",
            help="Stop each image once its answer is settled, with this promised agreement with the ANN, such as 0.99.",
        ),
    ] = None,
    exit_images: Annotated[
        int | None,
        typer.Option(min=4, metavar="N", help="Calibration images to set the rule of --exit on. (default 2,048)"),
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
    """Measure the networks in a file: accuracy after every step, steps needed, energy and firing rates."""
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
