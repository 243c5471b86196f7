"""Classifiers: one answer per image, measured by accuracy."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, equal, nn

from spikecal.analysis.evaluate import original
from spikecal.analysis.exits import ExitRule
from spikecal.analysis.inspection import inspect
from spikecal.analysis.summary import Summary
from spikecal.analysis.timing import timings
from spikecal.conversion import convert
from spikecal.data.card import Card
from spikecal.data.images import Data, FileImages, Unreadable, data_fingerprint, readable
from spikecal.data.prepare import Prepared, PreparedPairs
from spikecal.data.sources import DISTILLED, chosen_data, load_data, subset
from spikecal.detection.sources import KINDS
from spikecal.distillation.distill import Distilled, distill
from spikecal.errors import ConfigError, DataError, refuse_unreadable
from spikecal.graph.lowering.lower import lower
from spikecal.pipeline import Plan
from spikecal.progress import Progress, has_bars
from spikecal.report.source import Source
from spikecal.result import Result
from spikecal.snn.origin import Timings
from spikecal.tasks.choosing import choice_lines
from spikecal.tasks.classifier_training import train_classifier
from spikecal.tasks.classifiers import load_networks, look_at_classifiers, with_images_of
from spikecal.tasks.distilling import batch_line
from spikecal.tasks.exits import exit_lines, exit_rules, exits_table
from spikecal.tasks.outcome import (
    Line,
    Outcome,
    Table,
    asides,
    duration,
    size,
    unreadable_facts,
    unreadable_lines,
)
from spikecal.tasks.pages import Written, report_result
from spikecal.tasks.requests import Conversion, Evaluation, Reporting, Training
from spikecal.tasks.summary import measure, records_table, steps_table, summary_table
from spikecal.tasks.task import Labelled, Looked, Part, Say
from spikecal.tasks.waiting import waiting_lines
from spikecal.zoo.models import build_model, load_model, random_images

TIMED = 16  # images of the timed pass that estimates come from
FOLDER = "distilled"  # in the working directory of a conversion


class Classification:
    """The task of a network that gives one row of class scores per image."""

    def labelled(self, data: str, split: str, root: Path | None) -> Labelled:
        """A dataset with a class for every image, or without labels."""
        found = load_data(data, split, root)
        return Labelled(found, None if found.labels is None else int(found.labels.unique().numel()))

    def part(self, model: str, pipeline: Plan) -> Part:
        """The whole network."""
        return Part(*build_model(model), pipeline, TIMED)

    def convert(self, asked: Conversion, progress: Progress | None, say: Say) -> Outcome:
        """Convert a network, write it, and measure it on test images."""
        if (asked.data or "").partition(":")[0] in KINDS:
            raise ConfigError(f"{asked.data} is for detectors: if {asked.model} is one, add --task detect")
        if asked.readout is not None:
            raise ConfigError(f"--readout is for detectors, and {asked.model} is a classifier")
        network, card = load_model(asked.model, asked.weights, device=asked.device)
        distilled, distilling = None, 0.0
        if asked.data == DISTILLED:
            started = time.perf_counter()
            distilled = distilled_for(asked, network, card, progress, say)
            source, distilling = distilled.data(), time.perf_counter() - started
        else:
            source = chosen_data(asked.data, card, "train", asked.data_root)
        chosen, unreadable = readable(source, asked.pipeline.fixed.images, asked.seed)
        if asked.strict:
            refuse_unreadable(chosen.name, unreadable)
        started = time.perf_counter()
        images = PreparedPairs(chosen, card) if asked.pipeline.fixed.needs_labels else Prepared(chosen, card)
        result = convert(network, images, keep=asked.keep, **asked.settings(progress))
        made = _Made(asked, result, distilled, distilling + time.perf_counter() - started, unreadable)
        result.describe(card=replace(card, data=card.data if asked.data in (None, DISTILLED) else asked.data).to_dict())
        if distilled is not None:
            result.timings.distilling = distilling
        if source.distilled:
            result.describe(calibration=DISTILLED)
        result.save(asked.output)  # before measuring: nothing from here on changes it
        made.measure(network, card, source, progress)
        if asked.report is not None:
            name = asked.output.name
            made.page = report_result(
                asked.report, name, result, network, made.tested, card, made.summary, made.why, progress
            )
        return Outcome(made.facts(), made.parts())

    def evaluate(self, asked: Evaluation, progress: Progress | None) -> Outcome:
        """Measure accuracy after every step, the steps needed, energy and firing rates."""
        file, info = asked.file, inspect(asked.file)
        network, card = (
            (None, None) if asked.model is None else load_model(asked.model, asked.weights, device=asked.device)
        )
        kept = Card.from_dict(info["card"]) if "card" in info else None
        card = with_images_of(card, kept)
        if card is None:
            raise ConfigError(f"{file} does not state what images it takes: give the source model with --model")
        held_out = chosen_data(asked.data, card, "test", asked.data_root, from_file=kept is not None)
        test = subset(held_out, asked.images, asked.seed)
        networks = load_networks(
            file, asked.steps or sorted(info["T"]), network, Prepared(test, card), asked.neurons, asked.device
        )
        ann = original(networks[0]) if network is None else network
        if ann is None and asked.within is not None:
            raise ConfigError(
                f"{file} has calibrated weights and no longer holds its ANN: give the source model with --model"
            )
        if ann is None and test.labels is None:
            raise ConfigError(f"{test.name} has no labels: give the source model to compare with by --model")
        rules, without = dict[int, ExitRule](), list[str]()
        if asked.exit is not None:
            source = chosen_data(asked.data, card, "train", asked.data_root, from_file=kept is not None)
            if same_images(source, held_out):
                raise ConfigError(
                    f"{source.name} has only one split, but --exit must set its rule on images that are not tested"
                )
            rules, without = exit_rules(
                networks, ann, source, card, asked.exit, asked.exit_images, asked.seed, progress
            )  # fmt: skip
        summary, unreadable = measure(
            networks, ann, test, card, "test", strict=asked.strict, points=asked.within,
            seconds=Timings.beside(file).alone(), rules=rules, progress=progress,
        )  # fmt: skip
        parts: list[Table | Line] = [summary_table(str(file), summary)]
        parts += [exits_table(summary.found)] if rules else []
        parts += exit_lines(without)
        parts += [steps_table(found) for found in summary.found] if asked.steps else []
        parts += [] if asked.within is None else [Line(summary.answer())]
        parts += unreadable_lines(unreadable)
        if network is not None and summary.by_chance:
            parts += asides([f"warning: {summary.doubt(str(file))}"])
        facts = {"file": str(file), **summary.to_dict(), "unreadable": unreadable_facts(unreadable)}
        return Outcome(facts | ({} if asked.exit is None else {"without_exit": without}), parts)

    def look(
        self, files: Sequence[tuple[Path, Source]], asked: Reporting, progress: Progress | None, say: Say
    ) -> list[Looked]:
        """Measure accuracy if there are labels, errors, energy, and some images to follow."""
        return look_at_classifiers(files, asked, progress)

    def train(self, asked: Training, progress: Progress | None, say: Say) -> Outcome:
        """Train a classifier, measure it on the test images, write its weights and its card."""
        return train_classifier(asked, progress, say)


@dataclass
class _Made:
    """A conversion on disk, and what was measured of it."""

    asked: Conversion
    result: Result
    distilled: Distilled | None
    seconds: float
    unreadable: Unreadable
    summary: Summary | None = None
    tested: Data | None = field(default=None, repr=False)
    why: str = ""  # why there is no summary
    page: Written | None = None

    def measure(self, network: nn.Module, card: Card, source: Data, progress: Progress | None) -> None:
        """Run it on test images, if there are any, and store the measurements in the file."""
        asked, data = self.asked, self.asked.data
        if asked.test == 0:
            self.why = "--test 0"
            return
        try:
            if source.distilled:  # it is still measured on real images, if there are any
                if card.data is None:
                    raise DataError(f"{card.name} comes with no images to test on")
                data = None
            held_out = chosen_data(data, card, "test", asked.data_root)
            self.tested = subset(held_out, asked.test, asked.seed)
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
        except (DataError, ConfigError) as error:  # no test images, or no labels
            self.why = str(error)
            return
        self.unreadable = {**self.unreadable, **more}
        self.result.describe(measured=self.summary.measured())
        self.result.save(asked.output)

    def facts(self) -> dict[str, Any]:
        """For machines."""
        facts = {**self.asked.facts(self.result), "unreadable": unreadable_facts(self.unreadable)}
        facts |= {"seconds": self.seconds, "phases": self.result.timings.to_dict()}
        facts |= {"summary": self.summary and self.summary.to_dict()}
        facts |= {} if self.distilled is None else {"distilled": self.distilled.facts()}
        facts |= {"records": [dataclasses.asdict(record) for record in self.result.records]}
        return facts if self.page is None else {**facts, "report": self.page.facts()}

    def parts(self) -> list[Table | Line]:
        """For people."""
        longest, file = max(self.result.networks), self.asked.output
        parts: list[Table | Line] = [records_table(self.result.records, longest)] if self.result.records else []
        if self.summary is not None:
            parts.append(summary_table(str(file), self.summary))
        parts += choice_lines(self.result.origin.choices)
        parts += waiting_lines(timings(self.result))
        parts += unreadable_lines(self.unreadable)
        parts += asides([] if self.distilled is None else [f"distilled: {note}" for note in self.distilled.notes])
        parts += asides([f"no summary: {self.why}"] if self.why and self.asked.test > 0 else [])
        parts += [] if self.page is None else self.page.lines()
        return [*parts, Line(f"{file}: {size(file.stat().st_size)}, {duration(self.seconds)}")]


def same_images(a: Data, b: Data) -> bool:
    """Whether two splits are the same: some sources have only one."""
    if isinstance(a.images, Tensor) and isinstance(b.images, Tensor):
        return equal(a.images, b.images)
    if isinstance(a.images, FileImages):
        return bool(a.images == b.images)
    return data_fingerprint(a) == data_fingerprint(b)


def distilled_for(asked: Conversion, network: nn.Module, card: Card, progress: Progress | None, say: Say) -> Distilled:
    """Images for `--data distilled`: made with the defaults from the network to be converted."""
    if card.size is None:
        raise ConfigError(
            f"{asked.model} does not state the size of its images: run "
            f"`spikecal distill {asked.model} --size H W -o images.npz`, then give --data npz:images.npz"
        )
    lower(
        network, (random_images(network, card, 2, card.size),), asked.keep
    )  # refuse what cannot be converted before the work starts
    return distill(
        network,
        asked.pipeline.fixed.images,
        card=card,
        seed=asked.seed,
        workdir=None if asked.workdir is None else asked.workdir / FOLDER,
        memory=asked.memory,
        progress=progress,
        report=None if has_bars(progress) else lambda *batch: say(batch_line(*batch)),
    )
