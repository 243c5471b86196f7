"""What weights calibration learns from: mean inputs of a stage and the ANN's values at its end, in minibatches."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from spikecal.snn.execute import Shapes

LEARNED_FLOATS = 1 << 26  # numbers of the value at a stage's end that a gradient is computed of at once


@dataclass(frozen=True)
class Sample:
    """Mean inputs of a stage `[N, ...]` and the ANN's value at its end, for images of one size."""

    inputs: dict[str, Tensor]
    target: Tensor
    shapes: Shapes

    def take(self, chosen: Tensor, device: torch.device) -> "Sample":
        inputs = {name: rows(value, chosen).to(device) for name, value in self.inputs.items()}
        return Sample(inputs, rows(self.target, chosen).to(device), self.shapes)


@dataclass
class Samples:
    """What minibatches are drawn from, grouped by image size; where that is too much for memory, on disk."""

    groups: list[Sample]
    generator: torch.Generator
    device: torch.device

    def first(self, size: int) -> Sample:
        """The first images of the largest size, `size` of them or as many as large images allow."""
        group = max(self.groups, key=lambda group: prod(group.target.shape[1:]))
        most = max(1, LEARNED_FLOATS // prod(group.target.shape[1:]))
        chosen = torch.arange(min(size, most, len(group.target)), device=group.target.device)
        return group.take(chosen, self.device)

    def draw(self, size: int) -> Iterator[tuple[Sample, float]]:
        """A minibatch in parts, as few as large images allow, and the share of it that each is."""
        sizes = torch.tensor([float(len(group.target)) for group in self.groups])
        group = self.groups[int(torch.multinomial(sizes, 1, generator=self.generator))]
        chosen = torch.randint(len(group.target), (size,), generator=self.generator).to(group.target.device)
        for part in chosen.split(max(1, LEARNED_FLOATS // prod(group.target.shape[1:]))):
            yield group.take(part, self.device), len(part) / size


def rows(images: Tensor, chosen: Tensor) -> Tensor:
    """`images[chosen]` a whole image at a time, channels being last in memory: four times as fast."""
    if images.ndim != 4:
        return images.index_select(0, chosen)
    return images.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
