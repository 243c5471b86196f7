"""Draw the paper's figures to files: which networks and images they show, and the outcome."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import chosen_data, subset
from spikecal.errors import ConfigError
from spikecal.figures import FIGURES, Recipe, Settings, Subject, draw
from spikecal.files import check_output, write_whole
from spikecal.progress import Progress
from spikecal.tasks.outcome import Line, Outcome, Table
from spikecal.tasks.task import Say
from spikecal.zoo.detectors import is_detector
from spikecal.zoo.models import ZOO, load_model

FORMATS = ("png", "svg", "pdf")
BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure to draw, the picture to write, and what it shows."""

    name: str
    output: Path | None
    models: Sequence[str]  # empty: the figure's own, if there are weights for them
    weights: Mapping[str, Path]
    data: str | None
    data_root: Path | None
    images: int
    settings: Settings
    device: str | None = None


def list_figures() -> Outcome:
    """List the figures."""
    facts = {name: {"about": recipe.about, "T": recipe.T} for name, recipe in FIGURES.items()}
    return Outcome(facts, [Table("", ("name", "about"), [(name, recipe.about) for name, recipe in FIGURES.items()])])


def draw_figure(asked: Drawing, progress: Progress | None, say: Say) -> Outcome:
    """Measure what a figure shows, draw it and write it."""
    name, output, settings = asked.name, asked.output, asked.settings
    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}: choose from {', '.join(FIGURES)}")
    if output is None:
        raise ConfigError("give the picture to write with -o FILE")
    kind = output.suffix[1:].lower()
    if kind not in FORMATS:
        raise ConfigError(f"{output.name}: the picture must end in {', '.join(f'.{f}' for f in FORMATS)}")
    check_output(output)
    subjects = _subjects(FIGURES[name], asked, say)
    images = min(asked.images, settings.images)
    drawn, facts = draw(name, subjects, replace(settings, images=images, progress=progress))
    picture = io.BytesIO()
    drawn.savefig(picture, format=kind)
    write_whole(output, picture.getvalue())
    networks = [subject.name for subject in subjects]
    whole = {"figure": name, "file": str(output), "networks": networks, "seed": settings.seed, **facts}
    return Outcome(whole, [Line("; ".join([f"{output}: {FIGURES[name].about}", *networks]))])


def _subjects(recipe: Recipe, asked: Drawing, say: Say) -> list[Subject]:
    """The requested networks, or those of the figure that have weights."""
    weights = asked.weights
    names = list(asked.models) or _with_weights(recipe.models, weights) or _with_weights(recipe.instead, weights)
    missing = [name for name in recipe.instead if name not in names]
    if not asked.models and len(recipe.models) > 1 and len(names) < len(recipe.models):
        say(f"only {', '.join(names)}: there are no weights for {', '.join(missing)} here (--weights)")
    subjects = []
    for name in names:
        if is_detector(name):
            raise ConfigError(f"{name} is a detector, and figures show classifiers: use `spikecal report`")
        network, card = load_model(name, weights.get(name), device=asked.device)
        train, test = (chosen_data(asked.data, card, split, asked.data_root) for split in ("train", "test"))
        loader = Loader(subset(test, asked.images, asked.settings.seed), card, BATCH)
        subjects.append(Subject(name=name, model=network, calibration=Prepared(train, card), test=loader))
    return subjects


def _with_weights(names: Sequence[str], given: Mapping[str, Path]) -> list[str]:
    return [name for name in names if name in given or ZOO[name].card.weights is not None]
