"""Nodes that only some targets have: refused by the name of the layer, with what to do about it."""

from spikecal.errors import ConversionError
from spikecal.export.netlist import Delay, MaxPool, Neurons, Node
from spikecal.neurons import SignedIntegrateAndFire

ANYWHERE = "export to onnx"


def refusal(node: Node, target: str) -> Exception:
    """What to raise for a node that `target` has no counterpart of."""
    if isinstance(node, MaxPool):
        return ConversionError(
            node.name, f"{target} has no max-pool of running sums", f"use average pools, or {ANYWHERE}"
        )
    if isinstance(node, Delay):
        found = f"{node.inputs[0]} needs a delay line, and {target} has none"
        return ConversionError(node.name, found, f"convert without --latency, or {ANYWHERE}")
    if isinstance(node, Neurons):
        signed = f'convert with joints="analog" (--joints analog), or {ANYWHERE}'
        way = signed if node.neuron == SignedIntegrateAndFire() else "use integrate-and-fire neurons"
        return ConversionError(node.name, f"{target} has no {node.neuron.name} neurons", way)
    return TypeError(f"{type(node).__name__} should have become weights on clock planes")
