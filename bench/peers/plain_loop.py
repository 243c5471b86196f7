"""Conversion and a loop over time as in research code: modules with a state, called once per step."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from peer import PART, Net
from torch import Tensor, nn

SEARCHED, CORRECTED, CANDIDATES, MOMENTUM = 256, 128, 95, 0.9


class Neurons(nn.Module):
    """A ReLU, or integrate-and-fire neurons in the place of one, as in the authors' code of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.spiking = False
        self.threshold, self.start, self.v = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        if not self.spiking:
            return x.relu()
        self.v = self.v + x
        spikes = (self.v >= self.threshold).float() * self.threshold
        self.v = self.v - spikes
        return spikes


def spiking(net: nn.Module, whether: bool) -> list[Neurons]:
    found = [module for module in net.modules() if isinstance(module, Neurons)]
    for neurons in found:
        neurons.spiking, neurons.v = whether, neurons.start
    return found


def plain_loop(net: Net, x: Tensor, T: int) -> Tensor:
    spiking(net, True)
    return torch.stack([net(x) for _ in range(T)])


@torch.inference_mode()
def plainly_converted(model: nn.Module, images: Tensor, T: int) -> Net:
    """Thresholds of least squared error among 95, per channel; potentials layer by layer, a whole run for each.

    The search needs fewer passes over memory than that of the authors' code, and has the same result. Half a threshold
    is in the potential from the start, where their code adds it in T parts.
    """
    net = deepcopy(model)
    for name, module in list(net.named_modules()):
        if type(module) is nn.ReLU:
            parent, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(parent), leaf, Neurons())
    layers = spiking(net, False)
    for number, part in enumerate(images[:SEARCHED].split(PART)):
        for neurons, values in captured(net, layers, lambda part=part: net(part)):
            found = least_squares(values.relu(), T)
            neurons.threshold = found if number == 0 else MOMENTUM * neurons.threshold + (1 - MOMENTUM) * found
    few = images[:CORRECTED]
    for neurons in layers:
        neurons.start = neurons.threshold / 2
    for neurons in layers:
        spiking(net, False)
        target = mean_output(neurons, lambda: net(few))
        error = target - mean_output(neurons, lambda: plain_loop(net, few, T)) / T
        neurons.start = neurons.start + T * error
    return net


def captured(net: nn.Module, layers: list[Neurons], run: Callable[[], Any]) -> list[tuple[Neurons, Tensor]]:
    """What reaches each layer."""
    found: dict[Neurons, Tensor] = {}
    hooks = [layer.register_forward_pre_hook(lambda layer, given: found.update({layer: given[0]})) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return list(found.items())


def mean_output(layer: Neurons, run: Callable[[], Any]) -> Tensor:
    """The mean over images of all that a layer gives while something runs."""
    total: list[Tensor] = []
    hook = layer.register_forward_hook(lambda layer, given, output: total.append(output.mean(0, keepdim=True)))
    run()
    hook.remove()
    return torch.stack(total).sum(0)


def least_squares(values: Tensor, T: int) -> Tensor:
    positions = tuple(d for d in range(values.ndim) if d != 1)
    highest = values.amax(positions, keepdim=True).clamp_min(1e-6)
    best, least = highest, torch.full_like(highest, torch.inf)
    for candidate in range(CANDIDATES):
        theta = highest * (1 - candidate / 100)
        error = (values * (T / theta)).floor_().clamp_(max=T).mul_(theta / T).sub_(values).square_()
        error = error.sum(positions, keepdim=True)
        best, least = torch.where(error < least, theta, best), torch.minimum(error, least)
    return best
