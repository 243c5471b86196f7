"""Refine thresholds by the measured error with all spikes; other methods use the ANN alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.update import Update
from spikecal.calibration.view import StageView, over_positions
from spikecal.errors import ConfigError
from spikecal.graph.stages import Stage


@dataclass(frozen=True, kw_only=True)
class RefineThreshold(Calibrator):
    """`theta_c *= f_c`, with the f in [`least`, `most`] that minimises the error that no bias can correct.

    That is the variance, over images and positions, of x - mean output as simulated. The neurons' own parameters
    scale along, so they stay the same in units of theta. Calibrate a bias, a potential or both after it.
    """

    least: float = 0.5
    most: float = 1.4
    grid: int = 10
    label = "threshold"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid < 1:
            raise ConfigError(f"the grid must have at least one value, not {self.grid}")
        if not 0 < self.least <= self.most:
            raise ConfigError(f"the factors of thresholds must be positive, not from {self.least} to {self.most}")

    def applies(self, stage: Stage) -> bool:
        return stage.spiking

    def passes(self, images: int, T: int) -> float:
        """Only the neurons are run for every factor."""
        return 0.3 * min(images, self.images) * (self.grid + 1) * T

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        calls = view.first_calls(self.images)
        channels = view.like.shape[view.channel]
        factors = [1.0, *torch.linspace(self.least, self.most, self.grid).tolist()]  # of equal errors the first wins
        found = []
        for factor in factors:
            total, squares = view.mean(_moments(view, calls, factor), self.images, 2 * channels).chunk(2)
            found.append(squares - total.square())
        best = torch.stack(found).argmin(0)
        theta = view.spike.height(1)
        return Update(scale=torch.tensor(factors, dtype=theta.dtype, device=theta.device)[best])


def _moments(view: StageView, calls: list[range], factor: float) -> Iterator[Tensor]:
    """`[2 C]`: error and squared error with all thresholds scaled, summed over images, averaged over positions."""
    end = replace(view.stage.end, op=view.spike.scaled(torch.full_like(view.spike.height(1), factor)))
    stage = replace(view.stage, nodes=(*view.stage.nodes[:-1], end))
    for call in calls:
        error = view.target(call) - view.mean_output(call, stage)
        yield torch.cat([over_positions(error, view.channel), over_positions(error.square(), view.channel)])
