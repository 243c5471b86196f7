"""SpikingJelly's recipes and sinabs' `from_torch`, run as their documentation runs them and otherwise."""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import sinabs
import sinabs.layers
import torch
from peer import PART, Net, Peer
from sinabs.from_torch import from_model
from spikingjelly.activation_based import ann2snn, functional
from spikingjelly.activation_based.neuron.base_node import BaseNode
from torch import Tensor, nn

# -- SpikingJelly ------------------------------------------------------------------------------------------------------


class SpikingJelly(Peer):
    def readouts(self, outputs: Tensor, net: Net, images: Tensor) -> Iterator[Tensor]:
        """With all steps, and with the first ones left out that its estimate says, as its ImageNet example does."""
        yield outputs.sum(0)
        functional.set_step_mode(net, "s")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few steps it leaves out fewer than it would
            start = ann2snn.estimate_delay_start(net, [images[:PART]], "cpu", len(outputs))
        yield outputs[start:].sum(0)


def by_recipe(recipe: type, part: int, **settings: Any) -> Callable[[nn.Module, Tensor, int], Net]:
    def convert(model: nn.Module, images: Tensor, T: int) -> Net:
        return ann2snn.Converter(recipe(dataloader=list(images.split(part)), **settings)).convert(deepcopy(model))

    return convert


def single_steps(net: Net, x: Tensor, T: int) -> Tensor:
    functional.set_step_mode(net, "s")
    functional.reset_net(net)
    return torch.stack([net(x) for _ in range(T)])


def multi_step(net: Net, x: Tensor, T: int) -> Tensor:
    functional.set_step_mode(net, "m")
    functional.reset_net(net)
    return net(over_time(x, T).unflatten(0, (T, len(x))))


def over_time(x: Tensor, T: int) -> Tensor:
    """The images once a step, in the layout of memory they have."""
    return x.repeat(T, 1, 1, 1).contiguous(memory_format=torch.channels_last if is_last(x) else torch.contiguous_format)


def is_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def spikingjelly(recipe: type = ann2snn.RateCodingRecipe, part: int = PART, **settings: Any) -> Peer:
    styles = {"single-step": single_steps, "multi-step": multi_step}
    return SpikingJelly(by_recipe(recipe, part, **settings), styles, BaseNode)


# -- sinabs ------------------------------------------------------------------------------------------------------------


def sinabs_converted(model: nn.Module, images: Tensor, T: int) -> Net:
    return from_model(model, input_shape=tuple(images.shape[1:]), num_timesteps=T)


def sinabs_steps(net: Net, steps: int) -> None:
    net.reset_states()
    for module in net.spiking_model.modules():
        if isinstance(module, sinabs.layers.SqueezeMixin):
            module.num_timesteps = steps


def sinabs_at_once(net: Net, x: Tensor, T: int) -> Tensor:
    sinabs_steps(net, T)
    return net(x.repeat_interleave(T, 0)).unflatten(0, (len(x), T)).transpose(0, 1)


def sinabs_stepwise(net: Net, x: Tensor, T: int) -> Tensor:
    sinabs_steps(net, 1)
    return torch.stack([net(x) for _ in range(T)])
