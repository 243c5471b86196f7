"""`spikecal train`: train a network on labelled images and write its weights."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show
from spikecal.cli.several import written
from spikecal.errors import ConfigError
from spikecal.files import check_output

MINUTE = 60.0


def train(
    model: options.Model,
    data: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="A name from `spikecal datasets`, folder:PATH, npz:PATH or file.py:function."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, such as w.safetensors.")
    ],
    task: options.Task = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cifar, cifar-nobn, imagenet, quick, quick-nobn, coco or quick-detect. (default the paper's)",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Recipe as a TOML file.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the training images.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images per step.")] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="Highest learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="X", help="Weight decay of all parameters.")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="float32, or bfloat16 for faster steps. (default float32)")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The same seed gives the same bits. (default 0)")
    ] = None,
    validate: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Hold out N training images (for a detector, images of the val split) and measure them every epoch.",
        ),
    ] = 0,
    half: Annotated[
        bool,
        typer.Option("--half", help="Store half precision if that leaves the accuracy on training images unchanged."),
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(metavar="MODEL|FILE", help="Trained classifier that a detector's body starts from."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to resume from. (default the output's name with .checkpoint)"),
    ] = None,
    every: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="Time between checkpoints within an epoch.")
    ] = 5,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Where to compute: cpu, cuda or mps. (default an accelerator, if there is one)"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Processes that augment images. (default one per core, at most 8)"),
    ] = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    json: options.Json = False,
) -> None:
    """Train a network and write its weights; rerun to resume."""
    if output.suffix != ".safetensors":
        raise ConfigError(
            f"weights are written as safetensors: name the file {output.with_suffix('.safetensors').name}"
        )
    checkpoint = checkpoint or output.with_name(output.name + ".checkpoint")
    output = written(output)
    check_output(output)
    check_output(checkpoint, [output])
    flags = {
        "epochs": epochs, "batch": batch, "lr": lr, "weight_decay": weight_decay, "precision": precision, "seed": seed,
    }  # fmt: skip
    changes = {name: value for name, value in flags.items() if value is not None}
    from spikecal.tasks.choose import task_of_model
    from spikecal.tasks.requests import Training

    asked = Training(
        model=model, data=data, data_root=data_root, output=output, recipe=recipe, config=config, changes=changes,
        backbone=backbone, validate=validate, half=half, checkpoint=checkpoint, every=every * MINUTE, device=device,
        workers=workers, strict=strict,
    )  # fmt: skip
    chosen = task_of_model(model, task)
    with bars(json) as progress:
        outcome = chosen.train(asked, progress, aside)
    show(outcome, json)
