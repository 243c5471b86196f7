"""`spikecal check`: show what a network would become, or what a file holds, without converting anything."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show
from spikecal.errors import ConfigError


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model, as for `convert`, or an .snn file.")],
    input_size: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Input size. (default the model's own)")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="Shape of one input: an image (3,32,32), a signal (2,64) or a vector (16)."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Submodule at the end of the network to keep analog; may be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option("-T", metavar="N", help="Time steps to estimate for.")] = 32,
    pipeline: Annotated[str, typer.Option(metavar="NAME", help="Pipeline to estimate for.")] = "auto",
    task: options.Task = None,
    device: options.Device = None,
    target: options.Target = None,
    json: options.Json = False,
) -> None:
    """Show what converts, what is refused and why, and the memory and time needed; or show what a file holds."""
    from spikecal.tasks.check import check_file, check_model
    from spikecal.tasks.fitting import check_target

    if model.endswith(".snn") or (":" not in model and not model.endswith(".onnx") and Path(model).is_file()):
        show(check_file(Path(model)) if target is None else check_target(Path(model), target), json)
    elif target is not None:
        raise ConfigError("--target needs a converted network: convert it first, then check the .snn file")
    else:
        given = options.shape_of(shape, input_size)
        with bars(json):
            outcome = check_model(model, given, tuple(keep or ()), steps, pipeline, task, device)
        show(outcome, json)
