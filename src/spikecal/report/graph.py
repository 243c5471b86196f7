"""The network as drawn on the page: stages from left to right by depth, and edges between them."""

from typing import Any

from spikecal.graph.graph import Node
from spikecal.graph.ops import (
    AdaptiveAvgPool,
    Add,
    AvgPool,
    Cat,
    Conv,
    ConvTranspose,
    Linear,
    MaxPool,
    Reduce,
    Upsample,
)
from spikecal.graph.stages import Stage
from spikecal.snn.network import SpikingNetwork

POOLS = {AvgPool: "average pool", AdaptiveAvgPool: "average pool", Reduce: "average pool", MaxPool: "max pool"}


def drawn_graph(network: SpikingNetwork) -> dict[str, Any]:
    """Nodes with their column (longest path from an input) and lane, and edges as pairs of node numbers.

    Inputs come first, then the stages in running order: stage i is node `inputs + i`.
    """
    inputs = network.graph.inputs()
    outputs = set(network.graph.outputs())
    number = {name: i for i, name in enumerate([*inputs, *(stage.name for stage in network.stages)])}
    columns = dict.fromkeys(inputs, 0)
    edges = []
    for stage in network.stages:
        columns[stage.name] = 1 + max((columns[name] for name in stage.inputs), default=0)
        edges += [[number[name], number[stage.name]] for name in stage.inputs]
    nodes = [{"name": name, "kind": "input", "what": "the image", "output": name in outputs} for name in inputs]
    nodes += [
        {"name": stage.name, "kind": stage.kind, "what": what_it_does(stage), "output": stage.name in outputs}
        for stage in network.stages
    ]
    lanes: dict[int, int] = {}
    for node in nodes:
        column = columns[str(node["name"])]
        node |= {"column": column, "lane": lanes.get(column, 0)}
        lanes[column] = lanes.get(column, 0) + 1
    return {"inputs": len(inputs), "nodes": nodes, "edges": edges}


def what_it_does(stage: Stage) -> str:
    """The operations of a stage in a few words: `conv 3×3, 16 → 32, stride 2; sum`."""
    parts = [text for text in map(_operation, stage.nodes) if text]
    shown = list(dict.fromkeys(parts))
    return "; ".join(shown[:4]) + ("; …" if len(shown) > 4 else "")


def _operation(node: Node) -> str:
    op = node.op
    if isinstance(op, Conv | ConvTranspose):
        return _convolution(op)
    if isinstance(op, Linear):
        return f"linear {op.weight.shape[1]} → {op.weight.shape[0]}"
    if isinstance(op, Add):
        return "sum"
    if isinstance(op, Cat):
        return "concatenation"
    if isinstance(op, Upsample):
        return "upsampling"
    return next((text for kind, text in POOLS.items() if isinstance(op, kind)), "")


def _convolution(op: Conv | ConvTranspose) -> str:
    first, second, *kernel = op.weight.shape
    if isinstance(op, Conv):
        source, made = second * op.groups, first
    else:
        source, made = first, second * op.groups
    text = f"{'conv' if isinstance(op, Conv) else 'transposed conv'} {'×'.join(map(str, kernel))}, {source} → {made}"
    if max(op.stride) > 1:
        text += f", stride {max(op.stride)}"
    if op.groups > 1:
        text += ", depthwise" if op.groups == source else f", {op.groups} groups"
    return text
