"""`spikecal evaluate`: accuracy, steps and energy of the networks in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, percent, show_json, show_table
from spikecal.cli.summary import measure, show_summary
from spikecal.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from spikecal.analysis.evaluate import Evaluation
    from spikecal.snn.network import SpikingNetwork


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `spikecal convert` wrote.")],
    task: options.Task = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed. (default all)")
    ] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option("-T", min=1, metavar="N", help="Which networks of the file, with every step. (default all)"),
    ] = None,
    within: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="POINTS", help="Which T is that near the ANN?")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The network it came from. (default what is left of it inside)")
    ] = None,
    weights: options.Weights = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Measure the networks in a file: accuracy after every step, the steps they need, energy, how often they fire."""
    import spikecal
    from spikecal.analysis.evaluate import original
    from spikecal.data.card import Card
    from spikecal.data.prepare import Prepared
    from spikecal.data.sources import subset
    from spikecal.snn.origin import Timings
    from spikecal.zoo.models import load_model

    info = spikecal.inspect(file)
    named, known = named_detector(info.get("card"), model)
    if holds_detector(str(file), "detector" in info, named, task):
        from spikecal.cli import detect

        if named is None:
            raise ConfigError(f"{file} holds the body of a detector: give the detector with --model")
        if within is not None:
            raise ConfigError("--within is for classifiers")
        detect.evaluate_detector(
            file, named,
            weights=weights, data=data or known, steps=steps, images=images, seed=seed, strict=strict, json=json,
        )  # fmt: skip
        return
    network, card = (None, None) if model is None else load_model(model, weights)
    if card is None and "card" in info:
        card = Card.from_dict(info["card"])
    if card is None:
        raise ConfigError(f"{file} does not say what images it takes: give the network it came from with --model")
    test = subset(options.chosen_data(data, card, "test", data_root, from_file=network is None), images, seed)
    networks = load_networks(file, sorted(set(steps or info["T"])), network, Prepared(test, card))
    ann = original(networks[0]) if network is None else network
    if ann is None and within is not None:
        raise ConfigError(f"{file} has calibrated weights and no longer its ANN: give it with --model")
    if ann is None and test.labels is None:
        raise ConfigError(f"{test.name} has no labels: give the network to compare with by --model")
    with bars(json) as progress:
        summary, unreadable = measure(
            networks, ann, test, card, "test",
            strict=strict, points=within, seconds=Timings.beside(file).alone(), progress=progress,
        )  # fmt: skip
    if json:
        show_json({"file": str(file), **summary.to_dict(), "unreadable": options.unreadable_facts(unreadable)})
        return
    show_summary(str(file), summary)
    for found in summary.found if steps else ():
        show_steps(found)
    if within is not None:
        typer.echo(summary.answer())
    options.tell_unreadable(unreadable)
    if model is not None and summary.by_chance:
        typer.echo(f"warning: {summary.doubt(str(file))}", err=True)


def load_networks(
    file: Path, steps: Sequence[int], model: "nn.Module | None", images: "Dataset[Tensor]"
) -> "list[SpikingNetwork]":
    """The networks of a file. The model, if given, must be theirs; one made with `--keep` has its end from there."""
    import spikecal
    from spikecal.analysis.evaluate import check_weights, original
    from spikecal.graph.graph import describe
    from spikecal.graph.lowering.lower import lower
    from spikecal.graph.stages import with_joints

    info = spikecal.inspect(file)
    if model is None:
        if info["head"]:
            raise ConfigError(f"{file} was made with --keep and has no end of its own: give its network with --model")
        return [spikecal.load(file, T=T) for T in steps]
    graph = with_joints(lower(model, (images[0].expand(2, -1, -1, -1),), info.get("keep", ())))
    networks = [spikecal.load(file, T=T, head=graph.head) for T in steps]
    if describe(graph) != describe(networks[0].graph):
        raise ConfigError(f"{file} was not made of this network: their operations differ")
    check_weights(str(file), graph, original(networks[0]))
    return networks


def named_detector(card: Any, model: str | None) -> tuple[str | None, str | None]:
    """The detector a file came from and its data, as far as they are known. A file cannot name code to be run."""
    from spikecal.detection.sources import KINDS
    from spikecal.zoo.detectors import is_detector

    name, data = (str(card.get(key) or "") for key in ("name", "data")) if isinstance(card, dict) else ("", "")
    known = data if data.partition(":")[0] in KINDS else None
    return model or (name if is_detector(name) else None), known


def holds_detector(file: str, made_from_one: bool, named: str | None, task: str | None) -> bool:
    """Whether a file is to be taken for a detector's body: what it says of itself decides."""
    asked = options.is_detection(named or "", task)
    if made_from_one and task == "classify":
        raise ConfigError(f"{file} holds the body of a detector: leave out --task, or say --task detect")
    if asked and not made_from_one:
        raise ConfigError(f"{file} holds a classifier, not the body of a detector: give its own --model, and no --task")
    return made_from_one


def show_steps(found: "Evaluation") -> None:
    """The anytime curve, a line a step."""
    curves = {"accuracy %": found.accuracy, "as the ANN %": found.agreement}
    known = {name: curve for name, curve in curves.items() if curve}
    rows = [(str(t + 1), *(percent(curve[t]) for curve in known.values())) for t in range(found.T)]
    show_table(f"After every step, made for T = {found.T}", (">step", *(f">{name}" for name in known)), rows)
