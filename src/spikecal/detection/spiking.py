"""Detectors with a spiking body. Feature pyramid and heads stay analog and read what the body passes on."""

import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from spikecal import conversion
from spikecal.analysis.energy import EnergyMeter
from spikecal.calibration.calibrators import Potential
from spikecal.calibration.sweep import StageRecord
from spikecal.data.images import Unreadable, UnreadableImage, none_readable, shuffled
from spikecal.detection import precision
from spikecal.detection.boxes import BoxData, as_boxes
from spikecal.detection.precision import Detections, Precision, detect
from spikecal.devices import Device, device_of, placed, whatever_the_default
from spikecal.errors import ConfigError, DataError, FileError
from spikecal.graph.graph import same_structure
from spikecal.graph.joints import DEFAULT, Joints
from spikecal.graph.lowering.prepare import SMALL_TYPES
from spikecal.pipeline import AUTO, Auto, Effort, Plan, resolve_plan
from spikecal.progress import Watching
from spikecal.ranks import current, together
from spikecal.result import Result
from spikecal.snn.file import load as load_network
from spikecal.snn.network import READOUTS, Readout, SpikingNetwork
from spikecal.snn.own_neurons import Given
from spikecal.tables import Table
from spikecal.workdir import fingerprint
from spikecal.zoo.detectors import body_of, body_place

log = logging.getLogger(__name__)

IMAGES = 128  # that calibration looks at, as in the paper
READOUT: Readout = "current"  # docs/how-to/detection.md has the measurements
TRIED = ((3, 64, 64),)  # shape of the image that shows whether a file fits a detector, if the file states none


class SpikingBody(nn.Module):
    """Replaces a detector's body: images in, feature maps out, in the same structure."""

    def __init__(self, network: SpikingNetwork) -> None:
        super().__init__()
        self.network = network
        self.steps: int | None = None  # how many to run; None: all
        self.meter: EnergyMeter | None = None  # counts what images cost, while `evaluate` runs

    def forward(self, x: Tensor) -> Any:
        if x.dtype not in SMALL_TYPES:
            return self._run(x)
        found = self._run(x.float())  # potentials add up: networks need at least float32
        return tree_map(lambda value: value.to(x.dtype), found)

    def _run(self, x: Tensor) -> Any:
        if self.meter is None:
            return self.network(x, steps=self.steps)
        found, spikes = self.network.counted(x)
        self.meter.add((x,), spikes)
        return found


@dataclass(repr=False)
class Conversion:
    """A detector with a spiking body for every requested T; `body` is the `Result` of converting it."""

    analog: nn.Module
    body: Result
    unreadable: Unreadable

    @property
    def detector(self) -> nn.Module:
        """The detector for the largest T."""
        return self.at(max(self.body.networks))

    def at(self, T: int) -> nn.Module:
        return with_body(self.analog, self.body.at(T))

    @property
    def records(self) -> list[StageRecord]:
        return self.body.records

    def __repr__(self) -> str:
        return f"<spikecal.detection.Conversion: {type(self.analog).__name__} with {self.body}>"

    def _repr_html_(self) -> str:
        """The table of its bodies, for notebooks."""
        return self.body._repr_html_()

    def summary(self) -> Table:
        """One line per T about the spiking bodies; `evaluate` measures the detectors."""
        return self.body.summary()

    def save(self, path: str | Path) -> None:
        """Write the spiking bodies of all T to one file; `load` puts them back into the detector."""
        self.body.save(path)


@whatever_the_default
def convert(
    detector: nn.Module,
    images: Any,
    T: int | Sequence[int] | None = None,
    pipeline: Plan | str = AUTO,
    *,
    latency: int | str | None = None,
    effort: Effort | None = None,
    joints: Joints = DEFAULT,
    count: int = IMAGES,
    readout: Readout = READOUT,
    seed: int = 0,
    workdir: str | Path | None = None,
    memory: int | str | None = None,
    micro_batch: int | None = None,
    records: bool = True,
    progress: Watching = None,
    device: Device = None,
) -> Conversion:
    """Give a copy of a detector a spiking body, calibrated on `count` of the `images`.

    The detector is one of torchvision's, or one that names its body (docs/how-to/detection.md#your-own-network).

    `images` are inputs of the detector, [3, H, W] in 0..1 and of any size: a list, a dataset (anything after the image
    in its items is ignored), a loader of lists, or `BoxData`. Each is scaled and normalised by the detector's own
    transform and used without the padding of batches. There is one potential per channel. `readout` is
    what the body passes on: the activation of its mean current, or mean spikes. `T`, `latency`, `effort` and `joints`
    are as in `spikecal.convert`.
    """
    if readout not in READOUTS:
        raise ConfigError(f"the readout must be one of {', '.join(READOUTS)}, not {readout!r}")
    detector = placed(detector, device_of(device))
    body = body_of(detector)
    if isinstance(body, SpikingBody):
        raise ConfigError("this detector already has a spiking body: convert the one it was made from")
    chosen = _Chosen(detector, images, count, seed)
    result = conversion.convert(
        body,
        chosen,
        T,
        _per_channel(resolve_plan(pipeline)),
        latency=latency,
        effort=effort,
        joints=joints,
        seed=seed,
        workdir=workdir,
        memory=memory,
        micro_batch=micro_batch,
        records=records,
        progress=progress,
    )
    for network in result.networks.values():
        network.readout = readout
    result.describe(detector=rest_print(detector))
    return Conversion(copy.deepcopy(detector).eval(), result, chosen.unreadable)


def _per_channel(plan: Plan) -> Plan:
    """With potentials that do not depend on the size of images."""
    return replace(plan, potentials="channel") if isinstance(plan, Auto) else plan.changed(Potential, per="channel")


@whatever_the_default
def load(
    path: str | Path,
    detector: nn.Module,
    T: int | None = None,
    *,
    neurons: Sequence[Given] = (),
    device: Device = None,
) -> nn.Module:
    """The detector with the spiking body in `path` for `T` steps (by default the largest T).

    Pyramid and heads are not in the file: if they differ from those at conversion, a warning is logged.
    """
    return fit(load_network(path, T, neurons=neurons), placed(detector, device_of(device)), str(path))


def fit(network: SpikingNetwork, detector: nn.Module, path: str) -> nn.Module:
    """The detector with a body read from `path`, if it fits."""
    body = body_of(detector)
    if network.origin.detector not in (None, rest_print(detector)):
        log.warning("%s holds the body of a detector whose pyramid and heads have different weights", path)
    home = next((p for p in detector.parameters() if p.is_floating_point()), torch.empty(0))
    training = body.training
    network.to(home.device)
    try:
        with torch.no_grad():
            # A body that computes with sizes takes images of one size only.
            example = torch.zeros(1, *(network.origin.inputs or TRIED)[0], device=home.device, dtype=home.dtype)
            tried = SpikingBody(network)
            tried.steps = 1
            expected, found = body.eval()(example), tried(example)
    except (DataError, RuntimeError) as error:
        raise FileError(f"{path} does not fit the detector's body: {error}") from error
    finally:
        body.train(training)
    if not same_structure(_plain(found), _plain(expected), lambda a, b: a.shape == b.shape):
        raise FileError(f"{path} does not fit the detector's body: its feature maps differ")
    return with_body(detector, network)


def rest_print(detector: nn.Module) -> str:
    """A hash of all weights except the body's, which a file of the body does not hold."""
    inside = f"{body_place(detector)}."
    rest = {key: value for key, value in detector.state_dict().items() if not key.startswith(inside)}
    return fingerprint(rest.values(), list(rest))


def with_body(detector: nn.Module, network: SpikingNetwork) -> nn.Module:
    """A copy of the detector with `network` as its body, in eval mode."""
    body = body_of(detector)
    made = copy.deepcopy(detector, {id(body): SpikingBody(network)})  # instead of a copy of the body
    return made.eval()


def network_of(detector: nn.Module) -> SpikingNetwork:
    """The spiking network in a detector, which `convert` or `load` gave it."""
    return _spiking_body(detector).network


def _spiking_body(detector: nn.Module) -> SpikingBody:
    body = body_of(detector)
    if not isinstance(body, SpikingBody):
        raise ConfigError("this detector has no spiking body: give one returned by detection.convert or detection.load")
    return body


@whatever_the_default
@together
def evaluate(detector: nn.Module, data: Any, progress: Watching = None, *, device: Device = None) -> Precision:
    """mAP of a detector on images with boxes; with a spiking body also its spikes and energy.

    `data`: `BoxData`, or pairs of an image [3, H, W] in 0..1 and a dict of its `boxes` and `labels`.
    """
    detector, data, ranks = placed(detector, device_of(device)), as_boxes(data), current()
    progress = ranks.shown(progress)
    body = next((module for module in detector.modules() if isinstance(module, SpikingBody)), None)
    if body is None:
        return precision.evaluate(detector, data, progress)
    body.meter = EnergyMeter(body.network)
    try:
        found = precision.evaluate(detector, data, progress)
        whole = EnergyMeter(body.network)
        for _, tallied in ranks.gathered({}, body.meter.tallies()):
            whole.merge(tallied)
        return replace(found, energy=whole.result())
    finally:
        body.meter = None


@dataclass(frozen=True)
class Sample:
    """One image [3, H, W] in 0..1, with the findings of the analog detector, and of the spiking one after steps."""

    image: Tensor
    analog: Detections
    spiking: dict[int, Detections]


def samples(analog: nn.Module, spiking: nn.Module, images: Iterable[Tensor], steps: Sequence[int]) -> list[Sample]:
    """The findings of both detectors in some images, of the spiking one after each of `steps`."""
    body = _spiking_body(spiking)
    made = []
    try:
        for image in images:
            after: dict[int, Detections] = {}
            for step in steps:
                body.steps = step
                after[step] = detect(spiking, image)
            made.append(Sample(image, detect(analog, image), after))
    finally:
        body.steps = None
    return made


# -- inside a detector ---------------------------------------------------------------------------------------------


def scaled(detector: nn.Module, image: Tensor) -> Tensor:
    """An image [3, H, W] as it reaches the body: normalised and scaled by the detector, not padded."""
    home = next((p for p in detector.parameters() if p.is_floating_point()), torch.empty(0))
    image = image.to(home.device, home.dtype)
    own: Any = getattr(detector, "prepared", None)
    if own is not None or not hasattr(detector, "transform"):
        with torch.no_grad():
            return image if own is None else own(image)
    transform: Any = detector.transform
    training = transform.training
    transform.eval()  # in training mode it draws sizes at random
    try:
        found: Tensor = transform.resize(transform.normalize(image), None)[0]
    finally:
        transform.train(training)
    return found


class _Chosen:
    """Calibration images as the body gets them, each in its own size, as a dataset."""

    def __init__(self, detector: nn.Module, images: Any, count: int, seed: int) -> None:
        if count < 1:
            raise ConfigError(f"calibration needs at least one image, not {count}")
        self.unreadable: Unreadable = {}
        self.images = [scaled(detector, image) for image in itertools.islice(self._read(images, seed), count)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]

    def _read(self, images: Any, seed: int) -> Iterator[Tensor]:
        if isinstance(images, BoxData):
            for i in shuffled(len(images), seed).tolist():
                try:
                    yield images.image(i)
                except UnreadableImage as error:
                    self.unreadable[error.file] = error.reason
            if len(self.unreadable) == len(images):
                raise none_readable(images.name, self.unreadable)
        elif hasattr(images, "__getitem__") and hasattr(images, "__len__"):
            for i in shuffled(len(images), seed).tolist():
                yield _image(images[i])
        elif isinstance(images, Iterable):
            for batch in images:
                if isinstance(batch, (tuple, list)) and batch and not _is_image(batch[0]):
                    batch = batch[0]
                yield from ([_image(batch)] if _is_image(batch) else map(_image, batch))
        else:
            raise DataError(f"calibration images must be a list, a dataset or a loader, not {type(images).__name__}")


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3


def _image(item: Any) -> Tensor:
    image = item[0] if isinstance(item, (tuple, list)) and item else item
    if not _is_image(image) or image.shape[0] not in (1, 3) or not image.is_floating_point():
        told = f"{image.dtype} {list(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise DataError(f"a calibration image is {told}: give floats [3, H, W] in 0..1")
    return image


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
