"""Measure a result in Python on the user's images, and write its page."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.analysis.evaluate import batches, gives_classes, original
from spikecal.analysis.summary import Summary
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.errors import DataError
from spikecal.evaluation import evaluate
from spikecal.files import check_output
from spikecal.graph.graph import Graph
from spikecal.progress import Silent, Watching, watched
from spikecal.report.content import NOTHING
from spikecal.report.measure import look
from spikecal.report.source import from_result
from spikecal.result import Result
from spikecal.tables import Table
from spikecal.tasks.pages import carried, write_report
from spikecal.tasks.summary import summary_table

NAME = "your data"  # for images without a name
NETWORK = "network"


def measured(result: Result, data: Any, ann: nn.Module | None, progress: Watching) -> Table:
    """The table of `spikecal evaluate`; the measurements are stored in the result, and so in its file."""
    with watched(progress) as watcher:
        summary = _summary(result, data, ann or _ann(result), watcher)
    result.describe(measured=summary.measured())
    return summary_table(NETWORK, summary)


def write_page(result: Result, path: Path, data: Any, ann: nn.Module | None, progress: Watching) -> None:
    """Write the page of `spikecal report`."""
    check_output(path)
    source = from_result(NETWORK, result)
    if data is None:
        write_report(path, [(source, NOTHING)], [carried(NETWORK, "none were given")])
        return
    images = _images(data)
    card = Card(name=NETWORK)  # the images are already normalised
    teacher = ann or _ann(result)
    with watched(progress) as watcher:
        answers = gives_classes(source.first, images.images[:1]) if isinstance(images.images, Tensor) else False
        known = answers and (images.labels is not None or teacher is not None)
        summary = _summary(result, data, teacher, watcher) if known else None
        write_report(path, [(source, look(source, teacher, images, card, summary, progress=watcher))])


def _ann(result: Result) -> Graph | None:
    return original(result.snn, result.pipeline.to_dict())


def _summary(result: Result, data: Any, ann: nn.Module | Graph | None, progress: Any) -> Summary:
    found = [evaluate(result.at(T), data, progress, ann=ann) for T in sorted(result.networks)]
    return Summary(NAME, "test", found, seconds=result.timings.alone())


def _images(data: Any) -> Data:
    """All images in memory, as the report draws them, and their labels if there are any."""
    if isinstance(data, Data):
        return data
    read = list(batches(data, Silent()))
    images, labels = [one for one, _ in read], [one for _, one in read if one is not None]
    if len({tuple(one.shape[1:]) for one in images}) > 1:
        raise DataError("a report needs images of one size: resize or crop them")
    known = len(labels) == len(images)
    return Data(name=NAME, images=torch.cat(images), labels=torch.cat(labels).cpu().long() if known else None)
