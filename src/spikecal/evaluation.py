"""Run networks over images, in one process or in several that add up their counts."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.analysis.energy import EnergyMeter
from spikecal.analysis.evaluate import (
    Counts,
    Evaluation,
    answering,
    batches,
    gives_classes,
    image_dims,
    labelled_batches,
    scoring,
)
from spikecal.analysis.exits import CONFIDENCE, SCALED, ExitRule, choose_rule, distances, margins
from spikecal.arguments import checked_number
from spikecal.devices import Device, device_of, placed, whatever_the_default
from spikecal.errors import ConfigError, DataError
from spikecal.graph.graph import Graph, describe
from spikecal.progress import Progress, Watching, watched
from spikecal.ranks import Ranks, current, together
from spikecal.snn.network import SpikingNetwork
from spikecal.workdir import fingerprint


@whatever_the_default
@together
def evaluate(
    snn: SpikingNetwork,
    data: Any,
    progress: Watching = None,
    *,
    ann: nn.Module | Graph | None = None,
    exit: ExitRule | None = None,
    device: Device = None,
    workers: int = 0,
) -> Evaluation:
    """Run `snn` once over `data`: a pair of tensors (images, labels), a dataset of pairs or a loader of batches.

    With `ann`, the source model, the answers are also compared with its own, and labels are not needed.
    Networks whose output is not classes are run on images alone, to count rates, spikes and energy.
    With `exit`, a rule of `spikecal.exit_rule`, the result's `exits` says what stopping settled images does.
    `progress`: True for a bar, or a function of phase, done and total. `device`: where to compute, by
    default where `snn` is. No more than two batches of a dataset or loader are held at a time: the next one is read
    while one runs. `workers` processes read a dataset whose images take Python long to make.
    """
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"evaluate needs a spiking network, such as result.snn, not {type(snn).__name__}")
    home, workers = device_of(device), checked_number("workers", workers, 0)
    with watched(current().shown(progress)) as watcher:
        teacher = placed(ann, home) if isinstance(ann, nn.Module) else ann
        return _evaluated(placed(snn, home), data, watcher, teacher, exit, workers)


def _evaluated(
    snn: SpikingNetwork,
    data: Any,
    progress: Progress,
    ann: nn.Module | Graph | None,
    rule: ExitRule | None,
    workers: int,
) -> Evaluation:
    ranks = current()
    ranks.agree("evaluate", lambda: {"network": fingerprint(snn.state_dict().values(), [snn.T, describe(snn.graph)])})
    counts, meter, read = Counts(snn.T), EnergyMeter(snn), Seen(ranks)
    early, before = None if rule is None else EnergyMeter(snn), 0
    home = next(snn.parameters())
    answers = None if ann is None else answering(ann)
    found = batches(data, progress, image_dims(snn.graph), workers=workers, note=counts.so_far)
    for number, (x, labels) in enumerate(found):
        x = x.to(home.device, home.dtype)
        if not gives_classes(snn, x):
            if rule is not None:
                raise DataError("early exit needs a network with one output of classes")
            if labels is not None:
                raise DataError(
                    "accuracy needs a single output of classes: give images alone to count spikes and energy"
                )
            answers = None
        elif labels is None and answers is None:
            raise DataError("evaluation needs labels: give batches of (images, labels), or the ANN to compare with")
        read.add(x, labels)
        calls = x.split(snn.images_per_call(x))  # few enough for their counts to stay in the processor's caches
        own = [calls[i] for i in ranks.each(len(calls), turn=number)]
        if own:
            first = sum(map(len, calls[: ranks.share(len(calls), turn=number).start]))
            mine = slice(first, first + sum(map(len, own)))
            own_labels = None if labels is None else labels[mine]
            counts.add(snn, own, meter, own_labels, answers and answers(x[mine]), rule, early, before + first)
        before += len(x)
    read.check("evaluate")
    totals, meters = Counts(snn.T), [meter] if early is None else [meter, early]
    wholes = [EnergyMeter(snn) for _ in meters]
    for _, (counted, tallied) in ranks.gathered({}, [asdict(counts), [one.tallies() for one in meters]]):
        totals.merge(Counts(**counted))
        for whole, tallies in zip(wholes, tallied, strict=True):
            whole.merge(tallies)
    exits = None if rule is None else totals.exits(snn, rule, wholes[1].result())
    return totals.evaluation(snn, wholes[0].result(), answers is not None, exits)


@whatever_the_default
@together
@torch.no_grad()
def exit_rule(
    snn: SpikingNetwork,
    images: Any,
    *,
    ann: nn.Module | Graph,
    agreement: float = 0.99,
    confidence: float = CONFIDENCE,
    progress: Watching = None,
) -> ExitRule:
    """The rule for when an answer of `snn` is settled, so that a share `agreement` of answers equals the ANN's.

    The rule is set on `images`, calibration images without labels: a tensor, a dataset or a loader. It promises for
    images that are like these; images that the ANN has not been trained on promise most honestly. `confidence` is how
    sure the promise is. A network that cannot keep it even after all of its steps is a ConfigError.
    """
    for name, share in (("agreement", agreement), ("confidence", confidence)):
        if not isinstance(share, float) or not 0 < share < 1:
            raise ConfigError(f"{name} must be a share between 0 and 1, such as 0.99, not {share!r}")
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"an exit rule needs a spiking network, such as result.snn, not {type(snn).__name__}")
    home, scores, ranks = next(snn.parameters()), scoring(ann), current()
    kinds = torch.int64, home.dtype, torch.bool, torch.float64
    found = [tuple(torch.empty(0, snn.T, dtype=kind) for kind in kinds)]  # rows of images; a rank may have none
    read, before = Seen(ranks), 0
    with watched(ranks.shown(progress)) as watcher:
        for number, (x, _) in enumerate(batches(images, watcher, image_dims(snn.graph))):
            x = x.to(home.device, home.dtype)
            if not gives_classes(snn, x):
                raise DataError("early exit needs a network with one output of classes")
            read.add(x)
            places = torch.arange(before, before + len(x))[:, None].expand(-1, snn.T)
            size = snn.images_per_call(x)
            calls = list(zip(places.split(size), x.split(size), strict=True))
            for i in ranks.each(len(calls), turn=number):
                place, part = calls[i]
                outputs, target = snn.run(part).outputs, scores(part).to(home.device)
                agree = outputs.argmax(-1) == target.argmax(-1)
                rows = margins(outputs).T, agree.T, distances(outputs, target).T
                found.append((place, *(row.cpu() for row in rows)))
            before += len(x)
    read.check("exit_rule")
    place, *rest = (ranks.joined(torch.cat(parts)) for parts in zip(*found, strict=True))
    order = place[:, 0].argsort()
    margin, agree, apart = (rows[order].T.contiguous() for rows in rest)
    count = margin.shape[1]
    scaled = min(SCALED, count // 4)
    if scaled == 0:
        raise DataError(f"an exit rule needs at least 4 images, not {count}")
    scaling = torch.zeros(count, dtype=torch.bool)
    scaling[torch.arange(scaled) * count // scaled] = True  # images may come sorted by class
    scales = apart[:, scaling].mean(1).sqrt().tolist()
    return choose_rule(margin[:, ~scaling], agree[:, ~scaling], scales, agreement, confidence)


class Seen:
    """This rank's share of the images and labels; all ranks should be given the same."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._prints = ranks, list[str]()

    def add(self, *given: Tensor | None) -> None:
        if self._ranks.count > 1:
            self._prints.append(fingerprint((tensor for tensor in given if tensor is not None), []))

    def check(self, call: str) -> None:
        self._ranks.agree(call, lambda: {"images": fingerprint([], self._prints)})


@torch.no_grad()
def accuracy(model: nn.Module | Graph, data: Any, progress: Progress | None = None) -> float:
    """Share of correct answers of an ordinary network."""
    right, images, ranks = 0, 0, current()
    answers = answering(model)
    for number, (x, labels) in enumerate(labelled_batches(data, progress)):
        ranks.beat()
        images += len(x)
        if number % ranks.count == ranks.rank:
            right += int((answers(x) == labels.cpu()).sum())
    return int(ranks.counted(torch.tensor(right))) / images
