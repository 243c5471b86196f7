"""`spikecal check`: what a network would become, or what is in a file, without converting anything."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import show_json, show_table
from spikecal.errors import ConfigError, ConversionError, SpikecalError
from spikecal.tasks.outcome import duration, size


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model as for `convert`, or a .snn file.")],
    input_size: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Input size. (default the model's own)")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Submodule that stays analog, at the network's end.")
    ] = None,
    steps: Annotated[int, typer.Option("-T", min=1, metavar="N", help="Time steps of the estimates.")] = 32,
    pipeline: Annotated[str, typer.Option(metavar="NAME", help="Pipeline of the estimates.")] = "lcp",
    task: options.Task = None,
    json: options.Json = False,
) -> None:
    """Show what converts, what is refused and why, memory and time; or what a file holds."""
    if model.endswith(".snn") or (":" not in model and Path(model).is_file()):
        _check_file(Path(model), json)
    else:
        _check_model(model, input_size, tuple(keep or ()), steps, pipeline, task, json)


def _check_file(path: Path, json: bool) -> None:
    import spikecal

    found = spikecal.inspect(path)
    if json:
        show_json(found)
        return
    sets: dict[str, dict[str, int]] = found["parameter_bytes"]
    kinds = list(dict.fromkeys(kind for of in sets.values() for kind in of))
    order = [name for name in ("shared", *(f"T={T}" for T in found["T"])) if name in sets]
    rows = [
        (name, *(f"{sets[name].get(kind, 0):,}" for kind in kinds), f"{sum(sets[name].values()):,}") for name in order
    ]
    show_table(f"{path}: bytes", ("parameter set", *(f">{kind}" for kind in kinds), ">all"), rows)
    if found.get("calibration") == "distilled":
        typer.echo("calibrated on images distilled from the network")
    typer.echo(f"T = {', '.join(map(str, found['T']))}; {found['nodes']} operations; {size(found['bytes'])} in all")


def _check_model(
    model: str,
    input_size: tuple[int, int] | None,
    keep: tuple[str, ...],
    T: int,
    name: str,
    task: str | None,
    json: bool,
) -> None:
    from spikecal.analysis.estimate import estimate
    from spikecal.pipeline import resolve
    from spikecal.tasks.choose import task_of_model
    from spikecal.zoo.models import random_images

    network, card, pipeline, timed = task_of_model(model, task).part(model, resolve(name))
    if input_size is not None and min(input_size) < 1:
        raise ConfigError(f"--size is a height and a width in pixels, not {input_size[0]} and {input_size[1]}")
    height, width = input_size or card.size or (0, 0)
    if min(height, width) < 1:
        raise ConfigError(f"{model} does not say its input size: give --size H W")
    images = random_images(network, card, timed, (height, width))
    try:
        found = estimate(network, images, keep, T, pipeline)
    except ConversionError as error:
        refused = [{"layer": e.layer, "found": e.found, "hint": e.hint} for e in (error, *error.others)]
        if json:
            show_json({"model": model, "converts": False, "refused": refused})
        else:
            show_table(f"{model}: refused", ("layer", "found", "what to do"), [tuple(r.values()) for r in refused])
        plural = "s" if len(refused) > 1 else ""
        raise SpikecalError(f"{model} cannot be converted: {len(refused)} place{plural} refused") from error

    if json:
        guess = {"T": T, "pipeline": name, "seconds": found.seconds, "bytes": found.bytes}
        show_json(
            {"model": model, "converts": True, "input": [height, width], "stages": found.stages, "estimate": guess}
        )
        return
    rows = [
        (f["stage"], f["kind"], ", ".join(f["operations"]), "×".join(map(str, f["shape"])), f"{f['parameters']:,}")
        for f in found.stages
    ]
    show_table(f"{model}: converts", ("stage", "kind", "operations", ">shape", ">parameters"), rows)
    typer.echo(
        f"{len(rows)} stages; {name} at T = {T} would take about {duration(found.seconds)} and "
        f"{size(found.bytes)} of memory for {pipeline.images:,} images of {height}×{width} "
        f"(less memory: it goes to disk)"
    )
