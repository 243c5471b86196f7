"""Delayed read-out: the first steps of a deep network are warm-up, and its answer may be better without them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikecal.calibration.divergence import ann_outputs, standard_error
from spikecal.calibration.images import batches
from spikecal.calibration.whole import NetworkPhase, State, Whole
from spikecal.graph.graph import Graph

LATEST = 2  # at most T over this is left out


@dataclass(frozen=True, kw_only=True)
class ReadOut(NetworkPhase):
    """Average outputs over (t0, T] instead of (0, T]; t0 is chosen by the divergence from the ANN's outputs.

    It belongs at the end of a pipeline: later calibration would aim at the mean over all steps. It tries 0
    and the eighths of T up to a half; to replace 0, another must be better by more than one standard error, paired over
    images.
    """

    label = "read-out"

    def passes(self, images: int, T: int) -> float:
        return float(images * T)

    def start(self, whole: Whole) -> State:
        return {}

    def advance(self, whole: Whole, state: State, number: int) -> State:
        network, grouped = whole.network, batches(whole.images, 16, ())
        tried = warm_ups(network.T)
        targets = ann_outputs(whole.ann, grouped)
        own = grouped[whole.share(len(grouped))]
        found = [network.outputs_after(*batch, warm_ups=tried) for batch in own]
        each = [whole.distances([outputs[i] for outputs in found], targets) for i in range(len(tried))]
        return {"warm_up": torch.tensor(whole.decided(best(tried, each)))}

    def finish(self, whole: Whole, state: State) -> Graph:
        whole.network.warm_up = int(state["warm_up"])
        whole.network.reset()
        return whole.aim


def warm_ups(T: int) -> list[int]:
    """0, and the eighths of T up to a half that are integers."""
    return sorted({round(share * T / 8) for share in range(8 // LATEST + 1)})


def best(tried: Sequence[int], divergences: Sequence[Tensor]) -> int:
    """The one with the least divergence among those significantly better than the first; else the first."""
    plain = divergences[0]
    better = [
        (float(each.mean()), warm_up)
        for warm_up, each in zip(tried[1:], divergences[1:], strict=True)
        if float((plain - each).mean()) > standard_error(plain - each)
    ]
    return min(better)[1] if better else tried[0]
