"""Record a run: spike counts of all layers, and spike trains and potentials of selected layers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any

import torch
from torch import Tensor

from spikecal.errors import DataError
from spikecal.graph.stages import Stage
from spikecal.memory import free_memory, in_words
from spikecal.snn.execute import Emission, Shapes, Want
from spikecal.snn.outputs import joined


@dataclass(repr=False)
class Run:
    """What one run of a network returns. Step 1 of a layer is the first step of its own window.

    Attributes:
        outputs: The outputs after every step, running means `[T, N, ...]` in the model's structure.
        spikes: Spike counts `[N, ...]` of each layer of neurons.
        trains: For recorded layers, the level at every step, int8 `[T, N, ...]`: 0 is no spike, 1 is a spike.
        potentials: For recorded layers, the membrane right after each step, in the ANN's units.
    """

    outputs: Any
    spikes: dict[str, Tensor]
    trains: dict[str, Tensor] = field(default_factory=dict)
    potentials: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        counted = sum(int(counts.sum()) for counts in self.spikes.values())
        kept = f"; trains of {', '.join(self.trains)}" if self.trains else ""
        return f"<spikecal.Run: {counted:,} spikes; layers: {len(self.spikes)}{kept}>"


class Recorder:
    """Collects the output of the batches of one run, some steps at a time.

    Trains take one byte per neuron and step, potentials as much as a current; they are written in place, so
    nothing else grows with the number of images.
    """

    def __init__(self, names: Sequence[str] = (), potentials: bool = False) -> None:
        if potentials and not names:
            raise DataError("potentials are kept only for recorded layers: name some in record=[...]")
        self.trains: dict[str, Tensor] = {}
        self.potentials: dict[str, Tensor] = {}
        self._names, self._with_potentials = names, potentials
        self._counts: dict[str, list[Tensor]] = {}
        self._first = self._count = 0
        self._done: dict[str, int] = {}

    @property
    def extra(self) -> Mapping[str, Want]:
        """What is wanted of recorded stages besides what is wanted of all."""
        return dict.fromkeys(self._names, Want.LEVELS | Want.POTENTIALS if self._with_potentials else Want.LEVELS)

    def allocate(self, T: int, images: Tensor, shapes: Shapes) -> None:
        """Make room for all images `[N, ...]`; DataError if there is not enough memory."""
        each = 1 + (images.element_size() if self._with_potentials else 0)
        needed = each * T * len(images) * sum(prod(shapes[name][1:]) for name in self._names)
        if needed and needed > (free := free_memory(images.device)):
            raise DataError(
                f"the recording takes {in_words(needed)}, but only {in_words(free)} of memory is free: "
                f"record fewer layers, or run fewer images at a time"
            )
        for name in self._names:
            shape = (T, len(images), *shapes[name][1:])
            self.trains[name] = torch.empty(shape, dtype=torch.int8, device=images.device)
            if self._with_potentials:
                self.potentials[name] = torch.empty(shape, dtype=images.dtype, device=images.device)

    def begin(self, images: int) -> None:
        """Begin the next batch, with this number of images."""
        self._first, self._count = self._first + self._count, images
        self._done = dict.fromkeys(self._names, 0)

    def add(self, name: str, emission: Emission) -> None:
        """Add some steps of a stage."""
        if emission.spikes is not None:
            self._add_counts(name, emission.spikes.int())
        if name in self._done and emission.steps:
            steps = slice(self._done[name], self._done[name] + emission.steps)
            images = slice(self._first, self._first + self._count)
            self._done[name] = steps.stop
            assert emission.levels is not None
            self.trains[name][steps, images] = emission.levels.to(torch.int8)
            if emission.potentials is not None:
                self.potentials[name][steps, images] = emission.potentials

    def _add_counts(self, name: str, counts: Tensor) -> None:
        known = self._counts.setdefault(name, [])
        if sum(map(len, known)) > self._first:  # some of this batch are already there
            known[-1] += counts
        else:
            known.append(counts)

    def spikes(self) -> dict[str, Tensor]:
        """The counts of all layers, `[N, ...]`."""
        return {name: joined(parts) for name, parts in self._counts.items()}


def layers(names: Any, stages: Sequence[Stage]) -> list[str]:
    """The layers of neurons to record; DataError for anything else."""
    if not isinstance(names, str | Iterable):
        raise DataError(f"record must be a list of layers of neurons, as in run.spikes, not {names!r}")
    asked = [names] if isinstance(names, str) else list(names)
    there = [stage.name for stage in stages if stage.spiking]
    for name in asked:
        if name not in there:
            near = get_close_matches(str(name), there, 3) or there[:8]
            raise DataError(f"there is no layer of neurons {name!r}: choose from {', '.join(near)}")
    return list(dict.fromkeys(asked))
