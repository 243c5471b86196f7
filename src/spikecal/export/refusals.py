"""Refuse nodes that a target lacks, by the name of the layer and with a way out."""

from spikecal.errors import ConversionError
from spikecal.export.netlist import Delay, MaxPool, Netlist, Neurons, Node
from spikecal.neurons import IntegrateAndFire, SignedIntegrateAndFire

ANYWHERE = "export to onnx"
TITLES = {"nir": "NIR", "spikingjelly": "SpikingJelly"}  # formats that have only weights and one kind of neuron


def refuse_missing(netlist: Netlist, to: str, rounded: bool) -> None:
    """Raise for the first node without counterpart in the format, before anything long is done."""
    for node in netlist.nodes.values() if to in TITLES else ():
        other = isinstance(node, Neurons) and node.neuron != IntegrateAndFire()
        if other or isinstance(node, MaxPool | Delay):
            raise refusal(node, TITLES[to], rounded)


def refusal(node: Node, target: str, rounded: bool = False) -> Exception:
    """The error for a node without counterpart in `target`.

    A network `rounded` to a grid or to integers is not told to send currents, which fit neither.
    """
    if isinstance(node, MaxPool):
        way = "use average pools" if rounded else f"use average pools, or {ANYWHERE}"
        return ConversionError(node.name, f"{target} has no max-pool of running sums", way)
    if isinstance(node, Delay):
        found = f"{node.inputs[0]} needs a delay line, but {target} has none"
        return ConversionError(node.name, found, f"convert without --latency, or {ANYWHERE}")
    if isinstance(node, Neurons):
        signed = ANYWHERE if rounded else f'convert with joints="analog" (--joints analog), or {ANYWHERE}'
        way = signed if node.neuron == SignedIntegrateAndFire() else "use integrate-and-fire neurons"
        return ConversionError(node.name, f"{target} has no {node.neuron.name} neurons", way)
    return TypeError(f"{type(node).__name__} should have become weights on clock planes")
