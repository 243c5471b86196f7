"""Accuracy after every step of one run, and how often the neurons fire."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.calibration.images import is_list_of_batches
from spikecal.calibration.sweep import Progress
from spikecal.errors import DataError
from spikecal.snn.network import SpikingNetwork

BATCH = 250


@dataclass(frozen=True)
class Evaluation:
    """`accuracy[t - 1]` is the share of right answers after t steps; `rates` are spikes per neuron and step."""

    T: int
    images: int
    accuracy: list[float]
    rates: dict[str, float]


def evaluate(snn: SpikingNetwork, data: Any, progress: Progress | None = None) -> Evaluation:
    """Run `snn` once over `data`: a pair of tensors (images, labels), a dataset of pairs or a loader of batches."""
    right = torch.zeros(snn.T, dtype=torch.int64)
    images, spikes, neurons = 0, dict[str, int](), dict[str, int]()
    home = next(snn.parameters())
    for x, labels in labelled_batches(data, progress):
        run = snn.run(x.to(home.device, home.dtype))
        if not isinstance(run.outputs, Tensor) or run.outputs.ndim != 3:
            raise DataError("accuracy needs a network with one output of classes; use run() for other networks")
        classes = run.outputs.shape[-1]
        if (labels >= classes).any():
            raise DataError(f"there is a label {int(labels.max())}, and the network has {classes} classes")
        right += (run.outputs.argmax(-1).cpu() == labels.cpu()).sum(1)
        images += len(x)
        for name, counts in run.spikes.items():
            spikes[name] = spikes.get(name, 0) + int(counts.sum())
            neurons[name] = neurons.get(name, 0) + counts.numel()
    rates = {name: spikes[name] / (neurons[name] * snn.T) for name in spikes}
    return Evaluation(snn.T, images, (right / images).tolist(), rates)


@torch.no_grad()
def accuracy(model: nn.Module, data: Any, progress: Progress | None = None) -> float:
    """Share of right answers of an ordinary network."""
    right = images = 0
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    for x, labels in labelled_batches(data, progress):
        right += int((model(x.to(like.device, like.dtype)).argmax(-1).cpu() == labels.cpu()).sum())
        images += len(x)
    return right / images


def labelled_batches(data: Any, progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels out of tensors, a dataset or a loader."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"there are {len(images)} images and {len(labels)} labels")
        found: Iterable[Any] = zip(images.split(BATCH), labels.split(BATCH), strict=True)
        count = -(-len(images) // BATCH)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not is_list_of_batches(data):
        found = loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
        count = len(loader)
    elif isinstance(data, Iterable):
        found, count = data, getattr(data, "__len__", lambda: 0)()
    else:
        raise DataError(f"evaluation needs images with labels, not {type(data).__name__}")
    if progress is not None:
        progress.phase("evaluate", count, None)
    empty = True
    for item in found:
        if not isinstance(item, (tuple, list)) or len(item) < 2 or not isinstance(item[1], Tensor):
            raise DataError("evaluation needs labels: batches of (images, labels)")
        empty = empty and len(item[0]) == 0
        yield item[0], item[1]
        if progress is not None:
            progress.advance()
    if empty:
        raise DataError("there are no images to evaluate on")
