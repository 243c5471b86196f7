"""How good the networks of a file are: the runs that measure it, and the tables that show it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from spikecal.analysis.energy import Energy
from spikecal.analysis.evaluate import Evaluation
from spikecal.analysis.exits import ExitRule
from spikecal.analysis.summary import POINTS, Summary
from spikecal.calibration.sweep import StageRecord
from spikecal.data.card import Card
from spikecal.data.images import Data, Unreadable, none_readable
from spikecal.data.prepare import Loader, Prepared
from spikecal.evaluation import evaluate
from spikecal.graph.graph import Graph
from spikecal.progress import Progress
from spikecal.snn.network import SpikingNetwork
from spikecal.tasks.outcome import Table, percent, table_of
from spikecal.tasks.waiting import TIMES, TIMES_CAPTION

BATCH = 200
COSTS = ("spikes", "energy %", "delay lines %", "break-even T")
COSTS_CAPTION = "spikes: per image; energy: relative to the ANN's, at 4.6 pJ per MAC and 0.9 pJ per addition"


class Images:
    """Batches of a dataset's images without labels, repeatable in the same order; otherwise like `Loader`."""

    def __init__(self, data: Data, card: Card, strict: bool = False) -> None:

        self.prepared, self.strict = Prepared(data, card), strict
        self.unreadable: Unreadable = {}

    def __len__(self) -> int:
        return -(-len(self.prepared) // BATCH)

    def __iter__(self) -> Iterator[Tensor]:

        for images, _ in self.prepared.batches(BATCH, None if self.strict else self.unreadable):
            yield images
        if len(self.unreadable) == len(self.prepared):
            raise none_readable(self.prepared.data.name, self.unreadable)


def measure(
    networks: Sequence[SpikingNetwork],
    ann: nn.Module | Graph | None,
    data: Data,
    card: Card,
    split: str,
    *,
    strict: bool = False,
    points: float | None = None,
    seconds: Mapping[int, float] | None = None,
    rules: Mapping[int, ExitRule] | None = None,
    progress: Progress | None = None,
) -> tuple[Summary, Unreadable]:
    """Run every network over the images, with their labels if there are any; `rules` are for early exit, by T."""

    loader: Any = Images(data, card, strict) if data.labels is None else Loader(data, card, BATCH, strict)
    exits = rules or {}
    found = [evaluate(network, loader, progress, ann=ann, exit=exits.get(network.T)) for network in networks]
    return Summary(data.name, split, found, POINTS if points is None else points, seconds or {}), loader.unreadable


def summary_table(title: str, summary: Summary) -> Table:
    """One line per network below that of the ANN; unknown columns are left out."""
    rows: list[dict[str, str]] = []
    if summary.compared:
        rows.append({"T": "ANN", "accuracy %": "" if summary.ann is None else percent(summary.ann), "energy %": "100"})
    for e in summary.found:
        row = {"T": str(e.T), "latency": str(e.latency), "interval": str(e.interval)}
        row |= {"fires %": percent(e.rate)} | cost_cells(e.energy)
        if e.accuracy:
            row["accuracy %"] = percent(e.accuracy[-1])
        if e.agreement:
            row |= {"as the ANN %": percent(e.agreement[-1]), "near from step": _near(e, summary.points)}
        if e.T in summary.seconds:
            row["conversion s"] = f"{summary.seconds[e.T]:.1f}"
        rows.append(row)
    order = ("T", *TIMES, "accuracy %", "as the ANN %", "near from step", *COSTS, "fires %", "conversion s")
    caption = f"{summary.images:,} {summary.split} images of {summary.data}"
    if summary.compared:
        caption += (
            f"; near: from then on within {summary.points:g} point{'' if summary.points == 1 else 's'} of the ANN"
        )
    caption += f"; {TIMES_CAPTION}; {COSTS_CAPTION}"
    if summary.seconds:
        caption += "; conversion: the time for that T alone"
    return table_of(title, order, rows, caption)


def _near(found: Evaluation, points: float) -> str:
    """The step from which a network is near the ANN, and its time if layers wait."""
    step = found.first_within(points)
    if step is None:
        return "–"
    return str(step) if found.latency == found.T else f"{step} (latency {found.latencies[step - 1]})"


def cost_cells(energy: Energy | None) -> dict[str, str]:
    """The columns `COSTS` of a network."""
    if energy is None:
        return {}
    spikes = {"spikes": f"{energy.spikes:,.0f}"}
    if energy.ratio is None:
        return spikes
    return spikes | {
        "energy %": f"{100 * energy.ratio:.1f}",
        "delay lines %": f"{100 * energy.delayed:.1f}" if energy.delayed else "",
        "break-even T": "–" if energy.break_even is None else f"{energy.break_even:.1f}",
    }


def steps_table(found: Evaluation) -> Table:
    """The anytime curve, one line per step, with the step's time if layers wait."""
    shares = {"accuracy %": found.accuracy, "as the ANN %": found.agreement}
    columns = {"step": [str(t) for t in range(1, found.T + 1)]}
    if found.latency > found.T:
        columns["latency"] = [str(latency) for latency in found.latencies]
    if found.exits is not None:
        settled = list(accumulate(found.exits.settled))
        shares |= {"settled %": [count / found.images for count in settled], "with exit %": found.exits.curve}
    columns |= {name: [percent(share) for share in curve] for name, curve in shares.items() if curve}
    rows = list(zip(*columns.values(), strict=True))
    return Table(f"After every step, network for T = {found.T}", [f">{name}" for name in columns], rows)


def records_table(records: Sequence[StageRecord], T: int) -> Table:
    """The effect of calibration on each stage of the network for T steps."""
    rows = []
    for record in (record for record in records if record.T == T):
        errors = " → ".join(f"{value:.4f} {label}" for label, value in record.errors)
        shares = [percent(share) if share is not None else "" for share in (record.rate, record.saturated, record.dead)]
        rows.append((record.stage, record.kind, errors, *shares, f"{record.seconds:.1f}"))
    columns = ("stage", "kind", "relative error", ">rate %", ">saturated %", ">dead %", ">s")
    return Table(f"Stages at T = {T}", columns, rows)
