"""NIR, the common format of neuromorphic simulators: a graph of numpy arrays in an HDF5 file.

`nir.IF` is defined with a reset to zero. These neurons subtract their threshold, which NIR cannot express: it is in
the metadata, and whoever loads the file must tell the importer.
"""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.errors import ConversionError
from spikecal.export.netlist import (
    Conv,
    Flatten,
    Image,
    Linear,
    Netlist,
    Neurons,
    Node,
    Output,
    SumPool,
    identifiers,
)
from spikecal.export.packages import package
from spikecal.export.planes import with_planes
from spikecal.export.refusals import refusal
from spikecal.export.values import mixing
from spikecal.files import write_whole
from spikecal.neurons import IntegrateAndFire

DT = 1e-4  # seconds per step, the default of importers
RESET = "subtract"


def nir_graph(netlist: Netlist) -> Any:
    """The `nir.NIRGraph` of a netlist."""
    nir = package("nir")
    flat = _one_output(with_planes(netlist))
    names = identifiers(flat)  # importers turn them into attributes
    nodes = {names[node.name]: _node(nir, node, flat) for node in flat.nodes.values()}
    edges = [(names[source], names[node.name]) for node in flat.nodes.values() for source in node.inputs]
    about = {"T": netlist.T, "latency": netlist.latency, "planes": netlist.planes, "reset": RESET, "dt": DT}
    if netlist.image.pixel is not None:
        about["pixel"] = netlist.image.pixel
    return nir.NIRGraph(nodes=nodes, edges=edges, metadata={"spikecal": json.dumps(about, sort_keys=True)})


def write_nir(path: Path, netlist: Netlist) -> None:
    """One HDF5 file."""
    content = io.BytesIO()
    package("nir").write(content, nir_graph(netlist))
    write_whole(path, content.getvalue())


def _one_output(netlist: Netlist) -> Netlist:
    """With a single input for the output: some importers would return several separately."""
    output = netlist.output
    if len(output.inputs) == 1:
        return netlist
    weights = torch.ones(output.shape[0], dtype=netlist.image.low.dtype)
    total = mixing("output.sum", output.inputs, weights, output.shape)
    return netlist.replaced({output.name: [total, replace(output, inputs=(total.name,))]})


def _node(nir: Any, node: Node, netlist: Netlist) -> Any:
    before = netlist.nodes[node.inputs[0]].shape if node.inputs else ()
    if isinstance(node, Image):
        return nir.Input(input_type=np.array(node.shape))
    if isinstance(node, Output):
        return nir.Output(output_type=np.array(node.shape))
    if isinstance(node, Conv):
        square = _square(node.dense())
        return nir.Conv2d(
            input_shape=tuple(before[1:]), weight=_array(square.weight), stride=square.stride, padding=square.padding,
            dilation=square.dilation, groups=1, bias=_bias(node),
        )  # fmt: skip
    if isinstance(node, Linear):
        return nir.Affine(weight=_array(node.weight), bias=_bias(node))
    if isinstance(node, SumPool):
        return nir.SumPool2d(kernel_size=np.array(node.kernel), stride=np.array(node.stride), padding=np.array((0, 0)))
    if isinstance(node, Flatten):
        return nir.Flatten(input_type={"input": np.array(before)}, start_dim=0, end_dim=-1)
    if isinstance(node, Neurons) and node.neuron == IntegrateAndFire():
        each = np.ones(node.shape, dtype=np.float32)
        return nir.IF(r=each / np.float32(DT), v_threshold=each, metadata={"reset": RESET})
    raise refusal(node, "NIR")


def _square(conv: Conv) -> Conv:
    """The same convolution with a square kernel, zeros around the other: NIR can check no other shapes."""
    kernel = conv.weight.shape[2:]
    more = [max(kernel) - size for size in kernel]
    if any(zeros % 2 for zeros in more):
        raise ConversionError(
            conv.name, f"NIR cannot check a kernel of {kernel[0]}×{kernel[1]}", "use a square one, or export to onnx"
        )
    top, left = more[0] // 2, more[1] // 2
    padding = (conv.padding[0] + top * conv.dilation[0], conv.padding[1] + left * conv.dilation[1])
    return replace(conv, weight=F.pad(conv.weight, (left, left, top, top)), padding=padding)


def _bias(node: Conv | Linear) -> np.ndarray:
    return np.zeros(node.shape[0], dtype=np.float32) if node.bias is None else _array(node.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.float32))
