"""`spikecal figure`: the paper's figures, each by its name."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show_json, show_table
from spikecal.errors import ConfigError
from spikecal.files import write_whole

if TYPE_CHECKING:
    from spikecal.analysis.figures import Recipe, Subject

FORMATS = ("png", "svg", "pdf")
BATCH = 250
TESTED = 500


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which figure; without a name they are listed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The picture to write: a.png, .svg or .pdf.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="The network, several for `bn`. (default the figure's)")
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option(metavar="[MODEL=]FILE", help="Weights of a network; may be repeated.")
    ] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    steps: Annotated[
        list[int] | None, typer.Option("-T", min=1, metavar="N", help="Time steps. (default the paper's)")
    ] = None,
    images: Annotated[int, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed.")] = TESTED,
    iterations: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Of weights calibration, per layer: 5,000 are the paper's, fewer are done by Adam."
        ),
    ] = 200,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Calibration samples of `samples`.")] = 3,
    layer: Annotated[str | None, typer.Option(metavar="NAME", help="Of `threshold`. (default the middle one)")] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Draw one of the paper's figures."""
    from spikecal.analysis.figures import FIGURES, Settings, draw

    if name is None:
        if json:
            show_json({key: {"about": recipe.about, "T": recipe.T} for key, recipe in FIGURES.items()})
        else:
            show_table("", ("name", "about"), [(key, recipe.about) for key, recipe in FIGURES.items()])
        return
    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
    if output is None:
        raise ConfigError("give the picture to write with -o FILE")
    if output.suffix[1:].lower() not in FORMATS:
        raise ConfigError(f"{output.name}: a picture ends in {', '.join(f'.{f}' for f in FORMATS)}")
    options.check_output(output)
    subjects = _subjects(FIGURES[name], model, weights, data, data_root, images, seed)
    with bars(json) as progress:
        settings = Settings(
            T=tuple(sorted(set(steps or ()))), images=min(images, Settings.images), iterations=iterations, seeds=seeds,
            seed=seed, layer=layer, progress=progress,
        )  # fmt: skip
        drawn, facts = draw(name, subjects, settings)
    picture = io.BytesIO()
    drawn.savefig(picture, format=output.suffix[1:].lower())
    write_whole(output, picture.getvalue())
    if json:
        networks = [subject.name for subject in subjects]
        show_json({"figure": name, "file": str(output), "networks": networks, "seed": seed, **facts})
        return
    typer.echo("; ".join([f"{output}: {FIGURES[name].about}", *(subject.name for subject in subjects)]))


def _subjects(
    recipe: "Recipe",
    models: list[str] | None,
    weights: list[str] | None,
    data: str | None,
    root: Path | None,
    images: int,
    seed: int,
) -> list["Subject"]:
    """The networks asked for, or those of the figure that there are weights for."""
    from spikecal.analysis.figures import Subject
    from spikecal.data.prepare import Loader, Prepared
    from spikecal.data.sources import chosen_data, subset
    from spikecal.zoo.detectors import is_detector
    from spikecal.zoo.models import load_model

    given = _weights(weights or [], models or [])
    names = models or _with_weights(recipe.models, given) or _with_weights(recipe.instead, given)
    missing = [name for name in recipe.instead if name not in names]
    if models is None and len(recipe.models) > 1 and len(names) < len(recipe.models):
        typer.echo(f"only {', '.join(names)}: there are no weights for {', '.join(missing)} here (--weights)", err=True)
    subjects = []
    for name in names:
        if is_detector(name):
            raise ConfigError(f"{name} is a detector, and figures are of classifiers: see `spikecal report`")
        network, card = load_model(name, given.get(name))
        train, test = (chosen_data(data, card, split, root) for split in ("train", "test"))
        loader = Loader(subset(test, images, seed), card, BATCH)
        subjects.append(Subject(name=name, model=network, calibration=Prepared(train, card), test=loader))
    return subjects


def _with_weights(names: tuple[str, ...], given: dict[str, Path]) -> list[str]:
    from spikecal.zoo.models import ZOO

    return [name for name in names if name in given or ZOO[name].card.weights is not None]


def _weights(given: list[str], models: list[str]) -> dict[str, Path]:
    """`MODEL=FILE`, or FILE alone where one model is named."""
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals and len(models) == 1:
            name, file = models[0], text
        elif not equals or not file:
            raise ConfigError(f"--weights {text}: say which network's they are, as MODEL=FILE")
        found[name] = Path(file)
    return found
