"""A cell is the unit of work: one figure of a table for one seed, determined by its configuration alone."""

import platform
from dataclasses import dataclass
from typing import Any

import torch

from spikecal import __version__
from spikecal.calibration.calibrators import Weights
from spikecal.phases import image_passes, images_of
from spikecal.pipeline import Plan
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.ways import Converted, Way
from spikecal.workdir import fingerprint

VERSION = 1  # of the measurement; a new version means new cells
FIXED = 0  # the seed of test images: the same for all cells, so that seeds vary only calibration
LONG_SECONDS = 60.0
STEP_COST = 1.4  # approximate cost of a time step of one image, in ANN passes
MORE_SOLVING = 1  # passes per image and iteration that small networks cost beyond the three of `image_passes`


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured: `row` names it in its table, the rest determines the figure."""

    kind: str  # the table's, or "ann"
    model: str
    row: str = ""
    pipeline: Plan | None = None
    T: int = 0
    seed: int = 0
    images: int = 0  # of the test set
    source: str = ""  # of the calibration images, unless they are the network's own
    way: Way = Converted()

    def __str__(self) -> str:
        parts = [self.model, self.row or self.kind]
        if self.T:
            parts += [f"T={self.T}", f"seed {self.seed}"]
        return ", ".join(parts)

    def configuration(self, subject: Subject) -> dict[str, Any]:
        """Everything that the figure depends on."""
        facts: dict[str, Any] = {
            "version": [VERSION, __version__],
            "kind": self.kind,
            "model": subject.spec,
            "model_hash": subject.model_print,
        }
        if self.images:
            facts |= {"test": subject.test_print, "images": self.images, "images_seed": FIXED}
        if self.pipeline is not None and self.T:
            facts |= {"pipeline": self.pipeline.to_dict(), "T": self.T, "seed": self.seed}
            facts |= self.way.depends() | {"train": subject.calibration_print(self.source)}
        if self.kind == "time":
            facts |= {"machine": machine()}
        return {**facts, **subject.depends(self)}

    def key(self, subject: Subject) -> str:
        return fingerprint([], self.configuration(subject))[:32]

    def passes(self) -> float:
        """The approximate work in passes of the ANN over one image."""
        if self.pipeline is None or not self.T:
            return self.images
        pipeline = self.pipeline.fixed
        swept = sum(image_passes(phase, images_of(phase), self.T) for phase in pipeline.sweeps)
        solved = [c for c in pipeline.calibrators if isinstance(c, Weights)]
        work = pipeline.threshold.images + STEP_COST * self.T * self.images
        work += sum(MORE_SOLVING * c.iterations * c.batch for c in solved)
        return work + self.way.times(self.pipeline) * swept


def machine() -> dict[str, Any]:
    """The machine of a measurement."""
    processor = platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": f"{processor} {capability}"}


def same_for_every_seed(plan: Plan, available: int) -> bool:
    """Whether the seed does not matter: thresholds alone, from all available images in any order."""
    pipeline = plan.fixed
    return not pipeline.sweeps and pipeline.threshold.images >= available


def long_cell(cell: Cell, subject: Subject) -> bool:
    """Whether a cell should keep its parts on disk while it is measured, which does not change the result."""
    return bool(cell.T and cell.images) and cell.passes() * subject.seconds_a_pass > LONG_SECONDS
