"""What `convert` does with a classifier."""

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, show_table, size
from spikecal.cli.distill import distilled_for
from spikecal.cli.reporting import report_result
from spikecal.cli.summary import measure, show_summary
from spikecal.errors import DataError, refuse_unreadable

if TYPE_CHECKING:
    from torch import nn

    from spikecal.analysis.summary import Summary
    from spikecal.calibration.sweep import StageRecord
    from spikecal.cli.request import Request
    from spikecal.data.card import Card
    from spikecal.data.images import Data, Unreadable
    from spikecal.distillation.distill import Distilled
    from spikecal.result import Result


def convert_classifier(asked: "Request") -> None:
    """Convert a network, write it, and measure it on test images."""
    import spikecal
    from spikecal.data.images import readable
    from spikecal.data.prepare import Prepared
    from spikecal.data.sources import DISTILLED
    from spikecal.zoo.models import load_model

    network, card = load_model(asked.model, asked.weights)
    distilled, distilling = None, 0.0
    if asked.data == DISTILLED:
        started = time.perf_counter()
        distilled = distilled_for(asked, network, card)
        source, distilling = distilled.data(), time.perf_counter() - started
    else:
        source = options.chosen_data(asked.data, card, "train", asked.data_root)
    chosen, unreadable = readable(source, asked.pipeline.images, asked.seed)
    if asked.strict:
        refuse_unreadable(chosen.name, unreadable)
    started = time.perf_counter()
    with bars(asked.json) as progress:
        result = spikecal.convert(network, Prepared(chosen, card), keep=asked.keep, **asked.settings(progress))
    made = _Made(asked, result, distilled, distilling + time.perf_counter() - started, unreadable)
    result.describe(card=card.to_dict())
    if distilled is not None:
        result.timings.distilling = distilling
    if source.distilled:
        result.describe(calibration=DISTILLED)
    result.save(asked.output)  # what comes now only looks at it
    if asked.test > 0:
        made.measure(network, card, source)
    else:
        made.why = "--test 0"
    written = None
    if asked.report is not None:
        with bars(asked.json) as progress:
            written = report_result(
                asked.report, asked.output.name, result, network, made.tested, card, made.summary, made.why, progress
            )
    if asked.json:
        show_json(made.facts() if written is None else {**made.facts(), "report": written.facts()})
        return
    made.show()
    if written is not None:
        written.show()
    typer.echo(f"{asked.output}: {size(asked.output.stat().st_size)}, {duration(made.seconds)}")


@dataclass
class _Made:
    """A conversion that is on disk, and what was found of it."""

    asked: "Request"
    result: "Result"
    distilled: "Distilled | None"
    seconds: float
    unreadable: "Unreadable"
    summary: "Summary | None" = None
    tested: "Data | None" = field(default=None, repr=False)
    why: str = ""  # there is no summary

    def measure(self, network: "nn.Module", card: "Card", source: "Data") -> None:
        """Run it on test images, if there are some, and put what comes out into the file."""
        from spikecal.data.sources import subset

        asked, data = self.asked, self.asked.data
        try:
            if source.distilled:  # it is still measured on real images, if there are some
                if card.data is None:
                    raise DataError(f"{card.name} comes with no images to test on")
                data = None
            held_out = options.chosen_data(data, card, "test", asked.data_root)
            self.tested = subset(held_out, asked.test, asked.seed)
            with bars(asked.json) as progress:
                self.summary, more = measure(
                    [self.result.at(T) for T in sorted(self.result.networks)],
                    network,
                    self.tested,
                    card,
                    "calibration" if same_images(held_out, source) else "test",
                    strict=asked.strict,
                    seconds=self.result.timings.alone(),
                    progress=progress,
                )
        except DataError as error:  # no images to test on, or no classes to be right about
            self.why = str(error)
            return
        self.unreadable = {**self.unreadable, **more}
        self.result.describe(measured=self.summary.measured())
        self.result.save(asked.output)

    def facts(self) -> dict[str, Any]:
        """For machines."""
        facts = {**self.asked.facts(), "unreadable": options.unreadable_facts(self.unreadable)}
        facts |= {"seconds": self.seconds, "phases": self.result.timings.to_dict()}
        facts |= {"summary": self.summary and self.summary.to_dict()}
        facts |= {} if self.distilled is None else {"distilled": self.distilled.facts()}
        return {**facts, "records": [dataclasses.asdict(record) for record in self.result.records]}

    def show(self) -> None:
        """For people."""
        longest = max(self.result.networks)
        show_records([record for record in self.result.records if record.T == longest], longest)
        if self.summary is not None:
            show_summary(str(self.asked.output), self.summary)
        options.tell_unreadable(self.unreadable)
        for note in () if self.distilled is None else self.distilled.notes:
            typer.echo(f"distilled: {note}", err=True)
        if self.why and self.asked.test > 0:
            typer.echo(f"no summary: {self.why}", err=True)


def same_images(a: "Data", b: "Data") -> bool:
    """Whether two splits are one: some sources have no others."""
    from torch import Tensor, equal

    if isinstance(a.images, Tensor) and isinstance(b.images, Tensor):
        return equal(a.images, b.images)
    return bool(a.images == b.images)  # lists of files


def show_records(records: list["StageRecord"], T: int) -> None:
    rows = []
    for record in records:
        errors = " → ".join(f"{value:.4f} {label}" for label, value in record.errors)
        shares = [percent(share) if share is not None else "" for share in (record.rate, record.saturated, record.dead)]
        rows.append((record.stage, record.kind, errors, *shares, f"{record.seconds:.1f}"))
    columns = ("stage", "kind", "relative error", ">rate %", ">saturated %", ">dead %", ">s")
    show_table(f"Stages at T = {T}", columns, rows)
