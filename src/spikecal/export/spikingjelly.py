"""A network of SpikingJelly's own layers and neurons, as a module and as a Python file with its weights beside it."""

import operator
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, fx, nn

from spikecal.errors import ConfigError
from spikecal.export.netlist import Conv, Flatten, Linear, Netlist, Neurons, Node, Output, SumPool, identifiers
from spikecal.export.packages import package
from spikecal.export.planes import with_planes
from spikecal.export.refusals import refusal
from spikecal.files import write_together
from spikecal.neurons import IntegrateAndFire

PACKAGE = "spikingjelly.activation_based"
MARK = {"spikecal": "export"}  # metadata of weights
Settings = dict[str, Any]


def module_of(netlist: Netlist, step_mode: str = "m") -> nn.Module:
    """The network as a module of frames: all of `[latency, N, ...]` in mode `m`, one after the other in mode `s`."""
    flat = with_planes(netlist)
    names, root, graph = identifiers(flat), nn.Module(), fx.Graph()
    values: dict[str, fx.Node] = {flat.image.name: graph.placeholder("frames")}
    for node in flat.nodes.values():
        if not node.inputs:
            continue
        total = values[node.inputs[0]]
        for name in node.inputs[1:]:
            total = graph.call_function(operator.add, (total, values[name]))
        if isinstance(node, Output):
            graph.output(total)
            continue
        kind, settings = _layer(node)
        root.add_module(names[node.name], _made(kind, settings, node))
        values[node.name] = graph.call_module(names[node.name], (total,))
    module = fx.GraphModule(root, graph, "SpikingNetwork")
    package(f"{PACKAGE}.functional").set_step_mode(module, step_mode)
    return module


def write_spikingjelly(path: Path, netlist: Netlist) -> None:
    """`path` is Python code of SpikingJelly's layers; the weights go beside it, into a safetensors file."""
    from safetensors.torch import save

    flat = with_planes(netlist)
    names = identifiers(flat)
    tensors: dict[str, Tensor] = {}
    for node in flat.nodes.values():
        if isinstance(node, Conv | Linear):
            tensors |= {f"{names[node.name]}.{kind}": tensor for kind, tensor in _tensors(node).items()}
    weights = path.with_suffix(".safetensors")
    _refuse_others(weights, path)
    source = _source(netlist, flat, names, weights.name)
    write_together({weights: save(tensors, MARK), path: source})


def _refuse_others(weights: Path, path: Path) -> None:
    """Raise if an export would replace what no export wrote, such as the network's own code and trained weights."""
    from safetensors import SafetensorError, safe_open

    if path.is_file() and not path.read_bytes().startswith(f'"""{TITLE}'.encode()):
        raise ConfigError(f"{path} is there, and no export wrote it: give another name")
    if not weights.exists():
        return
    with suppress(SafetensorError, OSError), safe_open(weights, "pt") as there:
        if MARK.items() <= (there.metadata() or {}).items():
            return
    raise ConfigError(f"{weights}, where the weights would go, is another file: give another name than {path}")


def _layer(node: Node) -> tuple[str, Settings]:
    """SpikingJelly's class for a node, and what it is made with."""
    if isinstance(node, Conv):
        return "layer.Conv2d", {
            "in_channels": node.weight.shape[1] * node.groups, "out_channels": node.weight.shape[0],
            "kernel_size": tuple(node.weight.shape[2:]), "stride": node.stride, "padding": node.padding,
            "dilation": node.dilation, "groups": node.groups, "bias": node.bias is not None,
        }  # fmt: skip
    if isinstance(node, Linear):
        rows, columns = node.weight.shape
        return "layer.Linear", {"in_features": columns, "out_features": rows, "bias": node.bias is not None}
    if isinstance(node, SumPool):  # a pool that divides by 1 is a sum
        return "layer.AvgPool2d", {"kernel_size": node.kernel, "stride": node.stride, "divisor_override": 1}
    if isinstance(node, Flatten):
        return "layer.Flatten", {}
    if isinstance(node, Neurons) and node.neuron == IntegrateAndFire():
        return "neuron.IFNode", {"v_threshold": 1.0, "v_reset": None}
    raise refusal(node, "SpikingJelly")


def _made(kind: str, settings: Settings, node: Node) -> nn.Module:
    home, _, name = kind.partition(".")
    module: nn.Module = getattr(package(f"{PACKAGE}.{home}"), name)(**settings)
    if isinstance(node, Conv | Linear):
        module.load_state_dict(_tensors(node))
    return module


def _tensors(node: Conv | Linear) -> dict[str, Tensor]:
    found = {"weight": node.weight.contiguous().clone()}
    return found if node.bias is None else {**found, "bias": node.bias.contiguous().clone()}


# -- the file ------------------------------------------------------------------------------------------------------

TITLE = "A spiking network for SpikingJelly. Written by spikecal"
TEMPLATE = '''"""{title}; the weights are in {weights}.

    net = load()                # step_mode="s": one frame after the other
    outputs = net(frames(x))    # [latency, N, ...] of images [N, ...] as the network was trained on
    answer = outputs[{first}:].mean(0)
    functional.reset_net(net)   # before the next images
"""

from pathlib import Path

from safetensors.torch import load_file
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

T, LATENCY, PLANES = {T}, {latency}, {planes}


class Net(nn.Module):
    def __init__(self, step_mode: str = "m") -> None:
        super().__init__()
{layers}
        functional.set_step_mode(self, step_mode)

    def forward(self, {image}: Tensor) -> Tensor:
{forward}


def load(step_mode: str = "m") -> Net:
    net = Net(step_mode)
    net.load_state_dict(load_file(Path(__file__).with_name("{weights}")))
    return net


def frames(images: Tensor) -> Tensor:
    """The image for T steps and, beside its channels, clock planes: plane t is 1 at step t."""
{rounding}    found = images.new_zeros(LATENCY, len(images), images.shape[1] + PLANES, *images.shape[2:])
    found[:T, :, : images.shape[1]] = images
    for t in range(PLANES):
        found[t, :, images.shape[1] + t] = 1
    return found
'''


def _source(netlist: Netlist, flat: Netlist, names: Mapping[str, str], weights: str) -> str:
    layers, forward = [], []
    for node in flat.nodes.values():
        total = " + ".join(names[name] for name in node.inputs)
        if isinstance(node, Output):
            forward.append(f"        return {total}")
        elif node.inputs:
            kind, settings = _layer(node)
            arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            layers.append(f"        self.{names[node.name]} = {kind}({arguments})")
            forward.append(f"        {names[node.name]} = self.{names[node.name]}({total})")
    return TEMPLATE.format(
        title=TITLE, weights=weights, T=netlist.T, latency=netlist.latency, planes=netlist.planes,
        image=names[flat.image.name], layers="\n".join(layers), forward="\n".join(forward), first=netlist.first,
        rounding=_rounding(flat.image.pixel),
    )  # fmt: skip


def _rounding(pixel: float | None) -> str:
    """The line that puts images on their grid."""
    return (
        ""
        if pixel is None
        else f"    images = (images / {pixel!r}).round() * {pixel!r}  # so that all sums are exact\n"
    )
