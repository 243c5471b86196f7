"""`net.snn`: one safetensors file, the graph as JSON in its header. Reading it runs nobody's code.

The header's one metadata key, `spikecal`, is `<sha256> <json>`: the hash covers the JSON and every tensor, so any
altered byte is noticed. The JSON is checked in full before a tensor is read.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from spikecal.errors import ConfigError, FileError
from spikecal.files import write_whole
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import OPS, Input, Joint, Op, Spike
from spikecal.graph.ops.base import is_channel
from spikecal.neurons import Neuron
from spikecal.settings import whole
from spikecal.snn.network import READOUTS, Readout, SpikingNetwork
from spikecal.snn.origin import Origin
from spikecal.snn.own_neurons import Given, absent_neurons, given_neurons, missing, stored_neurons

FORMAT = 2
IN_TIME = 3  # with waits, a bias per step or a warm-up: a program that does not know of them must not run them
READABLE = (1, 2, 3)  # the first knew one kind of neuron
MAX_HEADER = 64 * 2**20
MAX_NODES = 100_000
MAX_NESTING = 16
KEYS = (str, int, float)  # what outputs in a dict may be called
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


# -- writing ---------------------------------------------------------------------------------------------------


def write(path: str | Path, networks: Mapping[int, SpikingNetwork], origin: Origin, extra: dict[str, Tensor]) -> None:
    """Write networks of one graph, one for each T, atomically. Equal tensors are stored once.

    `extra` are tensors kept beside the networks (histograms).
    """
    path, neurons = Path(path), stored_neurons(networks.values())
    stored: dict[str, Tensor] = {}
    known: dict[bytes, str] = {}
    parameters: dict[str, dict[str, str]] = {}
    for T, network in sorted(networks.items()):
        parameters[str(T)] = {}
        for node in network.graph.nodes.values():
            for name, tensor in node.op.tensors().items():
                value = _plain(tensor)
                digest = _digest(value)
                key = known.setdefault(digest, f"{node.name}:{name}:{T}")
                stored.setdefault(key, value)
                parameters[str(T)][f"{node.name}:{name}"] = key
    stored |= {f"extra:{name}": _plain(value) for name, value in extra.items()}
    first = next(iter(networks.values()))
    graph, info = first.graph, origin.to_info()
    if first.readout != "current":
        info["readout"] = first.readout
    waits = {str(T): dict(network.waits) for T, network in sorted(networks.items()) if network.waits}
    step_biases = any(slot.endswith(":step_bias") for slots in parameters.values() for slot in slots)
    warm_ups = {str(T): network.warm_up for T, network in sorted(networks.items()) if network.warm_up}
    spec = json.dumps(
        {
            "format": IN_TIME if waits or step_biases or warm_ups else FORMAT,
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
    metadata = {"spikecal": f"{_checksum(spec, stored.items())} {spec}"}
    # save_file would leave a temporary file of its own behind when killed
    write_whole(path, save(stored, metadata))


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
    """A copy with plain strides: `contiguous` leaves those of single elements as they are, and they may be 0."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _digest(value: Tensor) -> bytes:
    digest = hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode())
    digest.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.digest()


def _checksum(spec: str, tensors: Any) -> str:
    digest = hashlib.sha256(spec.encode())
    for name, value in sorted(tensors, key=lambda item: item[0]):
        digest.update(name.encode())
        digest.update(_digest(value))
    return digest.hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------


class Reader:
    """An opened and checked `.snn` file."""

    def __init__(self, path: str | Path, neurons: Sequence[Given] = ()) -> None:
        """`neurons`: those of its neurons that are not spikecal's, as the user gives them."""
        self.path = Path(path)
        try:
            header = self._header()
            self._check_tensors(header)
            self._read(header, neurons)
        except FileError:
            raise
        except ConfigError as error:
            raise FileError(f"{path}: {error}") from error
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except (SafetensorError, ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
            raise FileError(f"{path} is not a whole spikecal network: {error or type(error).__name__}") from error

    def _fail(self, reason: str) -> NoReturn:
        raise FileError(f"{self.path} {reason}")

    def _header(self) -> dict[str, Any]:
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                self._fail("is too short to be a spikecal network")
            (length,) = struct.unpack("<Q", start)
            if length > min(MAX_HEADER, size - 8):
                self._fail("is not a spikecal network, or is cut off: its header does not fit")
            raw = file.read(length)
        if not raw.startswith(b"{") or not raw.rstrip(b" ").endswith(b"}"):
            self._fail("is not a spikecal network, or is damaged: it has no header")
        self.data_bytes = size - 8 - length
        header = json.loads(raw.decode())
        if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
            self._fail("is not a spikecal network: it has no metadata")
        if not isinstance(header["__metadata__"].get("spikecal"), str):
            self._fail("is a safetensors file but not a spikecal network")
        return header

    def _check_tensors(self, header: dict[str, Any]) -> None:
        """Every tensor lies inside the file, as long as its shape says, and they fill it without overlap."""
        spans = []
        self.bytes: dict[str, int] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            shape, (begin, end) = entry["shape"], entry["data_offsets"]
            if any(type(n) is not int or n < 0 for n in (*shape, begin, end)) or len(shape) > 16:
                self._fail(f"has a damaged entry for {name[:60]!r}")
            if entry["dtype"] not in DTYPES or math.prod(shape) * DTYPES[entry["dtype"]] != end - begin:
                self._fail(f"has a damaged entry for {name[:60]!r}: its size does not match its shape")
            spans.append((begin, end))
            self.bytes[name] = end - begin
        position = 0
        for begin, end in sorted(spans):
            if begin != position or end > self.data_bytes:
                self._fail("is damaged or cut off: its tensors do not fill it")
            position = end
        if position != self.data_bytes:
            self._fail("is damaged: it has bytes that belong to no tensor")

    def _read(self, header: dict[str, Any], neurons: Sequence[Given]) -> None:
        checksum, _, spec = header["__metadata__"]["spikecal"].partition(" ")
        self.spec = json.loads(spec)
        if (
            not isinstance(self.spec, dict)
            or type(self.spec.get("format")) is not int
            or self.spec["format"] not in READABLE
        ):
            self._fail(f"has format {str(self.spec.get('format'))[:20] if isinstance(self.spec, dict) else '?'}; "
                       f"this version of spikecal reads formats {READABLE[0]} to {READABLE[-1]}")  # fmt: skip
        self.graph_spec()  # builds nothing yet; raises where the graph makes no sense
        stored = self.spec.get("neurons", {})
        self.neurons: dict[str, Neuron] = {**absent_neurons(stored), **given_neurons(stored, neurons)}
        with safe_open(self.path, "pt") as file:
            self.tensors = {name: file.get_tensor(name) for name in self.bytes}
        if _checksum(spec, self.tensors.items()) != checksum:
            self._fail("is damaged: its checksum does not match")

    # -- the graph ---------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        return sorted(int(T) for T in self.spec["parameters"])

    def readout(self) -> Readout:
        """How outputs that are activations are read; files that do not say it are of networks that pass currents on."""
        found = self.spec["info"].get("readout", "current")
        if found not in READOUTS:
            self._fail(f"reads its outputs as {str(found)[:20]!r}, which this version of spikecal cannot")
        return "spikes" if found == "spikes" else "current"

    def waits(self, T: int) -> dict[str, int]:
        """The stages that wait in the network for `T` steps."""
        found = self.spec.get("waits", {}).get(str(T), {})
        if not all(type(wait) is int for wait in found.values()):
            self._fail("has stages that wait what is no number of steps")
        return dict(found)

    def warm_up(self, T: int) -> int:
        """The steps of each output that are not read in the network for `T` steps."""
        found = self.spec.get("warm_ups", {}).get(str(T), 0)
        if type(found) is not int or not 0 <= found < T:
            self._fail(f"says to begin reading after {str(found)[:20]} of {T} steps")
        return found

    def network(self, T: int, head: nn.Module | None) -> SpikingNetwork:
        """The network for `T` steps, as it was when it was written."""
        graph = self.graph(T, head)
        try:
            network = SpikingNetwork(graph, T, self.waits(T))
        except (ValueError, ConfigError) as error:
            raise FileError(f"{self.path} is not a whole spikecal network: {error}") from error
        network.origin, network.readout = self.origin(), self.readout()
        network.warm_up = self.warm_up(network.T)
        network.reset()
        return network

    def origin(self) -> Origin:
        """Where its networks come from."""
        try:
            return Origin.from_info(self.spec["info"], self.steps())
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            reason = str(error) or type(error).__name__
            raise FileError(f"{self.path}: what it says of its making makes no sense: {reason}") from error

    def graph_spec(self) -> None:
        """Check the description of the graph without allocating anything it describes."""
        nodes, seen = self.spec["nodes"], set[str]()
        if not isinstance(nodes, list) or not 0 < len(nodes) <= MAX_NODES:
            self._fail("describes no graph")
        for entry in nodes:
            name, op = entry["name"], OPS.get(entry["op"])
            if not isinstance(name, str) or not 0 < len(name) <= 500 or name in seen:
                self._fail(f"has a node with a bad name: {str(name)[:60]!r}")
            if op is None:
                self._fail(f"has an unknown operation {str(entry['op'])[:60]!r} at {name[:60]!r}")
            inputs = entry["inputs"]
            if not isinstance(inputs, list) or not isinstance(entry["shapes"], list):
                self._fail(f"has a bad node {name[:60]!r}")
            if len(inputs) != op.ARITY if op.ARITY is not None else not inputs:
                self._fail(f"gives {name[:60]!r} a wrong number of inputs")
            if not all(isinstance(i, str) and i in seen for i in (*inputs, *entry["shapes"])):
                self._fail(f"has a node {name[:60]!r} that reads what is not there before it")
            if not isinstance(entry["config"], dict) or not entry["config"].keys() <= op.CONFIG.keys():
                self._fail(f"has unknown settings at {name[:60]!r}")
            seen.add(name)
        outputs = list(self._leaves(self.spec["output"], 0))
        if not outputs or not seen.issuperset(outputs):
            self._fail("has no output, or one that no node gives")
        if not isinstance(self.spec["head"], bool) or not isinstance(self.spec["info"], dict):
            self._fail("does not say what it holds")
        waits = self.spec.get("waits", {})
        if not isinstance(waits, dict) or not all(isinstance(found, dict) for found in waits.values()):
            self._fail("does not say which stages wait")
        if not isinstance(self.spec.get("warm_ups", {}), dict):
            self._fail("does not say from which step on it is read")
        if not isinstance(self.spec.get("neurons", {}), dict):
            self._fail("does not say which neurons it has")
        self._check_parameters({entry["name"]: OPS[entry["op"]] for entry in nodes})

    def _check_parameters(self, ops: dict[str, type]) -> None:
        parameters = self.spec["parameters"]
        if not isinstance(parameters, dict) or not parameters:
            self._fail("holds no parameters")
        for T, table in parameters.items():
            if not (T.isascii() and T.isdigit() and T[0] != "0" and int(T) < 2**20 and isinstance(table, dict)):
                self._fail(f"has parameters for a bad number of steps {T[:20]!r}")
            for slot, key in table.items():
                name, _, tensor = slot.rpartition(":")
                if name not in ops or tensor not in ops[name].TENSORS or key not in self.bytes:  # type: ignore[attr-defined]
                    self._fail(f"has parameters for {slot[:60]!r}, which is not there")

    def _leaves(self, structure: Any, depth: int) -> Iterator[str]:
        if depth > MAX_NESTING:
            self._fail("nests its outputs too deeply")
        if structure is None or isinstance(structure, str):  # a model may return None beside its outputs
            yield from () if structure is None else (structure,)
            return
        if not isinstance(structure, dict) or len(structure) != 1:
            self._fail("has a bad output structure")
        ((kind, parts),) = structure.items()
        if kind not in ("dict", "list", "tuple") or not isinstance(parts, list):
            self._fail("has a bad output structure")
        for part in parts:
            if kind == "dict" and not (isinstance(part, list) and len(part) == 2 and isinstance(part[0], KEYS)):
                self._fail("has a bad output structure")
            yield from self._leaves(part[1] if kind == "dict" else part, depth + 1)

    def _settings(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Those of an operation; neurons that are not spikecal's are objects already."""
        config: dict[str, Any] = entry["config"]
        own = self.neurons.get(str(config.get("neuron")))
        return config if own is None else {**config, "neuron": own}

    def graph(self, T: int, head: nn.Module | None) -> Graph:
        graph = Graph(output=_structure_from_json(self.spec["output"]), head=head)
        table = self.spec["parameters"][str(T)]
        try:
            for entry in self.spec["nodes"]:
                op = OPS[entry["op"]]
                names = {t: table.get(f"{entry['name']}:{t}") for t in op.TENSORS}
                tensors = {t: self.tensors[key] for t, key in names.items() if key is not None}
                made = op(**self._settings(entry), **tensors)
                _check_tensors(entry["name"], made)
                inputs, shapes = tuple(entry["inputs"]), tuple(entry["shapes"])
                graph.add(Node(entry["name"], made, inputs, shapes, _channel(entry, made)))
            if not any(isinstance(n.op, (Spike, Joint)) for n in graph.nodes.values()):
                raise ValueError("it has no stage")
            indices = sorted(n.op.index for n in graph.nodes.values() if isinstance(n.op, Input))
            if indices != list(range(len(indices))) or not indices:
                raise ValueError("its inputs are not numbered")
        except (ValueError, TypeError, AttributeError) as error:
            raise FileError(f"{self.path} is not a whole spikecal network: {error}") from error
        return graph


def _channel(entry: dict[str, Any], op: Op) -> int:
    """The dimension of the channels; the first format had it only where parameters go by channel."""
    channel = entry.get("channel", getattr(op, "channel", 1))
    if not is_channel(channel):
        raise ValueError(f"{entry['name'][:60]!r} has its channels at a dimension that cannot be")
    return int(channel)


def _check_tensors(name: str, op: Op) -> None:
    """Raise for parameters that nothing could have been calibrated to."""
    for kind, tensor in op.tensors().items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ValueError(f"{kind} of {name} has values that are not finite numbers")
    if isinstance(op, Spike):
        if op.theta is None:
            raise ValueError(f"neurons {name} have no threshold")
        if op.theta.ndim != 1 or not len(op.theta) or not bool(torch.gt(op.theta, 0).all()):
            raise ValueError(f"the thresholds of {name} are not positive numbers, one a layer or one a channel")


def _structure_from_json(structure: Any) -> Any:
    if structure is None or isinstance(structure, str):
        return structure
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: _structure_from_json(part) for key, part in parts}
    made = [_structure_from_json(part) for part in parts]
    return made if kind == "list" else tuple(made)


def load(
    path: str | Path, T: int | None = None, head: nn.Module | None = None, *, neurons: Sequence[Given] = ()
) -> SpikingNetwork:
    """The network in `path` for `T` steps (the largest there is, if not said).

    `head` is the analog end of a network that was converted with `keep`: only its spiking body is in the file.
    `neurons` are the classes of neurons that are not spikecal's, or `file.py:Class`: files name them and never import.
    """
    reader = Reader(path, neurons)
    steps = reader.steps()
    if T is None:
        T = steps[-1]
    if (chosen := whole(T)) is None or chosen not in steps:
        raise FileError(f"{path} has no network for T={T!r}; it has T={', '.join(map(str, steps))}")
    if (kind := missing(reader.neurons)) is not None:
        raise FileError(f"{path} has neurons that are not spikecal's, and a file holds no code: add neurons=['{kind}']")
    if reader.spec["head"] and head is None:
        raise FileError(f"{path} holds a spiking body without its analog head: load it with head=module")
    if head is not None and not reader.spec["head"]:
        raise FileError(f"{path} holds a whole network: load it without a head")
    return reader.network(chosen, head)
