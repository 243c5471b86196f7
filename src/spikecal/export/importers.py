"""Other simulators loading a NIR file: the settings that each needs, found by experiment, and how to run it.

SpikingJelly's importer is right once its neurons subtract instead of resetting. sinabs is right with one spike per
step and no floor for potentials; its own loader gets the order of branches wrong, so nirtorch builds the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.export.packages import package
from spikecal.export.simulate import Trains


class Stepping:
    """A loaded network, with modules named like NIR's nodes, and its initial state."""

    def __init__(self, graph: nn.Module, state: Callable[[], Any]) -> None:
        self._graph, self._start = graph, state

    @torch.no_grad()
    def run(self, frames: Tensor, layers: Sequence[str] = ()) -> Trains:
        """All frames `[latency, N, ...]` from a fresh state; `layers` are the nodes whose spikes to return."""
        levels: dict[str, list[Tensor]] = {name: [] for name in layers}
        outputs, state = [], self._start()
        with self._recorded(levels):
            for frame in frames:
                output, state = self._graph(frame, state)
                outputs.append(output)
        return Trains(torch.stack(outputs), {name: torch.stack(steps) for name, steps in levels.items()})

    @contextmanager
    def _recorded(self, levels: dict[str, list[Tensor]]) -> Iterator[None]:
        def keep(steps: list[Tensor]) -> Callable[..., None]:
            return lambda _module, _inputs, found: steps.append(_first(found).to(torch.int8))

        handles = [self._graph.get_submodule(name).register_forward_hook(keep(of)) for name, of in levels.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def load_spikingjelly(path: Path, dtype: torch.dtype) -> Stepping:
    """By SpikingJelly's own importer, except for the reset."""
    module = package("spikingjelly.activation_based.nir_exchange.from_nir").import_from_nir(path, dtype=dtype)
    neuron = package("spikingjelly.activation_based.neuron")
    for part in module.modules():
        if isinstance(part, neuron.IFNode):
            part.v_reset = None  # subtract the threshold
    return Stepping(module, lambda: None)


def load_sinabs(path: str | Path, dtype: torch.dtype = torch.float) -> Stepping:
    """sinabs' layers, wired by nirtorch."""
    nir, nirtorch, layers = package("nir"), package("nirtorch"), package("sinabs.layers")
    activation = package("sinabs.activation")

    def neurons(node: Any) -> nn.Module:
        threshold = torch.as_tensor(node.v_threshold)
        return _OneStep(layers.IAF(spike_threshold=threshold, spike_fn=activation.SingleSpike, min_v_mem=None))

    def pool(node: Any) -> nn.Module:
        return _Summing(layers.SumPool2d(tuple(node.kernel_size.tolist()), tuple(node.stride.tolist())))

    nodes = {
        nir.IF: neurons,
        nir.SumPool2d: pool,
        nir.Conv2d: lambda node: _Summing(_conv(node)),
        nir.Affine: lambda node: _Summing(_affine(node)),
        nir.Flatten: lambda node: _Summing(nn.Flatten()),
    }
    graph = nir.read(str(path))
    graph.nodes = {name: graph.nodes[name] for name in _in_order(graph)}  # a file has them in alphabetical order
    return Stepping(nirtorch.nir_to_torch(graph, nodes).to(dtype), lambda: dict.fromkeys(graph.nodes))


def _in_order(graph: Any) -> list[str]:
    before: dict[str, set[str]] = {name: set() for name in graph.nodes}
    for source, reader in graph.edges:
        before[reader].add(source)
    return list(TopologicalSorter(before).static_order())


class _Summing(nn.Module):
    """A module that sums its inputs, which not every version of nirtorch does itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.module(sum(inputs))
        return result


class _OneStep(nn.Module):
    """A layer of sinabs, which takes `[N, time, ...]`, for one step; its potentials are the state."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        current = torch.as_tensor(sum(inputs))
        self.layer.v_mem = torch.zeros_like(current) if state is None else state
        return self.layer(current.unsqueeze(1)).squeeze(1).to(current), self.layer.v_mem


def _conv(node: Any) -> nn.Module:
    rows, columns, *kernel = node.weight.shape
    stride, padding, dilation = ((int(n[0]), int(n[1])) for n in (node.stride, node.padding, node.dilation))
    conv = nn.Conv2d(columns, rows, tuple(kernel), stride, padding, dilation)
    return _with(conv, node)


def _affine(node: Any) -> nn.Module:
    return _with(nn.Linear(node.weight.shape[1], node.weight.shape[0]), node)


def _with(module: nn.Module, node: Any) -> nn.Module:
    """The module with a node's weight and bias; nirtorch's own map leaves a random bias."""
    module.load_state_dict({"weight": torch.as_tensor(node.weight), "bias": torch.as_tensor(node.bias)})
    return module
