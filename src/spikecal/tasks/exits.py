"""Early exit on the command line: rules set on the calibration split, and tables of their effect."""

from collections.abc import Mapping, Sequence

from torch import nn

from spikecal.analysis.evaluate import Evaluation
from spikecal.analysis.exits import ExitRule
from spikecal.data.card import Card
from spikecal.data.images import Data, drawn_last
from spikecal.errors import ConfigError
from spikecal.evaluation import exit_rule
from spikecal.graph.graph import Graph
from spikecal.progress import Progress
from spikecal.snn.network import SpikingNetwork
from spikecal.tasks.outcome import Line, Table, percent, table_of
from spikecal.tasks.summary import Images, cost_cells

IMAGES = 2048  # calibration images to set a rule on
COLUMNS = (
    "T", "promised %", "steps", "latency", "accuracy %", "as the ANN %", "promise", "energy %", "spikes", "half at",
    "last at",
)  # fmt: skip
CAPTION = (
    "steps: mean per image; half at, last at: the steps by which half and all of the answers are settled; "
    "spikes and energy: of the steps actually run"
)
VERDICTS = {"kept": "kept", "level": "missed, within chance", "broken": "broken", "unknown": ""}


def exit_rules(
    networks: Sequence[SpikingNetwork],
    ann: nn.Module | Graph | None,
    data: Data,
    card: Card,
    share: float,
    count: int | None,
    seed: int,
    progress: Progress | None,
) -> tuple[dict[int, ExitRule], list[str]]:
    """The rule of each network by T, set on images of `data`; and why other networks have none.

    Networks are calibrated on the images that the seed draws first, so rules are set on those that it draws last.
    """
    if ann is None:
        raise ConfigError(
            "--exit promises agreement with the ANN, which a file with learned weights does not hold: "
            "give the model with --model"
        )
    images = Images(drawn_last(data, count or IMAGES, seed), card)
    rules, without = dict[int, ExitRule](), list[str]()
    for network in networks:
        try:
            rules[network.T] = exit_rule(network, images, ann=ann, agreement=share, progress=progress)
        except ConfigError as error:
            without.append(str(error))
    if not rules:
        raise ConfigError("; ".join(without[-1:]))
    return rules, without


def exits_table(found: Sequence[Evaluation]) -> Table:
    """One line for each network with a rule."""
    rows = [_row(e) for e in found if e.exits is not None]
    return table_of("With early exit", COLUMNS, rows, CAPTION)


def exit_lines(without: Sequence[str]) -> list[Line]:
    return [Line(f"no early exit: {why}", aside=True) for why in without]


def _row(e: Evaluation) -> Mapping[str, str]:
    exits = e.exits
    assert exits is not None
    row = {
        "T": str(e.T), "promised %": f"{100 * exits.rule.agreement:g}", "steps": f"{exits.steps:.2f}",
        "latency": f"{exits.latency:.2f}" if exits.wait else "", "promise": VERDICTS[exits.verdict],
        "half at": str(exits.by(0.5)), "last at": str(exits.by(1.0)),
    }  # fmt: skip
    row |= {name: cell for name, cell in cost_cells(exits.energy).items() if name in COLUMNS}
    if exits.accuracy is not None:
        row["accuracy %"] = percent(exits.accuracy)
    if exits.agreement is not None:
        row["as the ANN %"] = percent(exits.agreement)
    return row
