"""From a spiking network to a netlist: fold thresholds, sum pools, put everything that depends on time on a clock."""

from collections import ChainMap
from dataclasses import replace

import torch
from torch import Tensor

from spikecal.errors import ConversionError
from spikecal.export.builder import Builder, refuse
from spikecal.export.clock import Window, neuron_clock
from spikecal.export.netlist import Clock, Conv, Image, Linear, Netlist, Neurons, Node, Output
from spikecal.export.operations import value_of
from spikecal.export.values import Term, Value, by_channel, ones
from spikecal.graph.graph import Node as Operation
from spikecal.graph.ops import Joint, Spike
from spikecal.snn.network import SpikingNetwork

POTENTIALS = 'calibrate with Potential(per="channel") (--potentials channel), or without potentials (--pipeline lcp)'


def netlist_of(snn: SpikingNetwork, image: Tensor, low: Tensor, high: Tensor) -> Netlist:
    """The netlist of a network, in float64, for images like `image` `[1, C, ...]` from `low` to `high` `[C]`."""
    _check_ends(snn)
    build = Builder(snn, image, low, high)
    shown = Value((Term("image", ones(image.shape[1])),), tuple(image.shape[1:]))
    values = {snn.graph.inputs()[0]: shown}
    for stage in snn.stages:
        delays = snn.windows.delays(stage)
        late = {name: build.delayed(values[name], steps) for name, steps in delays.items()}
        known = ChainMap(late, values) if late else values  # delays of late values are not for other stages
        for node in stage.nodes:
            if node.name not in known or late:
                known[node.name] = _value(build, node, [known[name] for name in node.inputs])
        values[stage.name] = known[stage.name]
    _read(build, values[snn.graph.outputs()[0]])
    return _finished(build.netlist)


def _value(build: Builder, node: Operation, inputs: list[Value]) -> Value:
    snn = build.snn
    if isinstance(node.op, Spike) and node.name == snn.graph.outputs()[0] and snn.readout == "current":
        return _current(snn, node, inputs[0])
    if isinstance(node.op, Spike):
        return _neurons(build, node, inputs[0])
    if isinstance(node.op, Joint):
        return _joint(build, node, inputs[0])
    return value_of(build, node, inputs)


def _check_ends(snn: SpikingNetwork) -> None:
    """Raise if a network has several inputs or outputs, or an analog head."""
    inputs, outputs = snn.graph.inputs(), snn.graph.outputs()
    if len(inputs) != 1:
        raise ConversionError("input", f"the network has {len(inputs)} inputs", "convert a model that takes one")
    if len(outputs) != 1:
        found = f"the network has {len(outputs)} outputs ({', '.join(outputs)})"
        raise ConversionError("output", found, "convert a model that returns one of them")
    if snn.graph.head is not None:
        raise ConversionError("output", "the network has an analog head", "convert without keep=[...] (--keep)")


def _current(snn: SpikingNetwork, node: Operation, arriving: Value) -> Value:
    """An output that is an activation is read as the activation of its mean current: it needs no neurons."""
    if any(node.name in other.inputs for other in snn.graph.nodes.values()):
        refuse(node, "an activation that is an output and read by other layers", "make it one of the two")
    return arriving


def _joint(build: Builder, node: Operation, value: Value) -> Value:
    op = node.op
    assert isinstance(op, Joint)
    return value if op.bias is None else value.plus(build.during(node, by_channel(op.bias, value.shape[0])))


def _neurons(build: Builder, node: Operation, value: Value) -> Value:
    op, snn, channels = node.op, build.snn, value.shape[0]
    assert isinstance(op, Spike) and op.theta is not None
    if len(value.shape) > 1 and op.channel != 1:
        refuse(node, f"channels at dimension {op.channel}", "put them at dimension 1")
    if op.v_init is not None and op.v_init.ndim > 1:
        refuse(node, "an initial potential for each neuron", POTENTIALS)
    if op.bias is not None:
        value = value.plus(build.during(node, by_channel(op.bias, channels)))
    if op.step_bias is not None:
        value = value.plus(build.during(node, op.step_bias))
    theta = by_channel(op.theta, channels)
    value = value.scaled(1 / theta)
    sources = build.nodes_of(replace(value, constant=None), node.name)
    constant = torch.zeros(snn.latency, channels, dtype=torch.double) if value.constant is None else value.constant
    v_init = torch.zeros_like(theta) if op.v_init is None else by_channel(op.v_init, channels) / theta
    start = snn.windows.starts[node.name]
    window = Window(start, snn.T, tuple((build.starts[name], build.ranges[name]) for name in sources))
    masked = op.neuron.alphabet[0] < 0 and snn.latency > snn.T
    clock = neuron_clock(f"{node.name}.clock", value.shape, constant, v_init, window, gated=not masked)
    if clock is not None:
        sources.append(build.add(clock))
    made = Neurons(
        name=node.name,
        inputs=tuple(sources),
        shape=value.shape,
        start=start,
        neuron=op.neuron,
        masked=masked,
        reach=_reach(op, channels, start, snn.latency),
    )
    return Value((Term(build.add(made), theta),), value.shape)


def _reach(op: Spike, channels: int, start: int, latency: int) -> Tensor | None:
    """The reach at each step of the whole run; steps outside the window do not matter."""
    own = op.tensors().get("reach")
    if own is None:
        return None
    reach = torch.full((latency, channels), 0.5, dtype=torch.double)
    reach[start : start + len(own)] = own[: latency - start].double()
    return reach


def _read(build: Builder, value: Value) -> None:
    build.add(Output(name="output", inputs=tuple(build.nodes_of(value, "output")), shape=value.shape))


# -- what is done to the whole -------------------------------------------------------------------------------------


def _finished(netlist: Netlist) -> Netlist:
    """With mixes folded into weights and, where nothing waits, constants into biases."""
    _drop_unread(netlist)
    if netlist.latency == netlist.T:
        _fold_constants(netlist)
    for node in list(netlist.nodes.values()):
        _fold_mix(netlist, node)
    return netlist


def _drop_unread(netlist: Netlist) -> None:
    for node in reversed(list(netlist.nodes.values())):
        if not isinstance(node, Output | Image) and not netlist.readers()[node.name]:
            del netlist.nodes[node.name]


def _fold_mix(netlist: Netlist, node: Node) -> None:
    """Fold a scale per channel, or a matrix, into the weights before it if nothing else reads these."""
    if not isinstance(node, Conv | Linear) or len(node.inputs) != 1:
        return
    before = netlist.nodes[node.inputs[0]]
    folded = _product(node, before) if netlist.readers()[before.name] == [node.name] else None
    if folded is None:
        return
    del netlist.nodes[node.name]
    netlist.nodes[before.name] = folded
    for reader in netlist.nodes.values():
        inputs = tuple(before.name if name == node.name else name for name in reader.inputs)
        netlist.nodes[reader.name] = replace(reader, inputs=inputs)


def _product(node: Conv | Linear, before: Node) -> Node | None:
    """`node` of `before` as one node, or None if different weights do not suffice."""
    if isinstance(node, Linear) and isinstance(before, Linear):
        bias = _sum(None if before.bias is None else node.weight @ before.bias, node.bias)
        return replace(before, shape=node.shape, weight=node.weight @ before.weight, bias=bias)
    if isinstance(node, Conv) and isinstance(before, Conv) and node.pointwise and node.groups == node.shape[0]:
        scale = node.weight.reshape(-1)
        bias = _sum(None if before.bias is None else scale * before.bias, node.bias)
        return replace(before, weight=before.weight * scale.reshape(-1, 1, 1, 1), bias=bias)
    if isinstance(node, Conv) and isinstance(before, Conv) and node.pointwise and before.moves and node.groups == 1:
        return replace(before, shape=node.shape, weight=node.weight * before.weight[:, 0], bias=node.bias, groups=1)
    return None


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b


def _fold_constants(netlist: Netlist) -> None:
    """Turn a constant clock into the bias of weights beside it, except at its first step."""
    for reader in list(netlist.nodes.values()):
        clock = next((netlist.nodes[name] for name in reader.inputs if isinstance(netlist.nodes[name], Clock)), None)
        weighted = next((name for name in reader.inputs if _alone(netlist, name)), None)
        if not isinstance(clock, Clock) or weighted is None or len(clock.own) < 2:
            continue
        every = clock.own[1]
        if not bool((clock.own[1:] == every).all()):
            continue
        first = torch.zeros_like(clock.own)
        first[0] = clock.own[0] - every
        netlist.nodes[weighted] = replace(netlist.nodes[weighted], bias=every)  # type: ignore[call-arg]
        if bool(first.any()):
            netlist.nodes[clock.name] = replace(clock, own=first)
        else:
            netlist.nodes[reader.name] = replace(reader, inputs=tuple(n for n in reader.inputs if n != clock.name))
            del netlist.nodes[clock.name]


def _alone(netlist: Netlist, name: str) -> bool:
    """Whether a node has weights that one other node reads."""
    node = netlist.nodes[name]
    return isinstance(node, Conv | Linear) and node.bias is None and len(netlist.readers()[name]) == 1
