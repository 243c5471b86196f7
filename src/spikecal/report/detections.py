"""What a report measures of a detector with a spiking body, and the findings of both detectors in some images."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from spikecal.analysis.errors import measure_errors
from spikecal.data.card import Card
from spikecal.detection.boxes import BoxData, Target
from spikecal.detection.precision import Detections, Precision, readable_images
from spikecal.detection.spiking import Sample, samples, scaled, with_body
from spikecal.progress import Progress
from spikecal.report.measure import Measured, Samples, ann_of
from spikecal.report.source import Source
from spikecal.report.spikes import data_uri
from spikecal.snn.execute import largest_value, shapes_of
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.detectors import body_of

SCENES = 6  # images whose detections are shown
LOOKED_AT = 16  # images that errors are measured on
HELD_FLOATS = 1 << 26  # of the largest value over all steps: larger images are not shown step by step
LEAST, MOST = 0.1, 60  # lowest score on the page, and most boxes per image
SIDE, QUALITY = 640, 80  # pixels of a picture's longer side, and its JPEG quality
SCENE_BYTES = 1_000_000  # room on the page for all scenes


@dataclass(frozen=True)
class Detected:
    """mAP of the analog detector and of the one with each body, and their findings: samples of every T, with boxes."""

    data: str
    analog: Precision
    spiking: Mapping[int, Precision]
    samples: Mapping[int, Sequence[Sample]]
    truth: Sequence[Target]
    classes: Mapping[int, str]


def look_at_detector(
    source: Source,
    detector: nn.Module,
    data: BoxData,
    analog: Precision,
    spiking: Mapping[int, Precision],
    progress: Progress | None = None,
) -> Measured:
    """Run the detector with the bodies of `source` on some images of `data`; their precision is already known."""
    shown = list(islice(readable_images(data, {}), LOOKED_AT))
    images = [scaled(detector, image) for _, image in shown]
    graph = ann_of(source, body_of(detector), images[0].unsqueeze(0))
    large = [T for T, network in source.networks.items() if not all(_fits(network, image) for image in images)]
    fitting = {T: network for T, network in source.networks.items() if T not in large}
    note = (
        f"The images are too large to follow every spike of {source.name} at T = {', '.join(map(str, large))}: errors "
        f"there are those of calibration."
    )
    found = {
        T: samples(detector, with_body(detector, network), [image for _, image in shown[:SCENES]], stops(T))
        for T, network in source.networks.items()
    }
    return Measured(
        energy={T: one.energy for T, one in spiking.items() if one.energy is not None},
        errors={
            T: measure_errors(network.graph if graph is None else graph, network, images, progress=progress)
            for T, network in fitting.items()
        },
        graph=graph,
        samples=None if large else Samples(images[:SCENES], None, _card(source, detector), ()),
        detected=Detected(data.name, analog, spiking, found, [target for target, _ in shown[:SCENES]], data.classes),
        notes=(note,) if large else (),
    )


def stops(T: int) -> list[int]:
    """Steps after which detections are shown: 1, 2, 3, 4, 6, 8, 12, 16, … and the last one."""
    return sorted({n for k in range(T.bit_length()) for n in (1 << k, 3 << k) if n < T} | {T})


def _fits(network: SpikingNetwork, image: Tensor) -> bool:
    """Whether all steps of an image fit into memory at once, to look at every spike."""
    return largest_value(shapes_of(network.graph, (image.unsqueeze(0),))) * network.T <= HELD_FLOATS


def _card(source: Source, detector: nn.Module) -> Card:
    """The function that turns an input of the body back into a picture."""
    transform: Any = getattr(detector, "transform", None)
    if not hasattr(transform, "image_mean"):
        return Card(name=source.model)
    return Card(name=source.model, mean=tuple(transform.image_mean), std=tuple(transform.image_std))


# -- on the page ---------------------------------------------------------------------------------------------------


def put_scenes(seen: Sequence[Detected | None], networks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Enter the findings into the networks' facts, for as many images as there is room; returns what they share."""
    if not any(seen):
        return None
    for count in range(SCENES, 0, -1):
        pictures: dict[str, int] = {}
        sources = [None if one is None else _scenes(one, count, pictures) for one in seen]
        found = {n["id"]: _found(one, n["T"], count) for n in networks if (one := seen[n["source"]]) is not None}
        shared = {"pictures": list(pictures), "sources": sources, "least": LEAST}
        if count == 1 or len(json.dumps([shared, found], separators=(",", ":"))) <= SCENE_BYTES:
            break
    for network in networks:
        if network["id"] in found:
            network |= {"stops": stops(network["T"]), "found": found[network["id"]]}
    return shared


def _scenes(one: Detected, count: int, pictures: dict[str, int]) -> dict[str, Any]:
    """The images with their true boxes and those of the analog detector; equal pictures are stored once."""
    first = next(iter(one.samples.values()))[:count]
    images = []
    for sample, target in zip(first, one.truth, strict=False):
        height, width = sample.image.shape[1:]
        truth = [
            [*map(round, box), label] for box, label in zip(target.boxes.tolist(), target.labels.tolist(), strict=True)
        ]
        images.append(
            {
                "picture": pictures.setdefault(picture(sample.image), len(pictures)),
                "width": width,
                "height": height,
                "truth": truth,
                "analog": _boxes(sample.analog),
            }
        )
    return {"images": images, "classes": {str(label): name for label, name in one.classes.items()}}


def _found(one: Detected, T: int, count: int) -> list[list[Any]]:
    return [[_boxes(sample.spiking[stop]) for stop in stops(T)] for sample in one.samples[T][:count]]


def _boxes(found: Detections) -> list[list[float]]:
    """`[x0, y0, x1, y1, label, score]` of the boxes with the highest scores, those first."""
    order = found["scores"].argsort(descending=True)[:MOST]
    rows = zip(*(found[key][order].tolist() for key in ("boxes", "labels", "scores")), strict=True)
    return [[*map(round, box), label, round(score, 3)] for box, label, score in rows if score >= LEAST]


def picture(image: Tensor) -> str:
    """An image [3, H, W] in 0..1 as a JPEG in a data URI."""
    array: np.ndarray[Any, Any] = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    shown = Image.fromarray(array)
    shown.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    shown.save(file, "jpeg", quality=QUALITY)
    return data_uri("image/jpeg", file.getvalue())
