"""Export networks of a file to other simulators, and verify them there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spikecal.analysis.inspection import inspect
from spikecal.data.card import Card
from spikecal.data.images import readable
from spikecal.data.prepare import Prepared
from spikecal.data.sources import chosen_data, subset
from spikecal.errors import ConfigError, SpikecalError
from spikecal.export.chips import Chip, chip_called, refuse_misfit
from spikecal.export.export import Exported, export, make_netlist
from spikecal.export.integers import Per
from spikecal.export.verify import BATCH, FAITHFUL, Traced, Verdict, simulators
from spikecal.files import check_output
from spikecal.progress import Progress
from spikecal.snn.file import load
from spikecal.snn.network import SpikingNetwork
from spikecal.tasks.outcome import Line, Outcome, Table, asides, percent, size

CALIBRATION = 64  # images that biases are calibrated on after weights are rounded


@dataclass(frozen=True, kw_only=True)
class Exporting:
    """A network of a file, the file to write, and what to verify it on."""

    file: Path
    output: Path
    to: str | None
    steps: int | None
    size: tuple[int, int] | None
    verify: bool
    data: str | None
    data_root: Path | None
    images: int
    seed: int
    bits: int | None  # of integer weights
    per: Per | None
    exact: bool  # round to a grid on which all sums are exact in float32
    target: str | None  # a chip, whose bits and scales are the defaults


def export_file(asked: Exporting, progress: Progress | None) -> Outcome:
    """Write the network; with `verify`, an unfaithful export is an error, but the file stays for inspection."""
    check_output(asked.output, [asked.file])
    chip = None if asked.target is None else chip_called(asked.target)
    bits, per = _whole_numbers(asked, chip)
    snn = exported_network(asked.file, asked.steps)
    images, labels = None, None
    if asked.verify:
        images, labels = images_for(asked.file, snn, asked.data, asked.data_root, asked.images, asked.seed)
    example = _example(asked, snn) if images is None else images[:1]
    if chip is not None:
        refuse_misfit(asked.file, make_netlist(snn, example), chip)
    if bits is not None:
        example = images_for(asked.file, snn, asked.data, asked.data_root, CALIBRATION, asked.seed, "train")[0]
    made = export(snn, asked.output, example, to=asked.to, bits=bits, per=per, exact=asked.exact)
    facts = made.to_dict()
    parts: list[Table | Line] = [Line(_written(made)), *asides([f"note: {note}" for note in made.notes])]
    if images is None:
        return Outcome(facts, parts)
    simulators(made.to)  # before anything long: at least one must be installed
    verdicts = made.verify(images, labels, progress)
    facts = {**facts, "verified": [verdict.to_dict() for verdict in verdicts]}
    return Outcome(facts, [*parts, _verdict_table(made, verdicts)], _unfaithful(asked.output, verdicts))


def _whole_numbers(asked: Exporting, chip: Chip | None) -> tuple[int | None, Per]:
    """Bits of integer weights, if any, and their scales, as requested if the chip supports that."""
    bits = chip.bits if chip is not None and asked.bits is None else asked.bits
    per: Per = asked.per or ("channel" if chip is None else chip.per)
    if bits is None and asked.per is not None:
        raise ConfigError("--per is for integers: add --bits or --target")
    if bits is not None and asked.exact:
        raise ConfigError("integers are already exact: leave out --exact")
    if chip is not None and bits is not None and bits > chip.bits:
        raise ConfigError(f"weights of {chip.title} have {chip.bits} bits: give at most --bits {chip.bits}")
    if chip is not None and chip.per == "layer" and per == "channel":
        raise ConfigError(f"{chip.title} has one scale per layer: leave out --per")
    if asked.data is not None and bits is None and not asked.verify:
        raise ConfigError("--data is for --verify and integers: add --verify, --bits or --target")
    if asked.size is not None and (asked.verify or bits is not None):
        raise ConfigError(
            "--size does not work with --verify or integers, which take images of the network's own size: leave it out"
        )
    return bits, per


def exported_network(file: Path, steps: int | None) -> SpikingNetwork:
    """The network for that T, or for the largest; its neurons must exist elsewhere too."""
    own = inspect(file)["neurons"]
    if own:
        raise ConfigError(
            f"{file} has {', '.join(own)} neurons, which other programs do not know: use integrate-and-fire"
        )
    return load_network(file, steps)


def load_network(file: Path, steps: int | None, neurons: Sequence[str] = ()) -> SpikingNetwork:
    """The network for that T, or for the largest, if it is a whole network."""
    if inspect(file)["head"]:
        raise ConfigError(f"{file} has an analog head or is a detector's body: only whole networks can be exported")
    return load(file, steps, neurons=neurons)


def card_of(file: Path, snn: SpikingNetwork) -> Card:
    if snn.origin.card is None:
        raise ConfigError(f"{file} does not state what images it takes: convert with `spikecal convert`")
    return Card.from_dict(snn.origin.card)


def images_for(
    file: Path, snn: SpikingNetwork, data: str | None, root: Path | None, count: int, seed: int, split: str = "test"
) -> tuple[Tensor, Tensor | None]:
    """Images as the network takes them, and their labels."""
    card = card_of(file, snn)
    held_out = chosen_data(data, card, split, root, from_file=True)
    chosen = subset(readable(held_out, count, seed)[0], count, seed)
    prepared = torch.cat([images for images, _ in Prepared(chosen, card).batches(BATCH)])
    return prepared, chosen.labels


def _example(asked: Exporting, snn: SpikingNetwork) -> Tensor | None:
    """An image of the requested size."""
    if asked.size is None:
        return None
    if min(asked.size) < 1:
        raise ConfigError(f"--size must be a height and a width in pixels, not {asked.size[0]} and {asked.size[1]}")
    channels = card_of(asked.file, snn).channels
    if channels is None:
        raise ConfigError(f"{asked.file} does not state how many channels its images have: leave out --size")
    return torch.zeros(1, channels, *asked.size)


def _written(made: Exported) -> str:
    netlist, sizes = made.netlist, ", ".join(f"{path} {size(path.stat().st_size)}" for path in made.files)
    clock = f" and {netlist.planes} clock planes" if netlist.planes and made.to != "onnx" else ""
    image = "×".join(map(str, netlist.image.shape))
    return f"{sizes}: T = {netlist.T}, {netlist.latency} steps in total, images {image}{clock}"


def _verdict_table(made: Exported, verdicts: Sequence[Verdict]) -> Table:
    columns = (
        "simulator", ">images", ">spikes", ">differing", ">in float64", ">output off by", ">same answers",
        ">accuracy %", "",
    )  # fmt: skip
    explained = _explained(verdicts[0].traced, made.integers is not None)
    return Table(f"{made.path}: verified", columns, [_row(verdict) for verdict in verdicts], explained)


def _row(verdict: Verdict) -> tuple[str, ...]:
    accuracy = ""
    if verdict.right is not None and verdict.expected is not None:
        accuracy = f"{percent(verdict.right / verdict.images)} (here {percent(verdict.expected / verdict.images)})"
    return (
        verdict.simulator, f"{verdict.images:,}", f"{verdict.spikes:,}", f"{verdict.differing:,}",
        "" if verdict.double is None else f"{verdict.double:,}",
        f"{verdict.difference:.2g}", f"{verdict.agreeing:,}", accuracy,
        "faithful" if verdict.faithful else "not faithful",
    )  # fmt: skip


def _explained(traced: Traced, integers: bool) -> str:
    """What was compared, as one caption for the whole table."""
    counted = f"Of {traced.spikes:,} spikes on {traced.images} images, "
    if integers:
        return f"{counted}{traced.built:,} differ from the integer run as built."
    if traced.exact:
        return (
            f"differing: in float32, from spikecal with the same values. {counted}rounding to exact sums changed "
            f"{traced.rounded:,}, and {traced.images - traced.agreeing} answers."
        )
    return f"{counted}{traced.built:,} differ in float64 as built; float32 changes {traced.rounding:,} in the network."


def _unfaithful(path: Path, verdicts: Sequence[Verdict]) -> SpikecalError | None:
    bad = [verdict for verdict in verdicts if not verdict.faithful]
    if not bad:
        return None
    said = ", ".join(f"{v.share:.2g} of the spikes in {v.simulator}" for v in bad)
    return SpikecalError(f"{path} is not faithful: it differs in {said}, more than {FAITHFUL:g}")
