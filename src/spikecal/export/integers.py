"""Networks in whole numbers: weights of a few bits, thresholds that are powers of two on the same grid.

`2^k` units are one threshold, with an exponent k for each channel (or layer) of a layer of neurons, so weights are
`round(2^k w)`, clipped. A power of two makes every number of the network exact in floats: what other simulators run is
the integer network itself. Clocks have an exponent of their own; gates are powers of two.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.errors import ConfigError, ConversionError
from spikecal.export.netlist import (
    Clock,
    Conv,
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
from spikecal.export.simulate import Trains, simulate
from spikecal.export.values import mixing, ones

Per = Literal["channel", "layer"]
BITS = range(4, 17)
ROOM = 2.0**28  # the largest gate, in units: what is left of 32 bits is for what arrives
SEARCHED = 4  # exponents tried for each channel: finer ones clip the largest weights


@dataclass(frozen=True)
class Integers:
    """A quantised network: `netlist` has its numbers as floats, `units` of each layer are the units of a threshold.

    The image is `round(image / pixel)`; its scale is in the weights.
    """

    bits: int
    per: Per
    pixel: float
    netlist: Netlist
    units: dict[str, Tensor]  # of neurons and the output, `[C]`, powers of two

    def image(self, images: Tensor) -> Tensor:
        """Images as whole numbers."""
        most = _most(_image_bits(self.bits))
        return torch.round(images / self.pixel).clamp(-most, most)


def quantised(netlist: Netlist, bits: int, per: Per = "channel", calibration: Tensor | None = None) -> Integers:
    """The network with weights of so many bits; biases make up for what rounding does to mean currents on images."""
    if bits not in BITS:
        raise ConfigError(f"weights have {BITS[0]} to {BITS[-1]} bits, not {bits}")
    netlist = _weighted_inputs(netlist.to(torch.double))
    most = _most(bits)
    largest = float(torch.maximum(netlist.image.low.abs(), netlist.image.high.abs()).max())
    pixel = 2.0 ** torch.ceil(torch.log2(torch.tensor(largest / _most(_image_bits(bits))))).item()
    nodes = dict(netlist.nodes)
    for name in _of_image(netlist):
        nodes[name] = replace(nodes[name], weight=nodes[name].weight * pixel)  # type: ignore[attr-defined,call-arg]
    units: dict[str, Tensor] = {}
    for node in netlist.nodes.values():
        if isinstance(node, Neurons | Output):
            weights = [name for name in node.inputs if isinstance(nodes[name], Conv | Linear)]
            rows = torch.cat([nodes[name].weight.flatten(1) for name in weights], 1)  # type: ignore[attr-defined]
            unit = _unit(rows, most, "layer" if isinstance(node, Output) else per)
            gates = [found.gate.abs().max() for name in node.inputs if isinstance(found := nodes[name], Clock)]
            unit = unit.clamp(max=ROOM / max([1.0, *map(float, gates)]))
            units[node.name] = unit
            for name in weights:
                nodes[name] = _rounded(nodes[name], unit, most)
            for name in node.inputs:
                found = nodes[name]
                if isinstance(found, Clock):
                    nodes[name] = replace(found, own=_of_few_bits(found.own, unit, most), gate=_gate(found.gate, unit))
    scale = torch.full_like(netlist.image.high, float(_most(_image_bits(bits))))
    nodes[netlist.image.name] = replace(netlist.image, low=-scale, high=scale)
    made = Integers(bits, per, pixel, Netlist(netlist.T, netlist.latency, netlist.warm_up, nodes), units)
    return made if calibration is None else _recalibrated(netlist, made, calibration)


def _most(bits: int) -> int:
    """The largest of the symmetric whole numbers of so many bits."""
    return 2 ** (bits - 1) - 1


def _image_bits(bits: int) -> int:
    """Pixels have 8 bits, whatever weights have; more where weights are so fine that it would show."""
    return min(max(bits, 8), 12)


def _weighted_inputs(netlist: Netlist) -> Netlist:
    """The netlist with weights on every wire into neurons; ConversionError where a layer has none of its own."""
    changes: dict[str, list[Node]] = {}
    for node in netlist.nodes.values():
        if isinstance(node, MaxPool):
            raise ConversionError(node.name, "a max-pool has no whole-number form", "use average pools")
        if isinstance(node, Conv | Linear):
            if len(netlist.readers()[node.name]) > 1 and not _passes(netlist, node):
                raise ConversionError(node.name, "a current that several layers read", "convert without linear joints")
            for source in node.inputs:
                if not _carries_spikes(netlist, source):  # what is multiplied twice has no grid
                    raise ConversionError(
                        node.name, f"its input {source} is no spike but a current", "convert without linear joints"
                    )
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
    if isinstance(node, SumPool | Flatten) or (isinstance(node, Conv) and node.moves):
        return all(_carries_spikes(netlist, source) for source in node.inputs)
    return isinstance(node, Neurons | Image)


def _of_image(netlist: Netlist) -> list[str]:
    """The nodes with weights that read the image, if over a pool."""
    reads = {netlist.image.name}
    for node in netlist.nodes.values():
        if (isinstance(node, SumPool | Flatten) or _passes(netlist, node)) and reads & {*node.inputs}:
            reads.add(node.name)
    weighted = (n for n in netlist.nodes.values() if isinstance(n, Conv | Linear) and not _passes(netlist, n))
    return [node.name for node in weighted if reads & {*node.inputs}]


def _passes(netlist: Netlist, node: Node) -> bool:
    """Whether a convolution only moves whole numbers to others that have weights."""
    readers = (netlist.nodes[name] for name in netlist.readers()[node.name])
    return isinstance(node, Conv) and node.moves and not any(isinstance(reader, Neurons | Output) for reader in readers)


def _unit(rows: Tensor, most: int, per: Per) -> Tensor:
    """Powers of two `[C]`: those that round rows of weights with the least squared error."""
    rows = rows.reshape(1, -1) if per == "layer" else rows
    largest = rows.abs().amax(1).clamp(min=2.0**-20)
    exponent = torch.floor(torch.log2(most / largest))
    tried = torch.stack([2.0 ** (exponent + more) for more in range(SEARCHED)])
    errors = torch.stack(
        [((rows * u[:, None]).round().clamp(-most, most) / u[:, None] - rows).square().sum(1) for u in tried]
    )
    best = tried.gather(0, errors.argmin(0)[None])[0]
    return best.clamp(min=1)


def _rounded(node: Node, unit: Tensor, most: int) -> Node:
    assert isinstance(node, Conv | Linear)
    by_row = unit.expand(len(node.weight)).reshape(-1, *(1,) * (node.weight.ndim - 1))
    weight = (node.weight * by_row).round().clamp(-most, most) / by_row
    return replace(
        node, weight=weight, bias=None if node.bias is None else _of_few_bits(node.bias[None], unit, most)[0]
    )


def _of_few_bits(own: Tensor, unit: Tensor, most: int) -> Tensor:
    """Numbers `[steps, C]` on the grid, with an exponent of their own for each channel."""
    whole = own * unit
    exponent = torch.ceil(torch.log2((whole.abs().amax(0) / most).clamp(min=1)))
    return torch.round(whole / 2.0**exponent) * 2.0**exponent / unit


def _gate(gate: Tensor, unit: Tensor) -> Tensor:
    """Powers of two above what rounding of weights may add: twice as large."""
    return torch.where(gate == 0, gate, 2 * gate * unit) / unit


def _recalibrated(exact: Netlist, made: Integers, calibration: Tensor) -> Integers:
    """Biases that give each layer, on the spikes it gets now, the mean current it had before."""
    before: dict[str, Tensor] = {}
    T, most = exact.T, _most(made.bits)
    nodes = dict(made.netlist.nodes)

    def mean(netlist: Netlist, node: Node, current: Tensor) -> Tensor:
        """Of one step, without the gates."""
        clocks = (netlist.nodes[name] for name in node.inputs)
        gates = sum(clock.gate.sum(0) for clock in clocks if isinstance(clock, Clock))
        return (current.sum(0).transpose(0, 1).flatten(1).mean(1) - gates) / T

    def keep(node: Node, current: Tensor) -> Tensor:
        before[node.name] = mean(exact, node, current)
        return current

    def correct(node: Node, current: Tensor) -> Tensor:
        start = node.start if isinstance(node, Neurons) else exact.latency - T
        missing = torch.zeros(exact.latency, node.shape[0], dtype=torch.double)
        missing[start : start + T] = before[node.name] - mean(made.netlist, node, current)
        name = next((n for n in node.inputs if isinstance(nodes[n], Clock)), None)
        known = nodes[name] if name is not None else None
        old = known.own if isinstance(known, Clock) else torch.zeros_like(missing)
        own = _of_few_bits(old + missing, made.units[node.name], most)
        if isinstance(known, Clock):
            nodes[known.name] = replace(known, own=own)
        else:
            added = Clock(name=f"{node.name}.clock", shape=node.shape, own=own, gate=torch.zeros_like(own))
            nodes[added.name] = added
            nodes[node.name] = replace(nodes[node.name], inputs=(*node.inputs, added.name))
        change = (own - old).reshape(-1, 1, node.shape[0], *(1,) * (len(node.shape) - 1))
        return current + change

    x = calibration.double()
    simulate(exact, _shown(exact, x), keep)
    simulate(made.netlist, _shown(exact, made.image(x)), correct)
    order = {name: node for name, node in nodes.items() if isinstance(node, Clock)} | nodes
    image = {made.netlist.image.name: order[made.netlist.image.name]}
    return replace(made, netlist=Netlist(exact.T, exact.latency, exact.warm_up, image | order))


def _shown(netlist: Netlist, images: Tensor) -> Tensor:
    found = images.new_zeros(netlist.latency, *images.shape)
    found[: netlist.T] = images
    return found


# -- the integer run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accumulated:
    """What a run in whole numbers did: its trains, and how often a potential left the accumulator's range."""

    trains: Trains
    saturated: int


@torch.no_grad()
def run_integers(made: Integers, images: Tensor, width: int = 32) -> Accumulated:
    """The network in int64 sums and saturating accumulators of `width` bits: no float is in it but the image's."""
    netlist, units, limit = made.netlist, made.units, 2 ** (width - 1) - 1
    values: dict[str, Tensor] = {netlist.image.name: _shown(netlist, made.image(images).long())}
    readers = {name: node.name for node in netlist.nodes.values() for name in node.inputs}
    levels: dict[str, Tensor] = {}
    saturated = 0
    for node in netlist.nodes.values():
        if isinstance(node, Image):
            continue
        if isinstance(node, Clock):
            unit = units[readers[node.name]]
            schedule = ((node.own + node.gate) * unit).round().long()
            values[node.name] = schedule.reshape(-1, 1, node.shape[0], *(1,) * (len(node.shape) - 1))
            continue
        x = sum(values[name] for name in node.inputs)
        assert isinstance(x, Tensor)
        if isinstance(node, Conv | Linear):
            values[node.name] = _integer_sums(node, x, units.get(readers[node.name], torch.ones(1).double()))
        elif isinstance(node, SumPool):
            sums = _windows(x.flatten(0, 1), node.kernel, node.stride, (0, 0), (1, 1)).sum((4, 5))
            values[node.name] = sums.unflatten(0, x.shape[:2])
        elif isinstance(node, Flatten):
            values[node.name] = x.flatten(2)
        elif isinstance(node, Output):
            values[node.name] = x
        else:
            threshold = units[node.name].expand(node.shape[0]).long().reshape(-1, *(1,) * (len(node.shape) - 1))
            v, fired = torch.zeros_like(x[0]), []
            for current in x:
                v = v + current
                saturated += int((v.abs() > limit).sum())
                v = v.clamp(-limit, limit)
                fired.append((v >= threshold).long())
                v = v - threshold * fired[-1]
            values[node.name] = torch.stack(fired)
            levels[node.name] = values[node.name].to(torch.int8)
    outputs = values[netlist.output.name].double() / units[netlist.output.name].double()
    return Accumulated(Trains(outputs, levels), saturated)


def _integer_sums(node: Conv | Linear, x: Tensor, unit: Tensor) -> Tensor:
    by_row = unit.expand(len(node.weight))
    weight = (node.weight * by_row.reshape(-1, *(1,) * (node.weight.ndim - 1))).round().long()
    bias = 0 if node.bias is None else (node.bias * by_row).round().long()
    if isinstance(node, Linear):
        return x @ weight.T + bias
    dense = node.dense()
    weight = (dense.weight * by_row.reshape(-1, 1, 1, 1)).round().long()
    kernel = (weight.shape[2], weight.shape[3])
    windows = _windows(x.flatten(0, 1), kernel, node.stride, node.padding, node.dilation)  # [B, C, h, w, kh, kw]
    columns = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    found = (columns @ weight.flatten(1).T + bias).permute(0, 3, 1, 2)
    return found.unflatten(0, x.shape[:2])


def _windows(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for place, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + place, (size - 1) * gap + 1, step)[..., ::gap]
    return x
