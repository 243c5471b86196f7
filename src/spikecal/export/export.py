"""Export networks: the only way to a file for another simulator, and to its inputs and outputs."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikecal.devices import CPU, placed, whatever_the_default
from spikecal.errors import ConfigError, DataError
from spikecal.export.build import netlist_of
from spikecal.export.grid import on_grid
from spikecal.export.integers import Integers, Per, quantised
from spikecal.export.netlist import Netlist
from spikecal.export.nir import write_nir
from spikecal.export.onnx import step_path, write_onnx
from spikecal.export.planes import frames
from spikecal.export.refusals import refuse_missing
from spikecal.export.spikingjelly import write_spikingjelly
from spikecal.export.verify import Verdict, of_integers, of_network, verify
from spikecal.progress import Progress
from spikecal.snn.network import SpikingNetwork
from spikecal.tensors import as_tensor

SUFFIXES = {".nir": "nir", ".onnx": "onnx", ".py": "spikingjelly"}
WRITERS = {"nir": write_nir, "onnx": write_onnx, "spikingjelly": write_spikingjelly}
NORMAL = 10.0  # bound of normalised images
NOTES = {
    "nir": "nir.IF resets to zero by definition; these neurons subtract their threshold: tell the importer "
    "(SpikingJelly: v_reset=None, sinabs: MembraneSubtract)",
}


@dataclass(frozen=True)
class Exported:
    """A file for another simulator, and the network that is in it. `notes` are what its users must know."""

    path: Path
    to: str
    network: SpikingNetwork
    netlist: Netlist
    notes: tuple[str, ...]
    integers: Integers | None = None

    @property
    def files(self) -> list[Path]:
        """All written files."""
        beside = {"onnx": step_path, "spikingjelly": lambda path: path.with_suffix(".safetensors")}
        return [self.path, *(place(self.path) for to, place in beside.items() if to == self.to)]

    def verify(self, images: Tensor, labels: Tensor | None = None, progress: Progress | None = None) -> list[Verdict]:
        """Run the file in each installed simulator that knows its format, and compare every spike."""
        if self.integers is None:
            reference = of_network(self.network, lambda snn: make_netlist(snn, images[:1]))
        else:
            images, reference = self.integers.image(images), of_integers(self.integers)
        answer = partial(export_outputs, self.network)
        return verify(self.path, self.to, self.netlist, reference, answer, images, labels, progress)

    def inputs(self, images: Tensor) -> Tensor:
        """The input at each step: `[latency, N, C + planes, ...]`, integers if the network has integers."""
        images = images if self.integers is None else self.integers.image(images)
        return frames(self.netlist.image.rounded(images), self.netlist.T, self.netlist.latency, self.netlist.planes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path), "files": [str(path) for path in self.files], "to": self.to, "T": self.netlist.T,
            "latency": self.netlist.latency, "planes": self.netlist.planes, "nodes": len(self.netlist.nodes),
            "input": list(self.netlist.image.shape), "notes": list(self.notes),
            "bits": None if self.integers is None else self.integers.bits,
        }  # fmt: skip


@whatever_the_default
def export(
    snn: SpikingNetwork,
    path: str | Path,
    images: Tensor | None = None,
    *,
    to: str | None = None,
    bits: int | None = None,
    per: Per = "channel",
    exact: bool = False,
) -> Exported:
    """Write a network for another simulator: `to` is nir, onnx or spikingjelly, by default by the suffix.

    With `exact`, its values are rounded so that every sum is exact in single precision, and images likewise.
    With `bits`, all its values are integers, with weights of `bits` bits, and biases are calibrated on `images`.
    """
    path, snn, images = Path(path), placed(snn, CPU), as_tensor(images)
    if isinstance(images, Tensor):
        images = images.cpu()
    elif images is not None:
        raise DataError(f"images must be a tensor [N, ...], not {images!r:.40}: give the format as to=")
    to = to or SUFFIXES.get(path.suffix)
    if to not in WRITERS:
        known = ", ".join(f"{name} ({suffix})" for suffix, name in SUFFIXES.items())
        raise ConfigError(f"{path}: give the format, one of {known}")
    if SUFFIXES.get(path.suffix, to) != to:
        raise ConfigError(f"{path}: files called {path.suffix} are of the format {SUFFIXES[path.suffix]}, not {to}")
    if exact and bits is not None:
        raise ConfigError("integers are already exact: give exact or bits, not both")
    netlist, integers = make_netlist(snn, images), None
    refuse_missing(netlist, to, exact or bits is not None)
    notes = [NOTES[to]] if to in NOTES else []
    if exact:
        netlist = on_grid(netlist)
    if bits is not None:
        integers = quantised(netlist, bits, per, images)
        netlist = integers.netlist
        notes.append(f"integers: the image is round(x / {integers.pixel:g}), which `inputs(x)` gives")
    netlist = netlist.to(torch.float)
    WRITERS[to](path, netlist)
    return Exported(path, to, snn, netlist, tuple(notes), integers)


def make_netlist(snn: SpikingNetwork, images: Tensor | None = None) -> Netlist:
    """The netlist for images like these; by default for those of the network's card, or its calibration images.

    It is in double precision, without any further rounding.
    """
    image = _example(snn, images)
    return netlist_of(snn, image, *_range(snn, image if images is None else images))


@whatever_the_default
def export_inputs(snn: SpikingNetwork, images: Tensor) -> Tensor:
    """The input of an exported network at each step, `[latency, N, C + planes, ...]`.

    That is the image for T steps and, if the network has initial potentials, biases per step or
    layers that wait, one clock plane for each step: plane t is all ones at step t.
    """
    images = snn.checked((images,))[0][0].cpu()
    netlist = make_netlist(placed(snn, CPU), images)
    return frames(images, netlist.T, netlist.latency, netlist.planes)


def export_outputs(snn: SpikingNetwork, outputs: Tensor) -> Tensor:
    """The answers of the network from the outputs of an exported one at each step, `[latency, N, ...]`."""
    if len(outputs) != snn.latency:
        raise DataError(f"the network has {snn.latency} steps, but these outputs have {len(outputs)}")
    warm_up = snn.warm_up if snn.warm_up < snn.T else 0
    return snn._read(snn.graph.nodes[snn.graph.outputs()[0]], outputs[snn.latency - snn.T + warm_up :].mean(0))


def _example(snn: SpikingNetwork, images: Tensor | None) -> Tensor:
    """One image of zeros of the right size."""
    dtype = next((p.dtype for p in snn.parameters() if p.is_floating_point()), torch.float32)
    if images is not None:
        return torch.zeros(1, *images.shape[1:], dtype=dtype)
    card = snn.origin.card or {}
    if card.get("size") and card.get("mean"):
        return torch.zeros(1, len(card["mean"]), *card["size"], dtype=dtype)
    if snn.origin.inputs:
        return torch.zeros(1, *snn.origin.inputs[0], dtype=dtype)
    raise ConfigError("the network does not know the size of its images: pass some")


def _range(snn: SpikingNetwork, images: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of an image's values: those of its pixels if the card states their normalisation."""
    card = snn.origin.card or {}
    if card.get("mean"):
        mean, std = torch.tensor(card["mean"]).double(), torch.tensor(card["std"]).double()
        return -mean / std, (1 - mean) / std
    high = torch.full((images.shape[1],), max(NORMAL, float(images.abs().max()))).double()
    return -high, high
