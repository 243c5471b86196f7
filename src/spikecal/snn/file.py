"""`net.snn`: one safetensors file, the graph as JSON in its header. Reading it runs no code.

The header's one metadata key, `spikecal`, is `<sha256> <json>`: the hash covers the JSON and every tensor, so any
altered byte is noticed. The JSON is checked in full before a tensor is read (`reading`, `description`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from spikecal.devices import Device, device_of, whatever_the_default
from spikecal.errors import FileError
from spikecal.files import write_whole
from spikecal.graph.graph import Node
from spikecal.graph.ops import SignedSpike, Spike
from spikecal.settings import whole
from spikecal.snn.checksum import checksum, digest
from spikecal.snn.description import KEYS, check_neurons, check_numbers
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.origin import Origin
from spikecal.snn.own_neurons import Given, missing, stored_neurons
from spikecal.snn.reading import Reader

FORMAT = 2
IN_TIME = 3  # with waits, a bias per step or a warm-up: programs that do not know these must not run them
SIGNED = 4  # with signed neurons at linear values


def write(path: str | Path, networks: Mapping[int, SpikingNetwork], origin: Origin, extra: dict[str, Tensor]) -> None:
    """Write networks of one graph, one per T, atomically. Equal tensors are stored once.

    `extra` are further tensors (histograms).
    """
    path, neurons = Path(path), stored_neurons(networks.values())
    stored: dict[str, Tensor] = {}
    known: dict[bytes, str] = {}
    parameters: dict[str, dict[str, str]] = {}
    for T, network in sorted(networks.items()):
        parameters[str(T)] = {}
        for node in network.graph.nodes.values():
            _check_writable(path, node, T)
            for name, tensor in node.op.tensors().items():
                value = _plain(tensor)
                key = known.setdefault(digest(value), f"{node.name}:{name}:{T}")
                stored.setdefault(key, value)
                parameters[str(T)][f"{node.name}:{name}"] = key
    stored |= {f"extra:{name}": _plain(value) for name, value in extra.items()}
    first = next(iter(networks.values()))
    graph, info = first.graph, origin.to_info()
    if first.readout != "current":
        info["readout"] = first.readout
    waits = {str(T): dict(network.waits) for T, network in sorted(networks.items()) if network.waits}
    step_biases = any(slot.endswith(":step_bias") for slots in parameters.values() for slot in slots)
    signed = any(isinstance(node.op, SignedSpike) for node in graph.nodes.values())
    warm_ups = {str(T): network.warm_up for T, network in sorted(networks.items()) if network.warm_up}
    spec = json.dumps(
        {
            "format": SIGNED if signed else IN_TIME if waits or step_biases or warm_ups else FORMAT,
            "nodes": [_node_to_json(node) for node in graph.nodes.values()],
            "output": _structure_to_json(graph.output),
            "head": graph.head is not None,
            "parameters": parameters,
            "info": info,
            **({"waits": waits} if waits else {}),
            **({"warm_ups": warm_ups} if warm_ups else {}),
            **({"neurons": neurons} if neurons else {}),
        },
        sort_keys=True,
    )
    metadata = {"spikecal": f"{checksum(spec, stored.items())} {spec}"}
    # save_file would leave a temporary file behind when killed
    write_whole(path, save(stored, metadata))


def _check_writable(path: Path, node: Node, T: int) -> None:
    """Raise for parameters that could not be read again: training may make thresholds negative."""
    try:
        check_numbers(node.name, node.op.tensors())
        if isinstance(node.op, Spike):
            check_neurons(node.name, node.op, T)
    except ValueError as error:
        raise FileError(f"{path} was not written: {error}") from error


def _node_to_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "op": type(node.op).__name__,
        "inputs": list(node.inputs),
        "shapes": list(node.shape_refs),
        "channel": node.channel,
        "config": node.op.config(),
    }


def _structure_to_json(structure: Any) -> Any:
    if isinstance(structure, dict):
        for key in structure:
            if not isinstance(key, KEYS):
                raise FileError(f"an output called {key!r} cannot be stored: use strings or numbers for its names")
        return {"dict": [[key, _structure_to_json(part)] for key, part in structure.items()]}
    if isinstance(structure, (list, tuple)):
        kind = "list" if isinstance(structure, list) else "tuple"
        return {kind: [_structure_to_json(part) for part in structure]}
    return structure


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous copy: `contiguous` keeps the strides of single elements, which may be 0."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


@whatever_the_default
def load(
    path: str | Path,
    T: int | None = None,
    head: nn.Module | None = None,
    *,
    neurons: Sequence[Given] = (),
    device: Device = None,
) -> SpikingNetwork:
    """The network in `path` for `T` steps (by default the largest T).

    `head` is the analog end of a network converted with `keep`, of which the file has only the spiking body.
    `neurons` are the classes of the file's own neurons, or `file.py:Class`: files name them but never import them.
    `device`: where to put it, by default the CPU.
    """
    home = device_of(device)
    reader = Reader(path, neurons)
    steps = reader.steps()
    if T is None:
        T = steps[-1]
    if (chosen := whole(T)) is None or chosen not in steps:
        raise FileError(f"{path} has no network for T={T!r}: choose from T={', '.join(map(str, steps))}")
    if (kind := missing(reader.neurons)) is not None:
        raise FileError(f"{path} has neurons of its own, whose code is not in the file: add neurons=['{kind}']")
    if reader.spec["head"] and head is None:
        raise FileError(f"{path} holds a spiking body without its analog head: load it with head=module")
    if head is not None and not reader.spec["head"]:
        raise FileError(f"{path} holds a whole network: load it without a head")
    network = reader.network(chosen, head)
    return network if home is None else network.to(home)
