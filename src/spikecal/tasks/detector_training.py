"""Train a detector: what is read, measured and recorded."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.detection.boxes import BoxData
from spikecal.detection.labels import check_count
from spikecal.detection.precision import evaluate
from spikecal.detection.sources import load_boxes
from spikecal.detection.training import train
from spikecal.devices import best_device, device_of
from spikecal.errors import ConfigError, refuse_unreadable
from spikecal.progress import Progress, has_bars
from spikecal.tasks.outcome import Line, Outcome, duration, percent, size
from spikecal.tasks.requests import Training
from spikecal.tasks.task import Say
from spikecal.tasks.training import check_convertible, circumstances, epoch_line
from spikecal.training.export import export, training_facts, write_card
from spikecal.zoo.detectors import DETECTORS, body_of, build_detector, load_body, load_detector
from spikecal.zoo.models import load_model
from spikecal.zoo.weights import read_weights

TRIED = (3, 64, 64)  # shape of the image that shows whether its body converts
CHECKED = 64  # training images that half precision is tested on
TOLERANCE = 0.005  # of their mAP at IoU 0.5


def train_detector(asked: Training, progress: Progress | None, say: Say) -> Outcome:
    """Train a detector, measure it on the test images, write its weights and its card."""
    model, output = asked.model, asked.output
    name, recipe = asked.recipe_or(detector_recipe(model))
    device = device_of(asked.device) or best_device()
    images, test = load_boxes(asked.data, "train"), load_boxes(asked.data, "test")
    held_out = load_boxes(asked.data, "val").sample(asked.validate, recipe.seed) if asked.validate else None
    torch.manual_seed(recipe.seed)
    network = _untrained(asked, images)
    if asked.strict:
        refuse_unreadable(images.name, images.faults.left_out)
        refuse_unreadable(test.name, test.faults.left_out)
    for part, title in ((images, ""), (test, "test images"), (held_out, "validation images")):
        for sentence in [] if part is None else part.told(title):
            say(sentence)
    say(f"{model}: recipe {name}, {recipe.epochs} epochs, lr {recipe.lr:g}, seed {recipe.seed}")
    check_convertible(model, body_of(network), torch.rand(1, *TRIED, generator=torch.Generator()), say)
    trained = train(
        network,
        model,
        images,
        recipe,
        asked.checkpoint,
        validation=held_out,
        device=device,
        workers=asked.workers or 0,
        every=asked.every,
        strict=asked.strict,
        progress=progress,
        report=None
        if has_bars(progress)
        else lambda record: say(epoch_line(record, recipe.epochs, "mAP50 ", "validation")),
    )
    seen = images.sample(CHECKED, recipe.seed)
    dtype = export(network, output, (lambda d: evaluate(d, seen).map50) if asked.half else None, TOLERANCE)
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
        **circumstances(device, trained.seconds),
    }
    write_card(output.with_name(output.name + ".json"), facts)
    history = [vars(record) for record in trained.history]
    took = "" if trained.seconds is None else f", {duration(trained.seconds)}"
    precision = f"mAP {percent(found.map)} %, {percent(found.map50)} % at IoU 0.5"
    last = f"{output}: {size(output.stat().st_size)}, {dtype}, {precision} on {found.images:,} test images{took}"
    more = {"file": str(output), "faults": images.faults.to_dict(), "history": history}
    return Outcome({**facts, **more}, [Line(last)])


def detector_recipe(model: str) -> str:
    """The preset of a detector: the paper's if it starts from a trained body, else one for training from scratch."""
    return "quick-detect" if model in DETECTORS and not DETECTORS[model].pretrained else "coco"


def _untrained(asked: Training, images: BoxData) -> nn.Module:
    """The detector as training starts, with a trained body if it needs one."""
    network = build_detector(asked.model, images.labels)
    check_count(asked.model, network, images)
    pretrained = asked.model in DETECTORS and DETECTORS[asked.model].pretrained
    if asked.backbone is not None:
        load_body(network, _body_weights(asked.backbone), asked.backbone)
    elif pretrained and not asked.checkpoint.exists():
        raise ConfigError(
            f"{asked.model} does not train the stem and BN of its body: give a trained body, such as "
            f"--backbone torchvision:resnet50"
        )
    return network


def _body_weights(spec: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, or of a network with weights of its own."""
    path = Path(spec)
    return read_weights(path) if path.is_file() else load_model(spec)[0].state_dict()
