"""A cell is the unit of work: one number of a table for one seed, a function of its configuration alone."""

import json
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from spikecal import __version__
from spikecal.analysis.complexity import parameter_numbers
from spikecal.analysis.evaluate import accuracy, evaluate
from spikecal.calibration.calibrators import Weights
from spikecal.conversion import convert
from spikecal.data.prepare import Loader
from spikecal.data.sources import Data, subset
from spikecal.errors import DataError
from spikecal.files import write_whole
from spikecal.graph.stages import partition
from spikecal.phases import MEASURED, image_passes, images_of
from spikecal.pipeline import Pipeline
from spikecal.progress import Progress, Silent
from spikecal.reproduce import detectors
from spikecal.reproduce.detectors import DetectorSubject
from spikecal.reproduce.subjects import Subject
from spikecal.snn.network import SpikingNetwork
from spikecal.workdir import fingerprint

VERSION = 1  # of what is measured; another one is another cell
FIXED = 0  # the seed that test images are drawn by: the same for all cells, so that seeds vary calibration only
BATCH, BATCH_OUTPUTS = 250, 20_000  # test images a call, and images × steps: outputs of all steps are kept
TIMED_ROUNDS = 3
LONG_SECONDS = 60.0
STEP_COST = 1.4  # a time step of one image in ANN passes, about
MORE_SOLVING = 1  # passes an image and iteration of small networks costs beyond the three of `image_passes`


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured: `row` names it in its table, the rest decides the number."""

    kind: Literal["ann", "accuracy", "detection", "time", "space"]
    model: str
    row: str = ""
    pipeline: Pipeline | None = None
    T: int = 0
    seed: int = 0
    images: int = 0  # of the test set
    source: str = ""  # of the calibration images, where they are not the network's own

    def __str__(self) -> str:
        parts = [self.model, self.row or self.kind]
        if self.T:
            parts += [f"T={self.T}", f"seed {self.seed}"]
        return ", ".join(parts)

    def configuration(self, subject: Subject | DetectorSubject) -> dict[str, Any]:
        """Everything the number depends on."""
        facts: dict[str, Any] = {
            "version": [VERSION, __version__],
            "kind": self.kind,
            "model": subject.spec,
            "model_hash": subject.model_print,
        }
        if self.kind in ("ann", "accuracy", "detection"):
            facts |= {"test": subject.test_print, "images": self.images, "images_seed": FIXED}
        if self.pipeline is not None and self.T:
            facts |= {"pipeline": self.pipeline.to_dict(), "T": self.T, "seed": self.seed}
            facts |= {"train": subject.calibration_print(self.source)}
        if self.kind == "space" and isinstance(subject, Subject):
            facts |= {"shape": list(subject.example(1).shape)}
        if self.kind == "time":
            facts |= {"machine": machine()}
        return facts

    def key(self, subject: Subject | DetectorSubject) -> str:
        return fingerprint([], self.configuration(subject))[:32]

    def passes(self) -> float:
        """The work of it in passes of the ANN over one image, about."""
        if self.pipeline is None or not self.T:
            return self.images
        work = self.pipeline.threshold.images + STEP_COST * self.T * self.images
        work += sum(image_passes(phase, images_of(phase), self.T) for phase in self.pipeline.sweeps)
        solved = [c for c in self.pipeline.calibrators if isinstance(c, Weights)]
        return work + sum(MORE_SOLVING * c.iterations * c.batch for c in solved)


def machine() -> dict[str, Any]:
    """Where something was measured."""
    processor = platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": f"{processor} {capability}"}


def measure(
    cell: Cell,
    subject: Subject | DetectorSubject,
    work: Path | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> dict[str, Any]:
    """The numbers of a cell. In `work` a long one keeps what it has, so that it can be killed.

    `memory` are the bytes that a conversion may use.
    """
    progress = progress or Silent()
    if isinstance(subject, DetectorSubject):
        return detectors.measure(cell, subject, subject.test.sample(cell.images, FIXED), work, progress, memory)
    if cell.kind == "ann":
        test = _test(cell, subject)
        loader = Loader(test, subject.card, BATCH, subject.strict)
        share = accuracy(subject.network, loader, progress)
        return {"accuracy": share, "images": len(test) - len(loader.unreadable)}
    if cell.kind == "space":
        return space(subject)
    assert cell.pipeline is not None
    if cell.kind == "time":
        return timing(cell, subject, progress, memory)
    images, unreadable = subject.calibration(cell.pipeline.images, cell.seed, cell.source)
    result = convert(
        subject.network,
        images,
        T=cell.T,
        pipeline=cell.pipeline,
        seed=cell.seed,
        workdir=None if work is None else work / "conversion",
        memory=memory,
        records=False,
        progress=progress,
    )
    test = _test(cell, subject)
    loader = Loader(test, subject.card, max(1, min(BATCH, BATCH_OUTPUTS // cell.T)), subject.strict)
    found = _evaluate(result.at(cell.T), loader, work, progress)
    facts = {
        "accuracy": found.right / found.images,
        "images": found.images,
        "rate": found.rates / found.images,
        "energy": found.energies / found.images,
        "notes": [f"{record.stage}: {note}" for record in result.records for note in record.notes],
    }
    left_out = len(unreadable) + len(test) - found.images
    return {**facts, "unreadable": left_out} if left_out else facts


def _test(cell: Cell, subject: Subject) -> Data:
    if subject.test is None:
        raise DataError(f"{subject.spec}: there are no test images")
    return subset(subject.test, cell.images, FIXED)


class _Tested(NamedTuple):
    """Sums so far: right answers after the last step, images, mean firing rates and shares of the ANN's energy."""

    batches: int = 0
    right: int = 0
    images: int = 0
    rates: float = 0.0
    energies: float = 0.0


def _evaluate(snn: SpikingNetwork, loader: Loader, work: Path | None, progress: Progress) -> _Tested:
    """What all test images sum up to; it goes on after the last batch that `work` knows of."""
    state = None if work is None else work / "evaluation.json"
    sums = _begun(state)
    progress.phase("evaluate", len(loader) - sums.batches, None)
    for i, batch in enumerate(loader):
        if i < sums.batches:
            continue
        found = evaluate(snn, [batch])
        rate = statistics.fmean(found.rates.values()) if found.rates else 0.0
        energy = (found.energy.ratio if found.energy else None) or 0.0
        sums = _Tested(
            i + 1,
            sums.right + round(found.accuracy[-1] * found.images),
            sums.images + found.images,
            sums.rates + found.images * rate,
            sums.energies + found.images * energy,
        )
        progress.advance()
        if state is not None:
            write_whole(state, json.dumps(sums))
    return sums


def _begun(state: Path | None) -> _Tested:
    """What was summed up before; a file that does not say counts as nothing done."""
    try:
        if state is not None and state.exists():
            batches, right, images, rates, energies = json.loads(state.read_text())
            return _Tested(int(batches), int(right), int(images), float(rates), float(energies))
    except (ValueError, TypeError):
        pass
    return _Tested()


def timing(cell: Cell, subject: Subject, progress: Progress, memory: int | None) -> dict[str, Any]:
    """Seconds of a conversion's parts, and how many passes of the ANN over the same images its sweeps are worth."""
    assert cell.pipeline is not None
    calibration, _ = subject.calibration(cell.pipeline.images, cell.seed)
    settings: dict[str, Any] = {"T": cell.T, "pipeline": cell.pipeline, "seed": cell.seed, "memory": memory}
    result = convert(subject.network, calibration, progress=progress, **settings)
    used = min(max(c.images for c in cell.pipeline.calibrators), len(calibration))
    images = subject.example(min(MEASURED, used))
    graph = result.snn.graph  # as ANN: batch normalisation folded, channels-last
    rounds = []
    with torch.no_grad():
        for _ in range(TIMED_ROUNDS):
            started = time.perf_counter()
            graph.run(images)
            rounds.append(time.perf_counter() - started)
    ann = statistics.median(rounds) * used / len(images)
    seconds = result.timings.steps[cell.T]
    return {
        "seconds": seconds,
        "thresholds": result.timings.thresholds,
        "ann_pass": ann,
        "passes": seconds / ann,
        "images": used,
    }


def space(subject: Subject) -> dict[str, Any]:
    """How many numbers each kind of calibration changes: a set of them is kept for every T."""
    numbers = parameter_numbers(subject.graph, (subject.example(1),))
    named = {kind.capitalize(): count for kind, count in numbers.items()}
    return {**named, "stages": len(partition(subject.graph))}


def same_for_every_seed(pipeline: Pipeline, available: int) -> bool:
    """Whether a seed cannot matter: thresholds alone, out of all the images there are, in whatever order."""
    return not pipeline.sweeps and pipeline.threshold.images >= available


def long_cell(cell: Cell, subject: Subject | DetectorSubject) -> bool:
    """Whether a cell is worth keeping its own parts on disk while it is made; the result does not depend on it."""
    return cell.kind in ("accuracy", "detection") and cell.passes() * subject.seconds_a_pass > LONG_SECONDS
