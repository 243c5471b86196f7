"""What `train` does with detectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spikecal.cli.console import bars, duration, percent, show_json, size
from spikecal.cli.detect import boxes, tell_faults
from spikecal.cli.train import say_epoch
from spikecal.errors import ConfigError, refuse_unreadable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spikecal.training.recipes import Recipe

CHECKED = 64  # training images that half precision is tried on
TOLERANCE = 0.005  # of their mAP at an overlap of 0.5


def detector_recipe(model: str) -> str:
    """The preset of a detector: the paper's where it starts from a trained body, else one for learning from nothing."""
    from spikecal.zoo.detectors import DETECTORS

    return "quick-detect" if model in DETECTORS and not DETECTORS[model].pretrained else "coco"


def train_detector(
    model: str,
    data: str,
    output: Path,
    name: str,
    recipe: "Recipe",
    *,
    backbone: str | None,
    validate: int,
    half: bool,
    checkpoint: Path,
    every: float,
    device: "torch.device",
    workers: int,
    strict: bool,
    json: bool,
) -> None:
    """Train a detector, measure it on the test images, write its weights and its card."""
    import torch

    from spikecal.detection.labels import check_count
    from spikecal.detection.precision import evaluate
    from spikecal.detection.training import train
    from spikecal.training.export import export, training_facts, write_card
    from spikecal.zoo.detectors import DETECTORS, build_detector, load_body, load_detector

    images, test = boxes(data, "train"), boxes(data, "test")
    held_out = boxes(data, "val").sample(validate, recipe.seed) if validate else None
    torch.manual_seed(recipe.seed)
    network = build_detector(model, images.labels)
    check_count(model, network, images)
    if backbone is not None:
        load_body(network, _body_weights(backbone), backbone)
    elif model in DETECTORS and DETECTORS[model].pretrained and not checkpoint.exists():
        raise ConfigError(
            f"{model} keeps stem and BN of its body as they are: give a trained one, such as "
            f"--backbone torchvision:resnet50"
        )
    if strict:
        refuse_unreadable(images.name, images.faults.left_out)
        refuse_unreadable(test.name, test.faults.left_out)
    tell_faults(images)
    for part, title in ((test, "test images"), (held_out, "validation images")):
        if part is not None:
            tell_faults(part, title)
    typer.echo(f"{model}: recipe {name}, {recipe.epochs} epochs, lr {recipe.lr:g}, seed {recipe.seed}", err=True)
    with bars(json) as progress:
        trained = train(
            network,
            model,
            images,
            recipe,
            checkpoint,
            validation=held_out,
            device=device,
            workers=workers,
            every=every,
            strict=strict,
            progress=progress,
            report=None
            if progress is not None
            else lambda record: say_epoch(record, recipe.epochs, "mAP50 ", "validation"),
        )
        seen = images.sample(CHECKED, recipe.seed)
        dtype = export(network, output, (lambda d: evaluate(d, seen).map50) if half else None, TOLERANCE)
        stored = load_detector(model, output) if model in DETECTORS else network
        found = evaluate(stored.to(device), test, progress)
    facts: dict[str, Any] = {
        "model": model,
        "file": output.name,
        "weights": dtype,
        "classes": {str(label): title for label, title in images.classes.items()},
        "test": found.to_dict(),
        "validation": held_out and evaluate(stored, held_out).to_dict(),
        "training": training_facts(recipe, name, images),
        "seconds": None if trained.seconds is None else round(trained.seconds, 1),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.partition("+")[0],
    }
    write_card(output.with_name(output.name + ".json"), facts)
    if json:
        history = [vars(record) for record in trained.history]
        show_json({**facts, "file": str(output), "faults": images.faults.to_dict(), "history": history})
        return
    took = "" if trained.seconds is None else f", {duration(trained.seconds)}"
    precision = f"mAP {percent(found.map)} %, {percent(found.map50)} % at an overlap of 0.5"
    typer.echo(f"{output}: {size(output.stat().st_size)}, {dtype}, {precision} on {found.images:,} test images{took}")


def _body_weights(spec: str) -> "dict[str, Tensor]":
    """A checkpoint's tensors, or those of a network with weights of its own."""
    from spikecal.zoo.models import load_model
    from spikecal.zoo.weights import read_weights

    path = Path(spec)
    return read_weights(path) if path.is_file() else load_model(spec)[0].state_dict()
