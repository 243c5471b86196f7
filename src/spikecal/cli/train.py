"""`spikecal train`: a network and labelled images in, weights out."""

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
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: w.safetensors.")],
    task: options.Task = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cifar, cifar-nobn, imagenet, quick, quick-nobn, coco or quick-detect. (default the paper's)",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe as TOML.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the images.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images a step.")] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="Highest learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="X", help="Of all parameters.")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="float32, or bfloat16 for faster steps. (default float32)")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed, the same bits. (default 0)")] = None,
    validate: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Hold out N training images, of boxes the val split's, measured after every epoch."
        ),
    ] = 0,
    half: Annotated[
        bool, typer.Option("--half", help="Half precision, if accuracy on training images stays what it is.")
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(metavar="MODEL|FILE", help="A detector's body starts from this classifier, trained."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="State to go on from when killed. (default beside the output)"),
    ] = None,
    every: Annotated[float, typer.Option(min=0, metavar="MINUTES", help="Between checkpoints inside an epoch.")] = 5,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda or mps. (default the best)")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Processes that augment images. (default one a core, 8 at most)"),
    ] = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    json: options.Json = False,
) -> None:
    """Train a network and write its weights; killed, the same command goes on where it was."""
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
