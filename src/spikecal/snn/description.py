"""The JSON of a `.snn` file, checked in full before anything it describes is made; ValueError if invalid.

Operations check their own settings (`validate`, `validate_reads`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spikecal.errors import shown
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import OPS, Input, Joint, Op, Spike
from spikecal.graph.ops.base import is_channel, require
from spikecal.graph.widths import check_widths
from spikecal.neurons import Neuron
from spikecal.snn.network import READOUTS
from spikecal.snn.origin import Origin

READABLE = (1, 2, 3, 4)  # the first had only one kind of neuron
MAX_NODES = 20_000
MAX_NAME = 500
MAX_NESTING = 16
MAX_STEPS = 2**20
KEYS = (str, int, float)  # types of the keys of outputs in a dict

Spec = Mapping[str, Any]


def check_format(spec: Any) -> None:
    require(isinstance(spec, dict), "its description is not a table")
    found = spec.get("format")
    require(
        type(found) is int and found in READABLE,
        f"it has format {shown(found)}; this version of spikecal reads formats {READABLE[0]} to {READABLE[-1]}",
    )


def check_description(spec: Spec, stored: Mapping[str, int]) -> None:
    """`stored` are the tensors of the file. Nothing in the description is allocated here."""
    _check_nodes(spec["nodes"])
    outputs = list(_leaves(spec["output"], 0))
    names = {entry["name"] for entry in spec["nodes"]}
    require(bool(outputs) and names.issuperset(outputs), "it has no output, or one that no node computes")
    _check_readers(spec["nodes"], outputs)
    require(isinstance(spec["head"], bool), "it does not state whether it has a head")
    require(isinstance(spec["info"], dict), "it does not state how it was made")
    _check_parameters(spec["parameters"], {entry["name"]: OPS[entry["op"]] for entry in spec["nodes"]}, stored)
    neurons = spec.get("neurons", {})
    known = isinstance(neurons, dict) and all(isinstance(entry, dict) for entry in neurons.values())
    require(known, "it does not state which neurons it has")
    _check_time(spec)
    readout = spec["info"].get("readout", "current")
    require(
        readout in READOUTS, f"it reads its outputs as {shown(readout)}, which this version of spikecal does not know"
    )
    Origin.from_info(spec["info"], [int(T) for T in spec["parameters"]])


def _check_nodes(nodes: Any) -> None:
    require(isinstance(nodes, list) and 0 < len(nodes) <= MAX_NODES, f"it does not have 1 to {MAX_NODES:,} nodes")
    seen = set[str]()
    for entry in nodes:
        require(isinstance(entry, dict), "it has a node that is not a table")
        name, op, inputs, shapes = (entry[key] for key in ("name", "op", "inputs", "shapes"))
        require(_is_name(name), f"it has a node with a bad name: {shown(name)}")
        require(name not in seen, f"it has two nodes called {shown(name)}")
        require(isinstance(op, str) and op in OPS, f"it has an unknown operation {shown(op)} at {shown(name)}")
        require(isinstance(inputs, list) and isinstance(shapes, list), f"it has a bad node {shown(name)}")
        read = all(isinstance(other, str) and other in seen for other in (*inputs, *shapes))
        require(read, f"its node {shown(name)} reads a value that does not precede it")
        settings = entry["config"]
        known = isinstance(settings, dict) and settings.keys() <= OPS[op].CONFIG.keys()
        require(known, f"it has unknown settings at {shown(name)}")
        seen.add(name)


def _is_name(name: Any) -> bool:
    """Whether a name is short enough and can be stored again: JSON may also contain half characters."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.encode(errors="replace").decode() == name


def _check_readers(nodes: list[dict[str, Any]], outputs: list[str]) -> None:
    """Raise unless every node is read: no real network has others, yet they would cost time and memory."""
    read = {*outputs, *(name for entry in nodes for name in (*entry["inputs"], *entry["shapes"]))}
    for entry in nodes:
        require(entry["name"] in read or entry["op"] == "Input", f"nothing reads its node {shown(entry['name'])}")


def _check_parameters(parameters: Any, ops: Mapping[str, type[Op]], stored: Mapping[str, int]) -> None:
    require(isinstance(parameters, dict) and bool(parameters), "it holds no parameters")
    for T, table in parameters.items():
        number = T.isascii() and T.isdigit() and T[0] != "0" and len(T) < 9 and int(T) <= MAX_STEPS
        require(number and isinstance(table, dict), f"it has parameters for a bad number of steps {shown(T)}")
        for slot, key in table.items():
            name, _, tensor = slot.rpartition(":")
            there = name in ops and tensor in ops[name].TENSORS and isinstance(key, str) and key in stored
            require(there, f"it has parameters for {shown(slot)}, which does not exist")


def _check_time(spec: Spec) -> None:
    """Check waits and warm-ups for existing T; whether these stages can wait is checked when they are made."""
    waits, warm_ups = spec.get("waits", {}), spec.get("warm_ups", {})
    require(
        isinstance(waits, dict) and waits.keys() <= spec["parameters"].keys(), "it does not state which stages wait"
    )
    for found in waits.values():
        whole = isinstance(found, dict) and all(type(wait) is int for wait in found.values())
        require(whole, "it has stages that wait an invalid number of steps")
    known = isinstance(warm_ups, dict) and warm_ups.keys() <= spec["parameters"].keys()
    require(known, "it does not state from which step on it is read")
    for T, steps in warm_ups.items():
        within = type(steps) is int and 0 <= steps < int(T)
        require(within, f"it is read only after {shown(steps)} of {T} steps")


def _leaves(structure: Any, depth: int) -> Iterator[str]:
    require(depth <= MAX_NESTING, "it nests its outputs too deeply")
    if structure is None or isinstance(structure, str):  # a model may return None besides its outputs
        yield from () if structure is None else (structure,)
        return
    require(isinstance(structure, dict) and len(structure) == 1, "it has a bad output structure")
    ((kind, parts),) = structure.items()
    require(kind in ("dict", "list", "tuple") and isinstance(parts, list), "it has a bad kind of output structure")
    for part in parts:
        named = kind != "dict" or (isinstance(part, list) and len(part) == 2 and isinstance(part[0], KEYS))
        require(named, "it has outputs in a dict without a name")
        yield from _leaves(part[1] if kind == "dict" else part, depth + 1)


def structure_of(described: Any) -> Any:
    """The nested outputs of a checked description."""
    if described is None or isinstance(described, str):
        return described
    ((kind, parts),) = described.items()
    if kind == "dict":
        return {key: structure_of(part) for key, part in parts}
    made = [structure_of(part) for part in parts]
    return made if kind == "list" else tuple(made)


# -- the graph of a checked description ------------------------------------------------------------------------


def graph_of(spec: Spec, T: int, tensors: Mapping[str, torch.Tensor], neurons: Mapping[str, Neuron]) -> Graph:
    """The graph with the parameters for `T` steps; `neurons` are the file's own."""
    graph = Graph(output=structure_of(spec["output"]))
    table = spec["parameters"][str(T)]
    for entry in spec["nodes"]:
        name, op = entry["name"], OPS[entry["op"]]
        keys = {kind: table.get(f"{name}:{kind}") for kind in op.TENSORS}
        own = {kind: tensors[key] for kind, key in keys.items() if key is not None}
        check_numbers(name, own)
        try:
            made = op(**_settings(entry["config"], neurons), **own)
            made.validate_reads(len(entry["inputs"]), min(1, len(entry["inputs"])) + len(entry["shapes"]))
        except ValueError as error:
            raise ValueError(f"{shown(name)}: {error}") from error
        if isinstance(made, Spike):
            check_neurons(name, made, T)
        inputs, shapes = tuple(entry["inputs"]), tuple(entry["shapes"])
        graph.add(Node(name, made, inputs, shapes, _channel(entry, made)))
    _check_graph(graph)
    return graph


def _settings(config: dict[str, Any], neurons: Mapping[str, Neuron]) -> dict[str, Any]:
    """The settings of an operation; the file's own neurons are already objects."""
    own = neurons.get(str(config.get("neuron")))
    return config if own is None else {**config, "neuron": own}


def _channel(entry: dict[str, Any], op: Op) -> int:
    """The dimension of the channels; the first format had it only for parameters per channel."""
    channel = entry.get("channel", getattr(op, "channel", 1))
    require(is_channel(channel), f"{shown(entry['name'])} has its channels at an impossible dimension")
    return int(channel)


def check_numbers(name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    for kind, tensor in tensors.items():
        finite = tensor.is_floating_point() and bool(tensor.isfinite().all())
        require(finite, f"{kind} of {shown(name)} has NaN or infinite values")


def check_neurons(name: str, op: Spike, T: int) -> None:
    """Check that thresholds can be divided by, and that there are biases for every step."""
    if op.theta is None:
        raise ValueError(f"neurons {shown(name)} have no threshold")
    least = torch.finfo(op.theta.dtype).tiny
    usable = bool(((op.theta >= least) & (op.theta <= 1 / least)).all())
    require(usable, f"the thresholds of {shown(name)} are not positive, or too small to divide by")
    for kind, each in (("step biases", op.step_bias), ("a reach", op.tensors().get("reach"))):
        require(each is None or len(each) == T, f"{shown(name)} does not have {kind} for {T} steps")


def _check_graph(graph: Graph) -> None:
    nodes = graph.nodes.values()
    require(any(isinstance(node.op, (Spike, Joint)) for node in nodes), "it has no stage")
    indices = sorted(node.op.index for node in nodes if isinstance(node.op, Input))
    require(bool(indices) and indices == list(range(len(indices))), "its inputs are not numbered")
    kinds = {tensor.dtype for node in nodes for tensor in node.op.tensors().values()}
    require(len(kinds) <= 1, "its parameters have different types")
    check_widths(graph)
