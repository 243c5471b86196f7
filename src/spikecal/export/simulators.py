"""The simulators that exported files are verified in: what each needs, and how it turns a file into a function."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from spikecal.errors import SpikecalError
from spikecal.export.importers import Stepping, load_sinabs, load_spikingjelly
from spikecal.export.netlist import Netlist, identifiers
from spikecal.export.onnx import step_path
from spikecal.export.packages import installed, package
from spikecal.export.planes import frames, with_planes
from spikecal.export.runtime import run_steps, run_whole
from spikecal.export.simulate import Trains

Run = Callable[[Tensor], Trains]
Load = Callable[[Path, Netlist, torch.dtype], Run]


@dataclass(frozen=True)
class Simulator:
    """A simulator that runs an exported file; `double` if it also supports double precision."""

    name: str
    packages: tuple[str, ...]
    load: Load
    double: bool = True

    @property
    def installed(self) -> bool:
        return all(installed(name) for name in self.packages)


def _nir(load: Callable[[Path, torch.dtype], Stepping]) -> Load:
    def loaded(path: Path, netlist: Netlist, dtype: torch.dtype) -> Run:
        stepping, names = load(path, dtype), identifiers(with_planes(netlist))
        layers = {node.name: names[node.name] for node in netlist.neurons()}

        def run(images: Tensor) -> Trains:
            trains = stepping.run(_frames(netlist, images), list(layers.values()))
            return Trains(trains.outputs, {name: trains.levels[there] for name, there in layers.items()})

        return run

    return loaded


def _onnxruntime(path: Path, netlist: Netlist, dtype: torch.dtype) -> Run:
    def run(images: Tensor) -> Trains:
        trains = run_steps(path, netlist, images)
        mean = trains.outputs[netlist.first :].mean(0)
        if not torch.allclose(run_whole(path, images), mean, rtol=1e-3, atol=1e-3):
            raise SpikecalError(f"{path} and {step_path(path).name} are not the same network: export it again")
        return trains

    return run


def _spikingjelly(path: Path, netlist: Netlist, dtype: torch.dtype) -> Run:
    """The file just written, loaded as by its users."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net: nn.Module = module.load().to(dtype)
    return lambda images: run_module(net, netlist, images)


@torch.no_grad()
def run_module(net: nn.Module, netlist: Netlist, images: Tensor) -> Trains:
    """A module of SpikingJelly in mode `m`, with the spikes of its layers; its state is reset before and after."""
    reset = package("spikingjelly.activation_based.functional").reset_net
    names, levels = identifiers(with_planes(netlist)), dict[str, Tensor]()

    def keep(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, found: levels.update({name: found.to(torch.int8)})

    layers = [node.name for node in netlist.neurons()]
    handles = [net.get_submodule(names[name]).register_forward_hook(keep(name)) for name in layers]
    try:
        reset(net)
        outputs = net(_frames(netlist, images))
        reset(net)
    finally:
        for handle in handles:
            handle.remove()
    return Trains(outputs, levels)


def _frames(netlist: Netlist, images: Tensor) -> Tensor:
    return frames(netlist.image.rounded(images), netlist.T, netlist.latency, netlist.planes)


SIMULATORS = {
    "nir": (
        Simulator("spikingjelly", ("spikingjelly", "nir", "nirtorch"), _nir(load_spikingjelly)),
        Simulator("sinabs", ("sinabs", "nir", "nirtorch"), _nir(load_sinabs)),
    ),
    "onnx": (Simulator("onnxruntime", ("onnx", "onnxruntime"), _onnxruntime, double=False),),
    "spikingjelly": (Simulator("spikingjelly", ("spikingjelly",), _spikingjelly),),
}
