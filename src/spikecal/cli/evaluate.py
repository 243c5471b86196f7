"""`spikecal evaluate`: accuracy of a converted network after every step."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, percent, show_json, show_table
from spikecal.errors import ConfigError

BATCH = 200


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `spikecal convert` wrote.")],
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed. (default all)")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("-T", min=1, metavar="N", help="Which network of the file. (default the longest)")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The network it came from, for comparison.")
    ] = None,
    weights: options.Weights = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Measure a converted network: its accuracy after every step, and how often its neurons fire."""
    import spikecal
    from spikecal.analysis.evaluate import accuracy
    from spikecal.data.card import Card
    from spikecal.data.prepare import Loader
    from spikecal.data.sources import subset
    from spikecal.zoo.models import load_model

    snn = spikecal.load(file, T=steps)
    network, card = (None, None) if model is None else load_model(model, weights)
    if card is None and "card" in snn.info:
        card = Card.from_dict(snn.info["card"])
    if card is None:
        raise ConfigError(f"{file} does not say what images it takes: give the network it came from with --model")
    loader = Loader(subset(options.chosen_data(data, card, "test", data_root), images, seed), card, BATCH, strict)
    ann = None if network is None else accuracy(network, loader)
    with bars(json) as progress:
        found = spikecal.evaluate(snn, loader, progress=progress)
    if json:
        facts = {"file": str(file), "T": snn.T, "images": found.images, "ann": ann}
        facts |= {"unreadable": options.unreadable_facts(loader.unreadable)}
        show_json({**facts, "accuracy": list(found.accuracy), "rates": dict(found.rates)})
        return
    rows = [] if ann is None else [("ANN", percent(ann))]
    rows += [(str(step), percent(value)) for step, value in enumerate(found.accuracy, 1)]
    mean = sum(found.rates.values()) / max(len(found.rates), 1)
    caption = f"{found.images:,} images; neurons fire in {percent(mean)} % of the steps, in the mean over layers"
    show_table(f"{file}, T = {snn.T}", (">step", ">accuracy %"), rows, caption)
    options.tell_unreadable(loader.unreadable)
