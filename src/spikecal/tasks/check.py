"""Look without changing anything: what a network would become, what a file holds, what a dataset holds."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from spikecal.analysis.checking import COLUMNS, linear_lines, stage_rows
from spikecal.analysis.estimate import estimate
from spikecal.analysis.inspection import inspect
from spikecal.arguments import steps_of
from spikecal.data.images import Data, Unreadable, none_readable, unreadable_files
from spikecal.devices import CPU, device_of
from spikecal.errors import ConfigError, ConversionError, DataError, FileError, SpikecalError, refuse_unreadable
from spikecal.kernels import described
from spikecal.pipeline import resolve_plan
from spikecal.progress import Progress, Silent
from spikecal.report.source import measured_of
from spikecal.tasks.choose import task_of_data, task_of_model
from spikecal.tasks.choosing import choice_tables
from spikecal.tasks.outcome import (
    Line,
    Outcome,
    Table,
    asides,
    duration,
    in_flags,
    size,
    unreadable_facts,
    unreadable_lines,
)
from spikecal.tasks.waiting import time_tables
from spikecal.zoo.models import noise, random_images

BATCH = 64


def check_file(path: Path) -> Outcome:
    """Show the bytes of a file's parameter sets, when its networks answer, and where their layers wait."""
    found = inspect(path)
    sets: dict[str, dict[str, int]] = found["parameter_bytes"]
    kinds = list(dict.fromkeys(kind for of in sets.values() for kind in of))
    order = [name for name in ("shared", *(f"T={T}" for T in found["T"])) if name in sets]
    rows = [
        (name, *(f"{sets[name].get(kind, 0):,}" for kind in kinds), f"{sum(sets[name].values()):,}") for name in order
    ]
    columns = ("parameter set", *(f">{kind}" for kind in kinds), ">all")
    distilled = found.get("calibration") == "distilled"
    lines = [Line("calibrated on images distilled from the network")] if distilled else []
    held = f"T = {', '.join(map(str, found['T']))}; {found['nodes']} operations; {size(found['bytes'])} in total"
    tables = [
        Table(f"{path}: bytes", columns, rows),
        *choice_tables(found.get("choices", {})),
        *time_tables(found["timing"], _kept(path, found)),
    ]
    return Outcome(found, [*tables, *lines, Line(held)])


def _kept(path: Path, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The measurements that a file holds of its networks, if any."""
    try:
        return None if found.get("measured") is None else measured_of(found["measured"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FileError(f"{path} holds invalid measurements: {error}") from error


def check_model(
    model: str,
    shape: tuple[int, ...] | None,
    keep: tuple[str, ...],
    T: int,
    name: str,
    task: str | None,
    device: str | None = None,
) -> Outcome:
    """Show the stages of a network, and what converting it with the named pipeline would take.

    `shape` is that of one input; 0 channels means as many as the network takes.
    """
    (T,) = steps_of(T)
    network, card, pipeline, timed = task_of_model(model, task).part(model, resolve_plan(name))
    if shape is None and card.size is None:
        raise ConfigError(
            f"{model} does not state its input shape: give --size H W, or --shape C,H,W (a signal: 2,64, a vector: 16)"
        )
    shape = shape or (0, *(card.size or ()))
    images = noise(timed, shape) if shape[0] else random_images(network, card, timed, (shape[1], shape[2]))
    shape = tuple(images.shape[1:])
    home = device_of(device) or CPU
    network, images = network.to(home), images.to(home)
    try:
        found = estimate(network, images, keep, T, pipeline)
    except ConversionError as error:
        return _refused(model, error)
    facts: dict[str, Any] = {"model": model, "converts": True, "input": list(shape[1:]), "shape": list(shape)}
    facts["stages"] = found.stages
    facts["linear_values"] = asdict(found.linear)
    facts["estimate"] = {"T": T, "pipeline": name, "seconds": found.seconds, "bytes": found.bytes}
    facts["loops"] = described()
    facts["estimate"]["energy_ratio"] = found.energy.ratio
    rows = stage_rows(found.stages)
    cost = (
        f"{len(rows)} stages; {name} at T = {T} would take about {duration(found.seconds)} and "
        f"{size(found.bytes)} of memory for {pipeline.fixed.images:,} inputs of {'×'.join(map(str, shape))} "
        f"(with less, it uses the disk); loops by {facts['loops']}"
    )
    told = [*linear_lines(found.linear), cost, found.energy.sentence()]
    return Outcome(facts, [Table(f"{model}: converts", COLUMNS, rows), *map(Line, told)])


def _refused(model: str, error: ConversionError) -> Outcome:
    refused = [{"layer": e.layer, "found": e.found, "hint": in_flags(e.hint)} for e in (error, *error.others)]
    table = Table(f"{model}: refused", ("layer", "found", "what to do"), [tuple(one.values()) for one in refused])
    places = f"{len(refused)} place{'s' if len(refused) > 1 else ''}"
    failure = SpikecalError(f"{model} cannot be converted: {places} refused")
    return Outcome({"model": model, "converts": False, "refused": refused}, [table], failure)


def check_data(data: str, split: str, root: Path | None, strict: bool, progress: Progress | None) -> Outcome:
    """Read every image of a dataset; with `strict`, unreadable images are an error."""
    read = task_of_data(data).labelled(data, split, root)
    unreadable = _unreadable(read.images, progress or Silent())
    if len(unreadable) == len(read.images):
        raise none_readable(data, unreadable)
    count, classes, reach = len(read.images) - len(unreadable), read.classes, _reach(read.images)
    facts = {"data": data, "split": split, "images": count, "classes": classes, **read.facts, "range": reach}
    of = "no labels" if classes is None else f"{classes:,} class{'es' if classes > 1 else ''}"
    floating = "" if reach is None else f", floats from {reach[0]:g} to {reach[1]:g}"
    parts = [Line(f"{data}, {split}: {count:,} images, {of}{floating}"), *asides(read.faults)]
    parts += unreadable_lines(unreadable, and_so="")
    failure = None
    try:
        if strict:
            refuse_unreadable(data, {**read.left_out, **unreadable})
    except DataError as error:
        failure = error
    return Outcome({**facts, "unreadable": unreadable_facts(unreadable)}, parts, failure)


def _unreadable(images: Data, progress: Progress) -> Unreadable:
    found: Unreadable = {}
    progress.phase(f"reading {images.name}", -(-len(images) // BATCH), None)
    for start in range(0, len(images), BATCH):
        found |= unreadable_files(images, range(start, min(start + BATCH, len(images))))
        progress.advance()
    return found


def _reach(data: Data) -> list[float] | None:
    """Least and greatest value of floats, which show whether they are normalised as a network needs them."""
    if not isinstance(data.images, Tensor) or not data.images.is_floating_point():
        return None
    return [round(float(value), 4) for value in data.images.aminmax()]
