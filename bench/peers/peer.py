"""A way from a network to a spiking one, and the ways to run what it makes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

PART = 128  # images of a batch, as in the peers' examples
SIZES = (128, 32, 8)  # images at once, of which the fastest is taken


@dataclass(frozen=True)
class Way:
    """How a network is run: one of its peer's styles, so many images at once, in which layout of memory."""

    style: str
    images: int
    channels_last: bool

    def __str__(self) -> str:
        layout = ", channels last" if self.channels_last else ""
        return f"{self.style}, {self.images} images at once{layout}"


Net = Any
Style = Callable[[Net, Tensor, int], Tensor]  # images to the outputs of each step [T, N, classes]


@dataclass(frozen=True)
class Peer:
    """A way to a spiking network. The first of its `styles` to run is that of its documentation."""

    convert: Callable[[nn.Module, Tensor, int], Net]  # of network, calibration images and T
    styles: Mapping[str, Style]
    neurons: type[nn.Module]  # what emits
    for_T: bool = False  # whether a network is converted for one T
    unit: Callable[[Any], Tensor | float] = lambda neuron: 1.0  # what one spike of a neuron is in its output

    @property
    def documented(self) -> Way:
        return Way(next(iter(self.styles)), PART, False)

    def ways(self) -> list[Way]:
        return [Way(*chosen) for chosen in product(self.styles, SIZES, (False, True))]

    def run(self, net: Net, x: Tensor, T: int, way: Way) -> Tensor:
        """Outputs of each step, `[T, N, classes]`."""
        layout = torch.channels_last if way.channels_last else torch.contiguous_format
        with torch.inference_mode():
            parts = (part.contiguous(memory_format=layout) for part in x.split(way.images))
            return torch.cat([self.styles[way.style](net, part, T) for part in parts], 1)

    def readouts(self, outputs: Tensor, net: Net, images: Tensor) -> Iterator[Tensor]:
        """The answers that its documentation knows after these steps `[T, N, classes]`, of which the best counts."""
        yield outputs.sum(0)

    def laid_out(self, net: Net, way: Way) -> None:
        """Puts the weights into the layout of the images."""
        net.to(memory_format=torch.channels_last if way.channels_last else torch.contiguous_format)
