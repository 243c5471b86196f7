"""Thresholds by local threshold balancing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikecal.calibration.histogram import Histogram
from spikecal.calibration.threshold import Quantiser, Threshold
from spikecal.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LocalBalancing(Threshold):
    """From 0, `rounds` times: `theta_c += 2 rate mean[(z - theta_c) 1(z > theta_c)]`, z what arrives at channel c.

    Gradient descent on the squared error of a clip (Bu, Li and Yu, Inference-scale complexity in ANN-SNN conversion,
    CVPR 2025; rate and number of rounds are those of its code). There a round sees one batch, and clips it for the
    layers after it; here every round sees the histogram of all images of the ANN.
    """

    rate: float = 1.0
    rounds: int = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise ConfigError(f"the rate of local threshold balancing must be above 0 and at most 1, not {self.rate}")
        if self.rounds < 1:
            raise ConfigError(f"local threshold balancing needs at least one round, not {self.rounds}")

    def choose(self, histogram: Histogram, T: int, quantiser: Quantiser) -> Tensor:
        edges, counts = histogram.edges(), histogram.counts.double()
        total = counts.sum(1, keepdim=True).clamp(min=1)
        above = _from_the_top(counts[:, 1:]) / total  # the share of values above each edge
        # the mean excess over each edge is the integral of that share from there on; it falls linearly inside a bin
        width = edges[:, 1:2]
        excess = _from_the_top((above[:, :-1] + above[:, 1:]) / 2 * width)
        theta = torch.zeros_like(histogram.maximum)
        for _ in range(self.rounds):
            step = 2 * self.rate * self._mean_excess(theta, above, excess, width[:, 0])
            theta = theta + step
            if bool((step <= 1e-12 * theta).all()):
                break
        return torch.minimum(theta, histogram.maximum)

    def _mean_excess(self, theta: Tensor, above: Tensor, excess: Tensor, width: Tensor) -> Tensor:
        """`mean[(z - theta) 1(z > theta)]` with the values of a bin spread evenly: quadratic inside it."""
        place = (theta / width).clamp(max=above.shape[1] - 1)
        bin = place.floor().long().clamp(max=above.shape[1] - 2)[:, None]
        share = (place - bin[:, 0]).clamp(0, 1)
        start, end = above.gather(1, bin)[:, 0], above.gather(1, bin + 1)[:, 0]
        rest = 1 - share  # of the bin, above theta
        reached = start + (end - start) * share
        return excess.gather(1, bin + 1)[:, 0] + (reached + end) / 2 * rest * width


def _from_the_top(values: Tensor) -> Tensor:
    """Sums from each place to the end, and 0 behind it: `[C, n + 1]`."""
    sums = values.flip(1).cumsum(1).flip(1)
    return torch.cat([sums, torch.zeros_like(sums[:, :1])], 1)
