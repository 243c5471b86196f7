"""Networks in integers: weights of a few bits, thresholds that are powers of two on the same grid.

A weight is `m 2^-k` thresholds, m an integer of that many bits. Every connection has its own exponent k, one
for each channel (or layer) of the neurons that it leads to: a skip of weight 1 must not coarsen the grid of weights
that are a tenth as large. A threshold is `2^K` units, K the largest of these exponents, and biases are integers of
units. Powers of two make every number exact in floats: what other simulators run is the integer network itself.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from spikecal.errors import ConfigError, ConversionError
from spikecal.export.grid import MANTISSA, Grids
from spikecal.export.netlist import (
    Clock,
    Conv,
    Delay,
    Flatten,
    Image,
    Linear,
    MaxPool,
    Netlist,
    Neurons,
    Node,
    Output,
    SumPool,
)
from spikecal.export.simulate import simulate
from spikecal.export.values import mixing, ones

Per = Literal["channel", "layer"]
BITS = range(4, 17)
FINE = 8  # a threshold has at least 2^8 units: biases come at every step, and what rounding does to them adds up
SIGNED = (
    'export without --bits or, if it is an analog joint, convert with joints="signed" (--joints signed) and export '
    "to onnx"
)
SEARCHED = 4  # exponents tried for each connection: finer ones clip its largest weights


@dataclass(frozen=True)
class Integers:
    """A quantised network: `netlist` has its numbers as floats, `units` of each layer are the units of a threshold.

    The image is `round(image / pixel)`; its scale is in the weights. `steps` of each connection are the thresholds that
    its weights are multiples of.
    """

    bits: int
    per: Per
    pixel: float
    netlist: Netlist
    units: dict[str, Tensor]  # of neurons and the output, `[C]` or `[1]`, powers of two
    steps: dict[str, Tensor]  # of connections, likewise

    def image(self, images: Tensor) -> Tensor:
        """Images as integers."""
        most = _most(_image_bits(self.bits))
        return torch.round(images / self.pixel).clamp(-most, most)


def quantised(netlist: Netlist, bits: int, per: Per = "channel", calibration: Tensor | None = None) -> Integers:
    """The network with weights of `bits` bits; biases correct the effect of rounding on mean currents, on images."""
    if bits not in BITS:
        raise ConfigError(f"weights must have {BITS[0]} to {BITS[-1]} bits, not {bits}")
    netlist = _weighted_inputs(netlist.to(torch.double))
    scaled, pixel = _of_whole_pixels(netlist, _most(_image_bits(bits)))
    nodes, grids = dict(scaled.nodes), Grids(scaled)
    units: dict[str, Tensor] = {}
    steps: dict[str, Tensor] = {}
    for end in scaled.nodes.values():
        if isinstance(end, Neurons | Output):
            shared: Per = "layer" if isinstance(end, Output) else per
            finest = torch.floor(torch.log2(MANTISSA / (2 * scaled.T * grids.largest(end.inputs))))
            finest = finest.amin(0, keepdim=True) if shared == "layer" else finest
            inputs = [nodes[name] for name in end.inputs]
            exponents = {n.name: _exponent(n, bits, shared) for n in inputs if isinstance(n, Conv | Linear)}
            wanted = torch.stack([torch.full_like(finest, FINE), *exponents.values()]).amax(0)
            units[end.name] = unit = 2.0 ** torch.minimum(wanted, finest)
            steps |= {name: 2.0 ** -torch.minimum(k, finest) for name, k in exponents.items()}
            for node in inputs:
                nodes[node.name] = _whole(node, unit, steps.get(node.name), bits)
    made = Integers(bits, per, pixel, replace(scaled, nodes=nodes), units, steps)
    return made if calibration is None else _recalibrated(netlist, made, calibration)


def _most(bits: int) -> int:
    """The largest symmetric integer of `bits` bits."""
    return int(2 ** (bits - 1) - 1)


def _image_bits(bits: int) -> int:
    """Pixels have 8 bits, or more if weights are so fine that it would matter."""
    return min(max(bits, 8), 10)


def _bias_bits(bits: int) -> int:
    return max(bits, 8)


def _of_whole_pixels(netlist: Netlist, most: int) -> tuple[Netlist, float]:
    """The network for images in integers up to `most`, and the value of one unit; weights absorb that scale."""
    largest = torch.maximum(netlist.image.low.abs(), netlist.image.high.abs()).max()
    pixel = float(2.0 ** torch.ceil(torch.log2(largest / most)))
    scale = torch.full_like(netlist.image.high, float(most))
    image = replace(netlist.image, low=-scale, high=scale, pixel=1.0)
    changes: dict[str, list[Node]] = {netlist.image.name: [image]}
    for name in _of_image(netlist):
        node = netlist.nodes[name]
        assert isinstance(node, Conv | Linear)
        changes[name] = [replace(node, weight=node.weight * pixel)]
    return netlist.replaced(changes), pixel


def _weighted_inputs(netlist: Netlist) -> Netlist:
    """The netlist with weights on every wire into neurons; ConversionError if a layer has none of its own."""
    changes: dict[str, list[Node]] = {}
    for node in netlist.nodes.values():
        if isinstance(node, MaxPool):
            raise ConversionError(
                node.name, "a max-pool has no integer form", "use average pools, or export without --bits"
            )
        if isinstance(node, Conv | Linear):
            if len(netlist.readers()[node.name]) > 1 and not _passes(netlist, node):
                raise ConversionError(node.name, "a current that several layers read", SIGNED)
            for source in node.inputs:
                if not _carries_spikes(netlist, source):  # what is multiplied twice has no grid
                    raise ConversionError(node.name, f"its input {source} is a current, not spikes", SIGNED)
        if isinstance(node, Neurons | Output):
            inputs, made = [], list[Node]()
            for name in node.inputs:
                if isinstance(netlist.nodes[name], Conv | Linear | Clock):
                    inputs.append(name)
                else:
                    own = mixing(f"{node.name}.from.{name}", (name,), ones(node.shape[0]), node.shape)
                    made.append(own)
                    inputs.append(own.name)
            changes[node.name] = [*made, replace(node, inputs=tuple(inputs))]
    return netlist.replaced(changes)


def _carries_spikes(netlist: Netlist, name: str) -> bool:
    node = netlist.nodes[name]
    if isinstance(node, SumPool | Flatten | Delay) or (isinstance(node, Conv) and node.moves):
        return all(_carries_spikes(netlist, source) for source in node.inputs)
    return isinstance(node, Neurons | Image)


def _of_image(netlist: Netlist) -> list[str]:
    """The nodes with weights that read the image, if over a pool."""
    reads = {netlist.image.name}
    for node in netlist.nodes.values():
        if (isinstance(node, SumPool | Flatten | Delay) or _passes(netlist, node)) and reads & {*node.inputs}:
            reads.add(node.name)
    weighted = (n for n in netlist.nodes.values() if isinstance(n, Conv | Linear) and not _passes(netlist, n))
    return [node.name for node in weighted if reads & {*node.inputs}]


def _passes(netlist: Netlist, node: Node) -> bool:
    """Whether a convolution only moves integers to others that have weights."""
    readers = (netlist.nodes[name] for name in netlist.readers()[node.name])
    return isinstance(node, Conv) and node.moves and not any(isinstance(reader, Neurons | Output) for reader in readers)


def _exponent(node: Conv | Linear, bits: int, per: Per) -> Tensor:
    """The k `[C]` or `[1]` with which `m 2^-k` rounds a connection's weights with the least squared error."""
    most, rows = _most(bits), node.weight.flatten(1)
    rows = rows.reshape(1, -1) if per == "layer" else rows
    unclipped = torch.floor(torch.log2(most / rows.abs().amax(1).clamp(min=2.0**-20)))
    tried = torch.stack([unclipped + more for more in range(SEARCHED)])
    errors = torch.stack([(_nearest(rows, 2.0 ** -k[:, None], most) - rows).square().sum(1) for k in tried])
    return tried.gather(0, errors.argmin(0)[None])[0]


def _nearest(values: Tensor, step: Tensor, most: int) -> Tensor:
    return torch.round(values / step).clamp(-most, most) * step


def _whole(node: Node, unit: Tensor, step: Tensor | None, bits: int) -> Node:
    """The connections to neurons, with values on the grid."""
    if isinstance(node, Clock):
        gate = 2 * node.gate  # rounding may increase what it holds back
        return replace(node, own=_of_few_bits(node.own, unit, bits), gate=gate)
    assert isinstance(node, Conv | Linear) and step is not None
    by_row = step.expand(len(node.weight)).reshape(-1, *(1,) * (node.weight.ndim - 1))
    bias = None if node.bias is None else _of_few_bits(node.bias[None], unit, bits)[0]
    return replace(node, weight=_nearest(node.weight, by_row, _most(bits)), bias=bias)


def _of_few_bits(own: Tensor, unit: Tensor, bits: int) -> Tensor:
    """Numbers `[steps, C]` on the grid, with a separate exponent per channel."""
    whole = own * unit
    exponent = torch.ceil(torch.log2((whole.abs().amax(0) / _most(_bias_bits(bits))).clamp(min=1)))
    return torch.round(whole / 2.0**exponent) * 2.0**exponent / unit


# -- biases --------------------------------------------------------------------------------------------------------


def _recalibrated(exact: Netlist, made: Integers, calibration: Tensor) -> Integers:
    """Biases that give each layer the same mean current as before, for the spikes it receives now."""
    before: dict[str, Tensor] = {}
    nodes = dict(made.netlist.nodes)

    def mean(node: Node, current: Tensor) -> Tensor:
        """Of one step, over images and positions, in thresholds."""
        return current.sum(0).transpose(0, 1).flatten(1).double().mean(1) / exact.T

    def keep(node: Node, current: Tensor) -> Tensor:
        before[node.name] = mean(node, current) - _gates(exact, node) / exact.T
        return current

    def correct(node: Node, current: Tensor) -> Tensor:
        missing = before[node.name] - mean(node, current) + _gates(made.netlist, node) / exact.T
        change = _corrected(nodes, made, node, missing)
        return current + change.reshape(-1, 1, node.shape[0], *(1,) * (len(node.shape) - 1)).to(current)

    x = calibration.float()
    simulate(exact.to(torch.float), _shown(exact, x), keep)
    simulate(made.netlist.to(torch.float), _shown(exact, made.image(x)), correct)
    first = {name: node for name, node in nodes.items() if isinstance(node, Image | Clock)}
    return replace(made, netlist=replace(made.netlist, nodes=first | nodes))


def _gates(netlist: Netlist, node: Node) -> Tensor:
    clocks = [found.gate.sum(0) for name in node.inputs if isinstance(found := netlist.nodes[name], Clock)]
    return torch.stack([torch.zeros(node.shape[0], dtype=torch.double), *clocks]).sum(0)


def _corrected(nodes: dict[str, Node], made: Integers, end: Node, missing: Tensor) -> Tensor:
    """Add `missing` `[C]` to what a layer gets at each step of its window; what that changes, `[latency or 1, C]`.

    It goes into a bias if there is no clock.
    """
    netlist, unit = made.netlist, made.units[end.name]
    clock = next((node for name in end.inputs if isinstance(node := nodes[name], Clock)), None)
    if clock is None and netlist.latency == netlist.T:
        node = next(node for name in end.inputs if isinstance(node := nodes[name], Conv | Linear))
        old = torch.zeros_like(missing) if node.bias is None else node.bias
        bias = _of_few_bits((old + missing)[None], unit, made.bits)[0]
        nodes[node.name] = replace(node, bias=bias)
        return (bias - old)[None]
    start = end.start if isinstance(end, Neurons) else netlist.latency - netlist.T
    added = torch.zeros(netlist.latency, len(missing), dtype=torch.double)
    added[start : start + netlist.T] = missing
    if clock is None:
        clock = Clock(
            name=f"{end.name}.clock", shape=end.shape, own=torch.zeros_like(added), gate=torch.zeros_like(added)
        )
        nodes[end.name] = replace(nodes[end.name], inputs=(*end.inputs, clock.name))
    own = _of_few_bits(clock.own + added, unit, made.bits)
    nodes[clock.name] = replace(clock, own=own)
    return own - clock.own


def _shown(netlist: Netlist, images: Tensor) -> Tensor:
    found = images.new_zeros(netlist.latency, *images.shape)
    found[: netlist.T] = images
    return found
