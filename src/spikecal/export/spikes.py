"""Spikes as data: the input currents of the first layers and every spike, for hardware test benches."""

import csv
import io
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spikecal.errors import ConfigError
from spikecal.export.netlist import Image, Netlist, Neurons
from spikecal.export.reference import trains
from spikecal.export.simulate import each_step
from spikecal.files import write_whole
from spikecal.graph.ops import Spike
from spikecal.snn.network import SpikingNetwork

COLUMNS = ("kind", "layer", "image", "step", "address", "value")
SUFFIXES = (".npz", ".csv")


@dataclass(frozen=True)
class Spikes:
    """`events` of each layer are rows of image, step, address and level; steps are global, from 0.

    An address is the index of a neuron in its layer `[C, H, W]`, row by row: `shapes` has these. `currents` `[N, ...]`
    arrive from the image at each of its T steps, in units of the threshold; a layer's biases are in them where these
    are the same at every step. `potentials` are the initial ones of layers that have one per neuron, in the same units.
    """

    T: int
    latency: int
    currents: dict[str, np.ndarray]
    potentials: dict[str, np.ndarray]
    events: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    answers: np.ndarray

    @property
    def count(self) -> int:
        return sum(int(np.abs(rows[:, 3]).sum()) for rows in self.events.values())


def without_own_potentials(snn: SpikingNetwork) -> SpikingNetwork:
    """A copy without initial potentials per neuron, which no netlist has and the image's currents do not depend on."""
    plain = deepcopy(snn)
    for op in _own_potentials(plain).values():
        op.v_init = None
    return plain


def spikes_of(snn: SpikingNetwork, netlist: Netlist, images: Tensor) -> Spikes:
    """Run a network where it is, and keep all of its spikes; `netlist` may be `without_own_potentials`."""
    home = next(snn.parameters()).device
    found = trains(snn, images.to(home))
    events = {}
    for name, levels in found.levels.items():
        flat = levels.transpose(0, 1).flatten(2)  # [N, steps, neurons]
        places = flat.nonzero()
        events[name] = torch.cat([places, flat[tuple(places.T)].long().unsqueeze(1)], 1).int().cpu().numpy()
    shapes = {node.name: node.shape for node in netlist.neurons()}
    answers = snn.export_outputs(found.outputs).cpu().numpy()
    return Spikes(snn.T, snn.latency, _currents(netlist, images), _potentials(snn), events, shapes, answers)


def _potentials(snn: SpikingNetwork) -> dict[str, np.ndarray]:
    """Initial potentials of layers that have one per neuron."""
    found = {}
    for name, op in _own_potentials(snn).items():
        assert op.theta is not None and op.v_init is not None
        height = op.theta.reshape(-1, *(1,) * (op.v_init.ndim - 1))
        found[name] = (op.v_init.detach() / height).cpu().numpy()
    return found


def _own_potentials(snn: SpikingNetwork) -> dict[str, Spike]:
    """The layers that have an initial potential per neuron."""
    ops = {name: node.op for name, node in snn.graph.nodes.items()}
    return {
        name: op for name, op in ops.items() if isinstance(op, Spike) and op.v_init is not None and op.v_init.ndim > 1
    }


@torch.no_grad()
def _currents(netlist: Netlist, images: Tensor) -> dict[str, np.ndarray]:
    """The current from the image at each layer that reads it."""
    values: dict[str, Tensor] = {}
    found: dict[str, np.ndarray] = {}
    for node in netlist.nodes.values():
        if isinstance(node, Image):
            values[node.name] = images.unsqueeze(0)
        arriving = [values[name] for name in node.inputs if name in values]
        if isinstance(node, Neurons) and arriving:
            found[node.name] = torch.stack(arriving).sum(0)[0].numpy()
        elif arriving and len(arriving) == len(node.inputs):
            values[node.name] = each_step(node, torch.stack(arriving).sum(0))
    return found


def write_spikes(path: Path, spikes: Spikes) -> None:
    """As numpy arrays or as a table, by the suffix."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: spikes are written as {' or '.join(SUFFIXES)}")
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_rows(spikes))
        write_whole(path, text.getvalue())
        return
    arrays: dict[str, np.ndarray] = {
        "T": np.array(spikes.T), "latency": np.array(spikes.latency), "answers": spikes.answers,
        **{f"current/{name}": current for name, current in spikes.currents.items()},
        **{f"potential/{name}": potential for name, potential in spikes.potentials.items()},
        **{f"spikes/{name}": events for name, events in spikes.events.items()},
        **{f"shape/{name}": np.array(shape) for name, shape in spikes.shapes.items()},
    }  # fmt: skip
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_whole(path, content.getvalue())


def _rows(spikes: Spikes) -> Iterator[tuple[object, ...]]:
    """Currents of step 0, which are those of all T steps, potentials, and spikes; numbers as short as they can be."""
    for name, current in spikes.currents.items():
        for image, values in enumerate(current.reshape(len(current), -1)):
            for address, value in enumerate(values):
                yield "current", name, image, 0, address, str(value)
    for name, potential in spikes.potentials.items():
        for address, value in enumerate(potential.reshape(-1)):
            yield "potential", name, "", "", address, str(value)
    for name, events in spikes.events.items():
        for image, step, address, level in events.tolist():
            yield "spike", name, image, step, address, level
