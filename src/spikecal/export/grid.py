"""Weights on a grid on which every sum is exact in single precision, so that the order of additions changes no spike.

Floats have 24 bits. A layer that adds up spikes has values up to S, the sum of its weights of one sign; with weights
that are multiples of `2^-k`, `2^k S <= 2^24`, all of these sums are exact, whatever kernel adds them up. That leaves
weights about 20 bits behind the point, and those of the first layer, which multiply pixels, about 11.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from spikecal.errors import ConversionError
from spikecal.export.bounds import Range, power_of_two, range_of
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

MANTISSA = 2.0**24
WITHOUT = "export without --exact"
SIGNED = f'{WITHOUT} or, if it is an analog joint, convert with joints="signed" (--joints signed) and export to onnx'
PIXEL = 2.0**-8  # images are multiples of it: a quarter of an 8-bit level
MARGIN = 1 + 2.0**-8  # for what rounding adds to a sum of weights


def on_grid(netlist: Netlist) -> Netlist:
    """The netlist, given in double precision, with images, weights, biases and clocks on grids, one for each channel.

    If weights read currents (analog joints, max-pools), no grid is fine enough: ConversionError.
    """
    rounding = netlist.replaced({netlist.image.name: [replace(netlist.image, pixel=PIXEL)]})
    grids, changes = Grids(rounding), dict[str, list[Node]]()
    for node in rounding.nodes.values():
        if not isinstance(node, Conv | Linear) or grids.quantum(node) is not None:
            continue
        pool = next((name for name in node.inputs if isinstance(rounding.nodes[name], MaxPool)), None)
        if pool is not None:
            raise ConversionError(pool, "a max-pool of currents, for which no grid is fine enough", WITHOUT)
        raise ConversionError(node.name, "its input is a current, for which no grid is fine enough", SIGNED)
    for node in rounding.nodes.values():
        readers = [rounding.nodes[name] for name in rounding.readers()[node.name]]
        ends = [reader for reader in readers if isinstance(reader, Neurons | Output)]
        most = torch.stack([grids.largest(end.inputs if end in ends else [node.name]) for end in readers or [node]])
        step = power_of_two(most.amax(0) * MARGIN / MANTISSA)
        if isinstance(node, Clock):
            changes[node.name] = [replace(node, own=_to(node.own.T, step).T)]
        elif isinstance(node, Conv | Linear) and not node.moves:
            quantum = grids.quantum(node)
            assert quantum is not None
            bias = None if node.bias is None else _to(node.bias, step)
            changes[node.name] = [replace(node, weight=_to(node.weight, step / quantum), bias=bias)]
    return rounding.replaced(changes)


def is_exact(netlist: Netlist) -> bool:
    """Whether images and all that weights read are on a grid; what `on_grid` made has its weights on one, too."""
    grids, weighted = Grids(netlist), (node for node in netlist.nodes.values() if isinstance(node, Conv | Linear))
    return netlist.image.pixel is not None and all(grids.quantum(node) is not None for node in weighted)


class Grids:
    """The grid of a netlist's values, and their bounds."""

    def __init__(self, netlist: Netlist) -> None:
        self._nodes = netlist.nodes
        self.ranges: dict[str, Range] = {}
        for node in netlist.nodes.values():
            self.ranges[node.name] = range_of(node, [self.ranges[name] for name in node.inputs])

    def quantum(self, node: Node) -> float | None:
        """The grid of a node's inputs; None if it is too fine."""
        found = [self._of(self._nodes[name]) for name in node.inputs]
        return None if None in found else min(q for q in found if q is not None)

    def _of(self, node: Node) -> float | None:
        if isinstance(node, Image):
            return node.pixel
        if isinstance(node, Neurons):
            return 1.0
        passes = isinstance(node, SumPool | Flatten | Delay | MaxPool) or (isinstance(node, Conv) and node.moves)
        return self.quantum(node) if passes else None

    def largest(self, names: Iterable[str]) -> Tensor:
        """The largest number `[C]` that can occur in a sum of these nodes, in any order."""
        found = [torch.maximum(-low, high) for low, high in (self.ranges[name] for name in names)]
        return torch.stack(found).sum(0).clamp(min=2.0**-20)


def _to(values: Tensor, step: Tensor) -> Tensor:
    by_row = step.reshape(-1, *(1,) * (values.ndim - 1))
    return torch.round(values / by_row) * by_row
