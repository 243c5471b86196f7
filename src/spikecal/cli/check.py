"""`spikecal check`: what a network would become, or what is in a file, without converting anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import show_json, show_table
from spikecal.errors import ConfigError, ConversionError, SpikecalError
from spikecal.tasks.outcome import duration, size

if TYPE_CHECKING:
    from spikecal.graph.stages import Stage
    from spikecal.pipeline import Pipeline
    from spikecal.snn.execute import Shapes


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
    from spikecal.clock import fastest
    from spikecal.graph.lower import lower
    from spikecal.graph.stages import partition, with_joints
    from spikecal.pipeline import resolve
    from spikecal.snn.execute import shapes_of
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
        graph = with_joints(lower(network, (images[:2],), keep))
    except ConversionError as error:
        refused = [{"layer": e.layer, "found": e.found, "hint": e.hint} for e in (error, *error.others)]
        if json:
            show_json({"model": model, "converts": False, "refused": refused})
        else:
            show_table(f"{model}: refused", ("layer", "found", "what to do"), [tuple(r.values()) for r in refused])
        plural = "s" if len(refused) > 1 else ""
        raise SpikecalError(f"{model} cannot be converted: {len(refused)} place{plural} refused") from error

    stages, shapes = partition(graph), shapes_of(graph, (images,))
    seconds = fastest(lambda: graph.run(images)) / timed * passes(pipeline, T)
    needed = peak_bytes(stages, shapes, T, pipeline)
    table = [_stage_facts(stage, shapes) for stage in stages]
    if json:
        estimate = {"T": T, "pipeline": name, "seconds": seconds, "bytes": needed}
        show_json({"model": model, "converts": True, "input": [height, width], "stages": table, "estimate": estimate})
        return
    rows = [
        (f["stage"], f["kind"], ", ".join(f["operations"]), "×".join(map(str, f["shape"])), f"{f['parameters']:,}")
        for f in table
    ]
    show_table(f"{model}: converts", ("stage", "kind", "operations", ">shape", ">parameters"), rows)
    typer.echo(
        f"{len(stages)} stages; {name} at T = {T} would take about {duration(seconds)} and {size(needed)} of memory "
        f"for {pipeline.images:,} images of {height}×{width} (less memory: it goes to disk)"
    )


def passes(pipeline: "Pipeline", T: int) -> float:
    """The work of a conversion in passes of the ANN over one image: thresholds, sweeps, iterations."""
    from spikecal.phases import MEASURED, image_passes

    sweeps = pipeline.sweeps or ((),)
    images = [max((c.images for c in sweep), default=MEASURED) for sweep in sweeps]
    return pipeline.threshold.images + sum(map(image_passes, sweeps, images, [T] * len(sweeps)))


def peak_bytes(stages: list["Stage"], shapes: "Shapes", T: int, pipeline: "Pipeline") -> int:
    """The most that lives at once between stages: floats of the ANN, a bit a spike, a float a step at a joint."""
    from math import prod

    from spikecal.graph.stages import last_uses
    from spikecal.phases import MEASURED

    images = max((c.images for sweep in pipeline.sweeps for c in sweep), default=MEASURED)
    live: dict[str, int] = {}
    peak = 0
    for stage, freed in zip(stages, last_uses(stages), strict=True):
        count = prod(shapes[stage.name][1:]) * images
        live[stage.name] = 4 * count + (T * count // 8 if stage.spiking else 4 * T * count)
        peak = max(peak, sum(live.values()))
        for name in freed:
            live.pop(name, None)
    return peak


def _stage_facts(stage: "Stage", shapes: "Shapes") -> dict[str, Any]:
    return {
        "stage": stage.name,
        "kind": stage.kind,
        "operations": [type(node.op).__name__ for node in stage.nodes],
        "shape": list(shapes[stage.name][1:]),
        "parameters": sum(tensor.numel() for node in stage.nodes for tensor in node.op.tensors().values()),
    }
