"""One figure of a table of classifiers: the accuracy of an ANN or of a network converted from it."""

import json
import statistics
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spikecal.data.prepare import Loader, PreparedPairs
from spikecal.data.sources import subset
from spikecal.evaluation import accuracy, evaluate
from spikecal.files import write_whole
from spikecal.progress import Progress
from spikecal.ranks import current
from spikecal.reproduce.cells import FIXED, Cell
from spikecal.reproduce.paired import packed
from spikecal.reproduce.ways import Order
from spikecal.snn.network import SpikingNetwork

if TYPE_CHECKING:
    from spikecal.reproduce.classifiers import Classifier

BATCH, BATCH_OUTPUTS = 250, 20_000  # test images per call, and images × steps: outputs of all steps are kept


def ann_accuracy(cell: Cell, subject: "Classifier", progress: Progress) -> dict[str, Any]:
    """The accuracy of the original network."""
    loader = _test(cell, subject, BATCH)
    share = accuracy(subject.network, loader, progress)
    return {"score": share, "images": cell.images - len(loader.unreadable)}


def snn_accuracy(
    cell: Cell, subject: "Classifier", work: Path | None, progress: Progress, memory: int | None
) -> dict[str, Any]:
    """The accuracy of the converted network."""
    assert cell.pipeline is not None
    pipeline = cell.pipeline.fixed
    images, unreadable = subject.calibration(pipeline.images, cell.seed, cell.source)
    made = cell.way.make(
        Order(
            model=subject.network,
            images=PreparedPairs(images.data, images.card) if pipeline.needs_labels else images,
            plan=cell.pipeline,
            T=cell.T,
            seed=cell.seed,
            workdir=None if work is None else work / "conversion",
            memory=memory,
            progress=progress,
        )
    )
    loader = _test(cell, subject, max(1, min(BATCH, BATCH_OUTPUTS // cell.T)))
    found = _evaluate(made.snn, loader, work, progress)
    facts = {
        "score": found.right / found.images,
        "images": found.images,
        "rate": found.rates / found.images,
        "energy": found.energies / found.images,
        "spikes": found.spikes / found.images,
        "latency": made.snn.latency,
        "answers": packed(bit == "1" for bit in found.answers),
        **({} if made.kept is None else {"kept": made.kept}),
        **({"curve": [right / found.images for right in found.rights]} if cell.way.anytime else {}),
        "notes": [f"{record.stage}: {note}" for record in made.records for note in record.notes],
    }
    left_out = len(unreadable) + cell.images - found.images
    return {**facts, "unreadable": left_out} if left_out else facts


def _test(cell: Cell, subject: "Classifier", batch: int) -> Loader:
    return Loader(subset(subject.images[1], cell.images, FIXED), subject.card, batch, subject.strict)


class _Tested(NamedTuple):
    """Sums so far: correct answers after the last step, images, mean rates, shares of the ANN's energy, spikes."""

    batches: int = 0
    right: int = 0
    images: int = 0
    rates: float = 0.0
    energies: float = 0.0
    spikes: int = 0
    rights: tuple[int, ...] = ()  # right answers after every step
    answers: str = ""  # of every image after the last step: 1 if it is right, else 0


def _evaluate(snn: SpikingNetwork, loader: Loader, work: Path | None, progress: Progress) -> _Tested:
    """Sums over all test images, resumed after the last batch recorded in `work`."""
    state = None if work is None else work / "evaluation.json"
    ranks = current()
    sums = _Tested(**ranks.decided(_begun(state)._asdict()))
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
            sums.spikes + found.spikes,
            tuple(round(s * found.images) + r for s, r in zip_longest(found.accuracy, sums.rights, fillvalue=0)),
            sums.answers + "".join(str(int(right)) for right in found.correct),
        )
        progress.advance()
        if state is not None and ranks.first:
            write_whole(state, json.dumps(sums))
    return sums


def _begun(state: Path | None) -> _Tested:
    """The sums so far; an unreadable file counts as nothing done."""
    try:
        if state is not None and state.exists():
            batches, right, images, rates, energies, spikes, rights, answers = json.loads(state.read_text())
            sums = (int(batches), int(right), int(images), float(rates), float(energies), int(spikes))
            return _Tested(*sums, tuple(map(int, rights)), str(answers))
    except (ValueError, TypeError):
        pass
    return _Tested()
