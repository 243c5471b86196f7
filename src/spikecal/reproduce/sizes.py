"""How much of a table is run: the paper's sizes, and those for half an hour on two cores."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spikecal.calibration.calibrators import Calibrator, Weights
from spikecal.calibration.finetune import FineTune
from spikecal.errors import ConfigError
from spikecal.pipeline import FEW_ITERATIONS, Auto, Pipeline, Plan
from spikecal.rivals.labelled import HybridTraining

if TYPE_CHECKING:
    from spikecal.reproduce.tables import Table


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run; None means everything. Defaults are for half an hour on two cores.

    `calibration` is the images of every calibrator, at most; None leaves each its own number.
    `iterations`, `batch` and `weights` (its images) belong to weights calibration, whose rows end at `weights_to`
    steps. The `long_` sizes apply from `long_from` steps on, by default only to the "at least" column, to save time.
    `long_calibration` is `calibration` there.
    """

    images: int | None = 1000
    seeds: int = 3
    calibration: int | None = None
    iterations: int = 500
    batch: int = 16
    weights: int = 256
    weights_to: int | None = None
    long_from: int | None = None
    long_images: int | None = 100
    long_seeds: int = 1  # the paper prints no deviation there
    long_calibration: int = 32

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ConfigError(f"{name.replace('_', ' ')}: must be at least 1, not {value}")

    def is_long(self, table: "Table", T: int) -> bool:
        """Whether the `long_` sizes apply to this T."""
        border = self.long_from or table.long
        return border is not None and T >= border

    def has(self, plan: Plan, T: int) -> bool:
        """Whether a row of this pipeline is measured for this T."""
        return self.weights_to is None or T <= self.weights_to or not plan.fixed.learns

    def of(self, plan: Plan, table: "Table", T: int) -> Plan:
        """A row's pipeline at this size; AUTO has its effort instead."""
        return plan if isinstance(plan, Auto) else self._of(plan, table, T)

    def _of(self, pipeline: Pipeline, table: "Table", T: int) -> Pipeline:
        """If a table is about numbers of images, they stay."""
        faster = {} if self.iterations >= Weights.iterations else FEW_ITERATIONS
        changed = pipeline.changed(Weights, iterations=self.iterations, batch=self.batch, **faster)
        changed = changed.mapped(
            FineTune, lambda phase: replace(phase, iterations=min(phase.iterations, self._iterations(phase, T)))
        )
        if (most := table.subject.most_images) is not None:
            few = min(self.weights, self.calibration or most, most)
            return replace(changed, threshold=replace(changed.threshold, images=few)).changed(Calibrator, images=few)
        if not table.own_images:
            changed = _fewer(changed, Weights, self.weights)
            changed = changed if self.calibration is None else _fewer(changed, Calibrator, self.calibration)
        return _fewer(changed, Calibrator, self.long_calibration) if self.is_long(table, T) else changed

    def _iterations(self, phase: FineTune, T: int) -> int:
        """Where an iteration runs all T steps, there are T times fewer; all of them, if nothing is to be saved."""
        through_time = isinstance(phase, HybridTraining) and self.iterations < Weights.iterations
        return max(1, self.iterations // T) if through_time else self.iterations


def _fewer(pipeline: Pipeline, kind: type[Calibrator], most: int) -> Pipeline:
    """The pipeline with at most `most` images for calibrators of one kind."""
    return pipeline.mapped(kind, lambda calibrator: replace(calibrator, images=min(calibrator.images, most)))


# The paper's sizes; the batch is from its code.
PAPER = Sizes(
    images=None, seeds=5, iterations=5000, batch=32, weights=1024, long_images=None, long_seeds=1, long_calibration=1024
)
