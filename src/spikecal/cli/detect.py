"""What `train`, `convert` and `evaluate` do with detectors."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, show_table, size
from spikecal.cli.train import say_epoch
from spikecal.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spikecal.data.images import Unreadable
    from spikecal.detection.boxes import BoxData
    from spikecal.detection.precision import Precision
    from spikecal.pipeline import Pipeline
    from spikecal.snn.network import Readout
    from spikecal.training.recipes import Recipe

CHECKED = 64  # training images that half precision is tried on
TOLERANCE = 0.005  # of their mAP at an overlap of 0.5


def boxes(data: str | None, split: str) -> "BoxData":
    """The set with boxes that the flag names."""
    from spikecal.detection.sources import load_boxes

    if data is None:
        raise ConfigError("detection needs images with boxes: give --data voc:PATH or --data coco:PATH")
    return load_boxes(data, split)


def tell_faults(data: "BoxData") -> None:
    """Count, on standard error, what was wrong with a set."""
    for sentence in data.faults.sentences():
        typer.echo(f"{data.name}: {sentence}", err=True)


def paper_recipe(model: str) -> str:
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
    json: bool,
) -> None:
    """Train a detector, measure it on the test images, write its weights and its card."""
    import torch

    from spikecal.detection.precision import evaluate
    from spikecal.detection.training import train
    from spikecal.training.export import export, training_facts, write_card
    from spikecal.zoo.detectors import DETECTORS, build_detector, load_body, load_detector

    images, test = boxes(data, "train"), boxes(data, "test")
    held_out = boxes(data, "val").sample(validate, recipe.seed) if validate else None
    torch.manual_seed(recipe.seed)
    network = build_detector(model, images.labels)
    if backbone is not None:
        load_body(network, _body_weights(backbone), backbone)
    elif model in DETECTORS and DETECTORS[model].pretrained and not checkpoint.exists():
        raise ConfigError(
            f"{model} keeps stem and BN of its body as they are: give a trained one, such as "
            f"--backbone torchvision:resnet50"
        )
    tell_faults(images)
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
    typer.echo(f"{output}: {size(output.stat().st_size)}, {dtype}, {told(found)} on {found.images:,} test images{took}")


def told(found: "Precision") -> str:
    return f"mAP {percent(found.map)} %, {percent(found.map50)} % at an overlap of 0.5"


def _body_weights(spec: str) -> "dict[str, Tensor]":
    """A checkpoint's tensors, or those of a network with weights of its own."""
    from spikecal.zoo.models import load_model
    from spikecal.zoo.weights import read_weights

    path = Path(spec)
    return read_weights(path) if path.is_file() else load_model(spec)[0].state_dict()


def convert_detector(
    model: str,
    output: Path,
    *,
    weights: Path | None,
    data: str | None,
    steps: list[int],
    pipeline: "Pipeline",
    count: int | None,
    readout: "Readout | None",
    seed: int,
    workdir: Path | None,
    memory: int | None,
    micro_batch: int | None,
    test: int,
    strict: bool,
    json: bool,
) -> None:
    """Convert a detector's body, write it, and measure the detector on test images."""
    from spikecal.data.card import Card
    from spikecal.detection import evaluate, spiking
    from spikecal.zoo.detectors import load_detector

    detector, images = load_detector(model, weights), boxes(data, "train")
    started = time.perf_counter()
    with bars(json) as progress:
        made = spiking.convert(
            detector,
            images,
            steps,
            pipeline,
            count=spiking.IMAGES if count is None else count,
            readout=readout or spiking.READOUT,
            seed=seed,
            workdir=workdir,
            memory=memory,
            micro_batch=micro_batch,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    if strict:
        options.refuse_unreadable(images.name, {**images.faults.left_out, **made.unreadable})
    made.body.card = Card(name=model, data=data, classes=tuple(images.classes.values())).to_dict()
    made.save(output)  # what comes now only looks at it
    found: dict[str, Precision] = {}
    if test > 0:
        held_out = boxes(data, "test").sample(test, seed)
        with bars(json) as progress:
            found["analog"] = evaluate(made.analog, held_out, progress)
            found |= {str(T): evaluate(made.at(T), held_out, progress) for T in sorted(made.body.networks)}
        made.body.measured = {"detection": {name: one.to_dict() for name, one in found.items()}}
        made.save(output)
    unreadable = {**images.faults.left_out, **made.unreadable, **_unreadable(found)}
    if json:
        facts: dict[str, Any] = {
            "file": str(output),
            "bytes": output.stat().st_size,
            "model": model,
            "task": "detect",
            "T": steps,
        }
        facts |= {"pipeline": pipeline.to_dict(), "seed": seed, "seconds": seconds, "phases": made.body.seconds}
        facts |= {"readout": made.body.snn.readout, "precision": {name: one.to_dict() for name, one in found.items()}}
        facts |= {"records": [dataclasses.asdict(record) for record in made.records]}
        show_json({**facts, "faults": images.faults.to_dict(), "unreadable": options.unreadable_facts(unreadable)})
        return
    tell_faults(images)
    show_precision(str(output), found)
    options.tell_unreadable(made.unreadable | _unreadable(found))
    typer.echo(f"{output}: {size(output.stat().st_size)}, {duration(seconds)}")


def evaluate_detector(
    file: Path,
    model: str,
    *,
    weights: Path | None,
    data: str | None,
    steps: list[int] | None,
    images: int | None,
    seed: int,
    strict: bool,
    json: bool,
) -> None:
    """mAP of a detector with the bodies in a file, and with its own."""
    from spikecal import inspect
    from spikecal.detection import evaluate, spiking
    from spikecal.zoo.detectors import load_detector

    detector = load_detector(model, weights)
    if weights is None and inspect(file).get("detector") not in (None, spiking.rest_print(detector)):
        raise ConfigError(f"{file} was made from other weights than those that {model} has of its own: give --weights")
    bodies = {T: spiking.load(file, detector, T) for T in sorted(set(steps or spiking.steps_in(file)))}
    test = boxes(data, "test").sample(images, seed)
    with bars(json) as progress:
        found = {"analog": evaluate(detector, test, progress)}
        found |= {str(T): evaluate(body, test, progress) for T, body in bodies.items()}
    unreadable = _unreadable(found)
    if strict:
        options.refuse_unreadable(test.name, {**test.faults.left_out, **unreadable})
    if json:
        facts: dict[str, Any] = {"file": str(file), "model": model, "task": "detect", "data": test.name}
        facts |= {"precision": {name: one.to_dict() for name, one in found.items()}, "faults": test.faults.to_dict()}
        show_json({**facts, "unreadable": options.unreadable_facts(unreadable)})
        return
    tell_faults(test)
    show_precision(str(file), found)
    options.tell_unreadable(unreadable)


def show_precision(title: str, found: "dict[str, Precision]") -> None:
    """A line a network: mAP, and of each class at an overlap of 0.5."""
    if not found:
        return
    names = list(next(iter(found.values())).classes)
    rows = [
        (name, percent(one.map), percent(one.map50), *(percent(one.classes.get(c, 0.0)) for c in names))
        for name, one in found.items()
    ]
    images = next(iter(found.values())).images
    caption = f"{images:,} test images; mAP: over overlaps of 0.5 to 0.95; the others at 0.5"
    show_table(title, (">T", ">mAP %", ">mAP50 %", *(f">{name} %" for name in names)), rows, caption)


def _unreadable(found: "dict[str, Precision]") -> "Unreadable":
    return {file: reason for one in found.values() for file, reason in one.unreadable.items()}
