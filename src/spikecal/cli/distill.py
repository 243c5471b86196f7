"""`spikecal distill`: images for calibration out of a network, where its data is not at hand."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show_json, show_table
from spikecal.errors import ConfigError
from spikecal.tasks.outcome import duration, percent, size

if TYPE_CHECKING:
    from spikecal.distillation.distill import Distilled

DRAWN = (1, 3)  # channels of images that can be looked at


def distill(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: images.npz.")],
    weights: options.Weights = None,
    others: options.With = None,
    count: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Images. (default 1,024)")] = None,
    side: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Of the images. (default the model's own)")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of every batch. (default 40)")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images made together. (default 128, fewer if they are large)"),
    ] = None,
    seed: options.Seed = 0,
    workdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished batches here: killed, the same command goes on.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The picture of the images. (default beside the output, .png)")
    ] = None,
    json: options.Json = False,
) -> None:
    """Make calibration images from a network alone, or from several, and write them to a file."""
    if output.suffix != ".npz":
        raise ConfigError(f"images are written as npz: name the file {output.with_suffix('.npz').name}")
    picture = sheet or output.with_suffix(".png")
    if picture.suffix.lower() != ".png":
        raise ConfigError(f"{picture.name}: the picture ends in .png")
    options.check_output(output)
    options.check_output(picture, [output])
    import spikecal
    from spikecal.distillation.distill import IMAGES
    from spikecal.tasks.classification import batch_line
    from spikecal.zoo.detectors import is_detector
    from spikecal.zoo.models import load_model

    for name in (model, *(entry.partition("=")[0] for entry in others or [])):
        if is_detector(name):
            raise ConfigError(f"{name} is a detector, and images are distilled from classifiers only")
    loaded = [load_model(model, weights), *(load_model(*name_and_file(entry)) for entry in others or [])]
    started = time.perf_counter()
    with bars(json) as progress:
        made = spikecal.distill(
            [network for network, _ in loaded],
            count or IMAGES,
            side,
            card=[card for _, card in loaded],
            iterations=iterations,
            batch=batch,
            seed=seed,
            workdir=workdir,
            progress=progress,
            report=None if json or progress is not None else lambda *batch: aside(batch_line(*batch)),
        )
    seconds = time.perf_counter() - started
    made.save(output)
    drawn = made.sheet(picture) if made.images.shape[1] in DRAWN else 0
    if json:
        facts = {"file": str(output), "bytes": output.stat().st_size, "models": [model, *(others or [])]}
        facts |= {"sheet": str(picture) if drawn else None, "drawn": drawn, "seconds": seconds}
        show_json({**facts, **made.facts()})
        return
    show_batches(made)
    for note in made.notes:
        typer.echo(note, err=True)
    shape = "×".join(map(str, made.images.shape[1:]))
    shown = f"; {picture} shows {drawn:,} of them" if drawn else "; no picture: images have 1 or 3 channels in one"
    typer.echo(
        f"{output}: {len(made.images):,} images {shape}, {size(output.stat().st_size)}, {duration(seconds)}{shown}"
    )


def name_and_file(entry: str) -> tuple[str, Path | None]:
    """The two parts of `MODEL` or `MODEL=FILE`."""
    name, equals, file = entry.partition("=")
    if equals and not file:
        raise ConfigError(f"--with {entry} names no file: write {name} or {name}=FILE")
    return name, Path(file) if file else None


def show_batches(made: "Distilled") -> None:
    rows = [
        (
            str(index + 1),
            *("" if value is None else f"{value:.4f}" for value in (one.start, one.statistics, one.labels)),
            "" if one.right is None else percent(one.right),
        )
        for index, one in enumerate(made.losses)
    ]
    columns = ("batch", ">statistics of noise", ">of images", ">cross-entropy", ">of the class %")
    caption = "Statistics: divergence of what enters BN from what it remembers, the mean over layers."
    show_table("Distilled", columns, rows, caption)
