"""Compare networks on held-out calibration images, to choose waits and pipelines."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spikecal.calibration.divergence import Outputs, ann_outputs, divergences
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.images import Inputs, batches
from spikecal.phases import Context, image_passes, images_of, run_phases, set_neurons
from spikecal.pipeline import Pipeline
from spikecal.progress import Silent
from spikecal.snn.execute import images_per_call
from spikecal.snn.network import SpikingNetwork

HELD_OUT = 256  # images at most; never more than a quarter

Look = Callable[[SpikingNetwork, Sequence[Inputs]], dict[str, float]]


@dataclass(frozen=True)
class Network:
    """How a network is made, and the name it is stored under."""

    key: str
    pipeline: Pipeline
    T: int
    waits: Mapping[str, int]

    @property
    def same(self) -> tuple[Any, ...]:
        """Equal for identical networks, whatever their names."""
        return self.pipeline, self.T, tuple(sorted(self.waits.items()))


class HeldOut:
    """A seeded quarter of the images. Networks are calibrated on the others and compared on these.

    Thresholds come from all images: without the held-out ones they would hardly differ, but cost another pass.
    """

    def __init__(self, context: Context, histograms: dict[str, Histogram], dtype: torch.dtype) -> None:
        self.context = context
        self._histograms, self._dtype = histograms, dtype
        images = context.images
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(context.seed)).tolist()
        self.count = min(HELD_OUT, len(images) // 4)
        held, rest = (sorted(part) for part in (order[: self.count], order[self.count :]))
        self.rest = [images[i] for i in rest]
        self._chosen = [images[i] for i in held]
        self._known: dict[tuple[Any, ...], tuple[Tensor, dict[str, float]]] = {}

    @cached_property
    def _held(self) -> Sequence[Inputs]:
        return batches(self._chosen, images_per_call(self.context.shapes, 1), ())

    @cached_property
    def _targets(self) -> Outputs:
        """The ANN's outputs, computed on demand: most conversions with a fixed pipeline choose nothing."""
        return ann_outputs(self.context.ann, self._held)

    @property
    def enough(self) -> bool:
        """Whether there are enough images to compare networks: two, for a standard error."""
        return self.count > 1

    def measured(self, made: Network, look: Look | None = None) -> tuple[Tensor, dict[str, float]]:
        """A network's divergences on the held-out images, and the result of `look`.

        A working directory keeps them under its key, and the progress of a long calibration.
        """
        key, pipeline, same = made.key, made.pipeline, made.same
        if same in self._known:  # different placements may give the same waits
            self.context.progress.advance()
            return self._known[same]
        workdir = self.context.workdir
        known = workdir.load(f"{key}/found") if workdir else None
        if known is None:
            trying = replace(
                self.context,
                images=self.rest,
                pipeline=pipeline,
                records=False,
                progress=Silent(),
                workdir=workdir.within(key) if workdir and pipeline.slow else None,
            )
            network = SpikingNetwork(self.context.ann.clone(), made.T, made.waits)
            set_neurons(network, self._histograms, pipeline, self._dtype, self.context.shapes, trying.ranks)
            run_phases(trying, network, 0.0)
            found = trying.ranks.decided(look(network, self._held) if look else {})
            known = {"divergences": divergences(network, self._held, self._targets, trying.ranks)}, found
            if workdir:
                workdir.save(f"{key}/found", *known)
        self.context.progress.advance(f"divergence {float(known[0]['divergences'].mean()):.4f}")
        self._known[same] = known[0]["divergences"], known[1]
        return self._known[same]

    def ahead(self, wanted: Sequence[Network]) -> None:
        """Measure networks, one per rank, if that is faster than all ranks working on one after the other.

        `measured` then knows them; otherwise it measures them on demand.
        """
        ranks = self.context.ranks
        where = ranks.spread([self.passes(one.pipeline, one.T) for one in wanted])
        if where is None:
            return
        workdir, own = self.context.workdir, copy(self)
        own._known = dict(self._known)
        own.context = replace(self.context, ranks=ranks.alone(), workdir=workdir.of(ranks.alone()) if workdir else None)
        mine = [i for i, rank in enumerate(where) if rank == ranks.rank]
        found = {i: own.measured(wanted[i]) for i in mine}
        tensors = {str(i): divergences for i, (divergences, _) in found.items()}
        home = self._chosen[0][0].device
        for measured, looks in ranks.gathered(tensors, {i: look for i, (_, look) in found.items()}):
            self._known |= {wanted[int(i)].same: (measured[i].to(home), looks[i]) for i in measured}

    def passes(self, pipeline: Pipeline, T: int) -> float:
        """Approximate cost of measuring one network, in passes of the ANN over one image."""
        return sum(image_passes(phase, min(images_of(phase), len(self.rest)), T) for phase in pipeline.sweeps) + (
            self.count * T
        )
