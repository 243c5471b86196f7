"""Train a classifier: what is read, held out, measured and recorded."""

import os
from typing import Any

import torch

from spikecal.data.images import Data, data_fingerprint, unreadable_files
from spikecal.data.prepare import Loader
from spikecal.data.sources import load_data
from spikecal.devices import best_device, device_of
from spikecal.errors import ConfigError, DataError, refuse_unreadable
from spikecal.evaluation import accuracy
from spikecal.progress import Progress, has_bars
from spikecal.tasks.outcome import Line, Outcome, duration, percent, size, unreadable_facts, unreadable_lines
from spikecal.tasks.requests import Training
from spikecal.tasks.task import Say
from spikecal.tasks.training import check_convertible, circumstances, epoch_line
from spikecal.training import loop
from spikecal.training.export import export_weights, training_facts, write_card
from spikecal.training.feed import hold_out
from spikecal.training.recipes import Recipe, paper_recipe
from spikecal.zoo.models import ZOO, build_model, has_bn, load_model, random_images

BATCH = 250
MOST_WORKERS = 8


def train_classifier(asked: Training, progress: Progress | None, say: Say) -> Outcome:
    """Train a classifier, measure it on the test images, write its weights and its card."""
    asked.recipe_or("cifar")  # refuse a bad call at once, not after minutes of reading images
    if asked.backbone is not None:
        raise ConfigError(f"--backbone is for detectors, and {asked.model} is a classifier")
    home, model, strict = device_of(asked.device) or best_device(), asked.model, asked.strict
    network, card = build_model(model)
    images, test = (load_data(asked.data, split, asked.data_root) for split in ("train", "test"))
    if images.labels is None:
        raise DataError(f"{asked.data} has no labels: training needs them")
    side, bn = min(card.size or images.images[0].shape[-2:]), has_bn(network)
    name, recipe = asked.recipe_or(paper_recipe(side, bn))
    say(_announced(model, name, recipe, asked.recipe is None and asked.config is None, bn))

    torch.manual_seed(recipe.seed)
    network, card = build_model(model, _classes(model, images, test))
    height, width = card.size or images.images[0].shape[-2:]
    check_convertible(model, network, random_images(network, card, 1, (height, width)), say)
    used, held_out = hold_out(images, asked.validate, recipe.seed)
    unseen = data_fingerprint(test) != data_fingerprint(images)  # some sources have the same images for both
    measured = Loader(test if unseen else used, card, BATCH)
    if strict and unseen:  # read them first: they are measured last, when a failure would waste the training
        refuse_unreadable(test.name, unreadable_files(test))
    trained = loop.train(
        network,
        used,
        card,
        recipe,
        asked.checkpoint,
        validation=held_out,
        device=home,
        workers=min(MOST_WORKERS, os.cpu_count() or 1) if asked.workers is None else asked.workers,
        every=asked.every,
        strict=strict,
        progress=progress,
        report=None if has_bars(progress) else lambda record: say(epoch_line(record, recipe.epochs)),
    )
    output = asked.output
    dtype = export_weights(network, output, used if asked.half else None, card, recipe.seed)
    stored, _ = load_model(model, output)
    share = accuracy(stored.to(home), measured)
    replaced = {} if strict else unreadable_files(used)  # a resumed training has not read them all
    left_out = {**replaced, **measured.unreadable}
    count, split = len(measured.labels) - len(measured.unreadable), "test" if unseen else "train"
    facts: dict[str, Any] = {
        "model": model,
        "file": output.name,
        "weights": dtype,
        "accuracy": {"split": split, "images": count, "share": share},
        "validation": held_out and {"images": len(held_out), "share": accuracy(stored, Loader(held_out, card, BATCH))},
        "training": {**training_facts(recipe, name, used), **({"unreadable": len(replaced)} if replaced else {})},
        **circumstances(home, trained.seconds),
    }
    write_card(output.with_name(output.name + ".json"), facts)
    history = [vars(record) for record in trained.history]
    more = {"file": str(output), "history": history, "unreadable": unreadable_facts(left_out)}
    took = "" if trained.seconds is None else f", {duration(facts['seconds'])}"
    last = f"{output}: {size(output.stat().st_size)}, {dtype}, {percent(share)} % of {count:,} {split} images{took}"
    return Outcome({**facts, **more}, [*unreadable_lines(left_out), Line(last)])


def _announced(model: str, name: str, recipe: Recipe, chosen: bool, bn: bool) -> str:
    """One line: which recipe, and why. A recipe meant for other networks is never used silently."""
    why = f", the paper's for its size {'with' if bn else 'without'} BN; --recipe chooses another" if chosen else ""
    if chosen and not bn and name == "imagenet":
        why = ", the paper's for its size with BN, as it has none without; --recipe chooses another"
    if not bn and name in ("cifar", "quick"):
        why = f"; {model} has no BN, for which there is {name}-nobn"
    epochs = f"{recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''}"
    return f"{model}: recipe {name}, {epochs}, lr {recipe.lr:g}, seed {recipe.seed}{why}"


def _classes(model: str, *images: Data) -> int | None:
    """How many classes a network of the zoo gets: the data's named classes, or as many as the labels need."""
    if model not in ZOO:
        return None
    labels = [int(data.labels.max()) + 1 for data in images if data.labels is not None]
    return len(images[0].classes) or max([ZOO[model].classes, *labels])
