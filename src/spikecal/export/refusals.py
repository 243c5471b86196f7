"""Refuse nodes that a target lacks, by the name of the layer and with a way out."""

from spikecal.errors import ConversionError
from spikecal.export.netlist import Delay, MaxPool, Neurons, Node
from spikecal.neurons import SignedIntegrateAndFire

ANYWHERE = "export to onnx"


def refusal(node: Node, target: str) -> Exception:
    """The error for a node without counterpart in `target`."""
    if isinstance(node, MaxPool):
        return ConversionError(
            node.name, f"{target} has no max-pool of running sums", f"use average pools, or {ANYWHERE}"
        )
    if isinstance(node, Delay):
        found = f"{node.inputs[0]} needs a delay line, but {target} has none"
        return ConversionError(node.name, found, f"convert without --latency, or {ANYWHERE}")
    if isinstance(node, Neurons):
        signed = f'convert with joints="analog" (--joints analog), or {ANYWHERE}'
        way = signed if node.neuron == SignedIntegrateAndFire() else "use integrate-and-fire neurons"
        return ConversionError(node.name, f"{target} has no {node.neuron.name} neurons", way)
    return TypeError(f"{type(node).__name__} should have become weights on clock planes")
