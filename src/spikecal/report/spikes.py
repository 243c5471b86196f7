"""Spikes of single images, step by step, packed so that the page stays small."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from spikecal.data.card import Card
from spikecal.graph.stages import Stage
from spikecal.snn.execute import Want, shapes_of
from spikecal.snn.network import SpikingNetwork

CLASSES = 10  # shown per image
THUMBNAIL = 96  # pixels of the longer side
LEVELS = 15  # of a cell of a map, which takes half a byte
CLASS_BYTES = 9  # of one class at one step, as JSON
BASE64 = 4 / 3


@dataclass(frozen=True)
class Plan:
    """What the page shows: how many images, neurons per layer, and positions per side of a map (0: no maps)."""

    images: int
    neurons: int
    grid: int

    def bytes(self, T: int, layers: Sequence[Sequence[int]]) -> float:
        """The approximate size of a network; `layers` are the shapes of its neurons' outputs, `[1, ...]`."""
        packed = 0.0
        for shape in layers:
            count = int(np.prod(shape[1:]))
            packed += min(self.neurons, count) * -(-T // 8) + T
            if self.grid and len(shape) == 4:
                packed += T * -(-min(self.grid, shape[2]) * min(self.grid, shape[3]) // 2)
        return self.images * (BASE64 * packed + 60 * len(layers) + T * (CLASSES * CLASS_BYTES + 4))


LADDER = (
    Plan(8, 64, 16), Plan(8, 64, 12), Plan(8, 64, 8), Plan(6, 64, 8), Plan(4, 64, 8), Plan(4, 64, 4), Plan(4, 64, 0),
    Plan(4, 32, 0), Plan(2, 32, 0), Plan(1, 32, 0), Plan(1, 16, 0),
)  # fmt: skip


def plan_within(networks: Sequence[tuple[int, Sequence[Sequence[int]]]], budget: float) -> Plan | None:
    """The richest plan with room for all networks (T, shapes of layers) together."""
    return next((plan for plan in LADDER if sum(plan.bytes(T, shapes) for T, shapes in networks) <= budget), None)


def neuron_shapes(network: SpikingNetwork, image: Tensor) -> list[tuple[int, ...]]:
    """Shapes of the outputs of layers of neurons for one image `[1, ...]`."""
    shapes = shapes_of(network.graph, (image,))
    return [tuple(shapes[stage.name]) for stage in network.stages if stage.spiking]


@torch.no_grad()
def spikes_over_time(network: SpikingNetwork, image: Tensor) -> Iterator[tuple[Stage, Tensor]]:
    """For every layer of neurons, which of them fire when: booleans `[T, ...]` for one image `[1, ...]`."""
    inputs, course = network.input_values((image,)), network.course((image,))
    for stage, emission in course.advance(inputs, network.windows.end, last=True, want=Want.VALUE | Want.LEVELS):
        if emission.levels is not None:
            yield stage, emission.levels[:, 0] != 0


def trace(network: SpikingNetwork, image: Tensor, plan: Plan) -> dict[str, Any]:
    """One image through one network: activity of layers `[layers, T]`, rasters and maps of each layer."""
    activity, rasters, maps = [], [], []
    for _, fired in spikes_over_time(network, image):
        flat = fired.flatten(1)
        activity.append(flat.float().mean(1))
        rasters.append(_raster(flat, plan.neurons))
        maps.append(_map(fired, plan.grid) if plan.grid and fired.ndim == 4 else None)
    found: dict[str, Any] = {"raster": rasters}
    if activity:
        found["activity"] = packed(_levels(torch.stack(activity), 255))
    if any(of is not None for of in maps):
        found["maps"] = maps
    return found


def _raster(flat: Tensor, neurons: int) -> dict[str, Any]:
    """`neurons` of `[T, n]`, evenly spaced; one row per neuron, one bit per step, the first in the highest bit."""
    count = flat.shape[1]
    shown = min(neurons, count)
    index = (torch.arange(shown) * 2 + 1) * count // (2 * shown)
    rows = np.packbits(flat[:, index].T.cpu().numpy(), axis=1)
    return {"of": count, "rows": shown, "bits": packed(rows)}


def _map(fired: Tensor, grid: int) -> dict[str, Any]:
    """The share of channels that fire around each position: `[T, C, H, W]` to half bytes, step by step."""
    share = fired.float().mean(1, keepdim=True)
    height, width = min(grid, share.shape[2]), min(grid, share.shape[3])
    cells = _levels(F.adaptive_avg_pool2d(share, (height, width)), LEVELS).reshape(len(share), -1)
    if cells.shape[1] % 2:
        cells = np.pad(cells, ((0, 0), (0, 1)))
    return {"height": height, "width": width, "cells": packed(cells[:, ::2] << 4 | cells[:, 1::2])}


def _levels(share: Tensor, levels: int) -> np.ndarray:
    """The square roots of shares in 0..1 as integer levels, so that the usual few spikes are visible."""
    return (share.sqrt() * levels).round().to(torch.uint8).cpu().numpy()


def packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def outputs_over_time(outputs: Tensor, wanted: Sequence[int | None]) -> dict[str, Any]:
    """The answer after every step, and the running means `[T, classes]` of the interesting classes.

    These are the `wanted` ones, those that were the answer at some step, and the largest at the end.
    """
    answers = outputs.argmax(-1).tolist()
    held = sorted(set(answers), key=answers.count, reverse=True)
    final = outputs[-1].argsort(descending=True).tolist()
    asked = [index for index in wanted if index is not None]
    shown = sorted(list(dict.fromkeys([*asked, *held[: CLASSES - 3], *final]))[:CLASSES])
    return {"answers": answers, "classes": shown, "values": outputs[:, shown].T.tolist()}


def thumbnail(image: Tensor, card: Card) -> str | None:
    """The network's input `[C, H, W]` as a PNG in a data URI; None if it is not a picture."""
    if image.ndim != 3:
        return None
    pixels = image.detach().float().cpu()
    if card.mean is not None and card.std is not None:
        shape = (-1, 1, 1)
        pixels = pixels * torch.tensor(card.std).reshape(shape) + torch.tensor(card.mean).reshape(shape)
    elif float(pixels.min()) < 0 or float(pixels.max()) > 1:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = (pixels - low) / (high - low)
    if pixels.shape[0] not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    array = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_uri("image/png", file.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def choose_samples(answers: Sequence[int], expected: Sequence[int] | None, count: int) -> list[int]:
    """Which images to show: a quarter with unexpected answers, the rest from many classes."""
    if expected is None:
        expected = answers
    wrong = [i for i, (a, b) in enumerate(zip(answers, expected, strict=True)) if a != b]
    chosen = wrong[: count // 4]
    by_class: dict[int, list[int]] = {}
    for i, label in enumerate(expected):
        if i not in chosen:
            by_class.setdefault(label, []).append(i)
    queues = list(by_class.values())
    while len(chosen) < count and any(queues):
        chosen += [queue.pop(0) for queue in queues if queue][: count - len(chosen)]
    return sorted(chosen)
