"""`spikecal train`: a network and labelled images in, weights out."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, size
from spikecal.errors import ConfigError, DataError, first_line

if TYPE_CHECKING:
    import torch

    from spikecal.data.images import Data
    from spikecal.training.loop import EpochRecord
    from spikecal.training.recipes import Recipe

BATCH = 250
MINUTE = 60.0
MOST_WORKERS = 8


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
    options.check_output(output)
    options.check_output(checkpoint, [output])
    flags = {
        "epochs": epochs, "batch": batch, "lr": lr, "weight_decay": weight_decay, "precision": precision, "seed": seed,
    }  # fmt: skip
    changes = {name: value for name, value in flags.items() if value is not None}
    configured(recipe, config, "cifar", changes)  # a bad call is said at once, not after minutes of reading images
    if options.is_detection(model, task):
        from spikecal.cli.train_detector import detector_recipe, train_detector

        name, settings = configured(recipe, config, detector_recipe(model), changes)
        train_detector(
            model, data, output, name, settings,
            backbone=backbone, validate=validate, half=half, every=every * MINUTE, device=_device(device), json=json,
            checkpoint=checkpoint, workers=workers or 0, strict=strict,
        )  # fmt: skip
        return
    if backbone is not None:
        raise ConfigError(f"--backbone is for detectors, and {model} is none")
    import torch

    from spikecal.analysis.evaluate import accuracy
    from spikecal.data.images import data_fingerprint, unreadable_files
    from spikecal.data.prepare import Loader
    from spikecal.data.sources import load_data
    from spikecal.errors import refuse_unreadable
    from spikecal.training import loop
    from spikecal.training.export import export_weights, training_facts, write_card
    from spikecal.training.feed import hold_out
    from spikecal.training.recipes import paper_recipe
    from spikecal.zoo.models import build_model, has_bn, load_model

    home = _device(device)
    network, card = build_model(model)
    images, test = (load_data(data, split, data_root) for split in ("train", "test"))
    if images.labels is None:
        raise DataError(f"{data} has no labels: training needs them")
    side = min(card.size or images.images[0].shape[-2:])
    name, settings = configured(recipe, config, paper_recipe(side, has_bn(network)), changes)
    typer.echo(_announced(model, name, settings, recipe is None and config is None, has_bn(network)), err=True)

    torch.manual_seed(settings.seed)
    network, card = build_model(model, _classes(model, images, test))
    used, held_out = hold_out(images, validate, settings.seed)
    unseen = data_fingerprint(test) != data_fingerprint(images)  # some sources have one set of images for both
    measured = Loader(test if unseen else used, card, BATCH)
    if strict and unseen:  # they are measured last, and an hour of reading is less than a training in vain
        refuse_unreadable(test.name, unreadable_files(test))
    with bars(json) as progress:
        trained = loop.train(
            network,
            used,
            card,
            settings,
            checkpoint,
            validation=held_out,
            device=home,
            workers=min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers,
            every=every * MINUTE,
            strict=strict,
            progress=progress,
            report=None if progress is not None else lambda record: say_epoch(record, settings.epochs),
        )
    dtype = export_weights(network, output, used if half else None, card, settings.seed)
    stored, _ = load_model(model, output)
    share = accuracy(stored.to(home), measured)
    replaced = {} if strict else unreadable_files(used)  # a resumed training has not come by all of them
    left_out = {**replaced, **measured.unreadable}
    facts: dict[str, Any] = {
        "model": model,
        "file": output.name,
        "weights": dtype,
        "accuracy": {
            "split": "test" if unseen else "train",
            "images": len(measured.labels) - len(measured.unreadable),
            "share": share,
        },
        "validation": held_out and {"images": len(held_out), "share": accuracy(stored, Loader(held_out, card, BATCH))},
        "training": {**training_facts(settings, name, used), **({"unreadable": len(replaced)} if replaced else {})},
        **_circumstances(home, trained.seconds),
    }
    write_card(output.with_name(output.name + ".json"), facts)
    if json:
        history = [vars(record) for record in trained.history]
        unread = options.unreadable_facts(left_out)
        show_json({**facts, "file": str(output), "history": history, "unreadable": unread})
        return
    options.tell_unreadable(left_out)
    _tell(output, facts)


def _tell(output: Path, facts: dict[str, Any]) -> None:
    """The file and what its card says, in one line."""
    found, seconds = facts["accuracy"], facts["seconds"]
    took = "" if seconds is None else f", {duration(seconds)}"
    typer.echo(
        f"{output}: {size(output.stat().st_size)}, {facts['weights']}, {percent(found['share'])} % of "
        f"{found['images']:,} {found['split']} images{took}"
    )


def configured(recipe: str | None, config: Path | None, paper: str, changes: dict[str, Any]) -> tuple[str, "Recipe"]:
    """The recipe of `--recipe` or `--config`, else the paper's, with what the flags change; and its name."""
    from spikecal.training.recipes import Recipe, resolve

    if recipe is not None and config is not None:
        raise ConfigError("give --recipe or --config, not both: a file can name a preset")
    if config is not None:
        return config.name, Recipe.from_toml(config, resolve(paper)).changed(**changes)
    return (recipe or paper).lower(), resolve(recipe or paper).changed(**changes)


def _announced(model: str, name: str, recipe: "Recipe", chosen: bool, bn: bool) -> str:
    """Which recipe, and why; a recipe that is meant for other networks is not used in silence."""
    why = f", the paper's for its size {'with' if bn else 'without'} BN; --recipe chooses another" if chosen else ""
    if chosen and not bn and name == "imagenet":
        why = ", the paper's for its size with BN; it names none without; --recipe chooses another"
    if not bn and name in ("cifar", "quick"):
        why = f"; {model} has no BN, for which there is {name}-nobn"
    epochs = f"{recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''}"
    return f"{model}: recipe {name}, {epochs}, lr {recipe.lr:g}, seed {recipe.seed}{why}"


def say_epoch(record: "EpochRecord", epochs: int, measure: str = "", images: str = "held-out") -> None:
    """One line an epoch, with what was measured on images that decide nothing."""
    measured = "" if record.accuracy is None else f", {measure}{percent(record.accuracy)} % of the {images} images"
    typer.echo(
        f"epoch {record.epoch}/{epochs}: loss {record.loss:.4f}, lr {record.lr:.4g}{measured} "
        f"({duration(record.seconds)})",
        err=True,
    )


def _circumstances(home: "torch.device", seconds: float | None) -> dict[str, Any]:
    """What the bits depend on beside the recipe, and how long it took."""
    import torch

    return {
        "seconds": None if seconds is None else round(seconds, 1),
        "device": home.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.partition("+")[0],
    }


def _classes(model: str, *images: "Data") -> int | None:
    """How many classes a network of the zoo gets: those that have a name in the data, or as many as labels need."""
    from spikecal.zoo.models import ZOO

    if model not in ZOO:
        return None
    labels = [int(data.labels.max()) + 1 for data in images if data.labels is not None]
    return len(images[0].classes) or max([ZOO[model].classes, *labels])


def _device(name: str | None) -> "torch.device":
    import torch

    if name is None:
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        home = torch.device(name)
        torch.empty(1, device=home)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"there is no device {name!r} here: {first_line(error)}") from error
    return home
