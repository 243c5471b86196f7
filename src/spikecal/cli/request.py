"""What `convert` was asked for; of classifiers and detectors alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikecal.pipeline import Pipeline
    from spikecal.progress import Progress
    from spikecal.snn.network import Readout


@dataclass(frozen=True, kw_only=True)
class Request:
    """The flags of one conversion, read."""

    model: str
    output: Path
    weights: Path | None
    data: str | None
    data_root: Path | None
    steps: list[int]
    pipeline: "Pipeline"
    images: int | None  # of every part, where the pipeline's own numbers are not wanted
    keep: tuple[str, ...]
    readout: "Readout | None"
    seed: int
    workdir: Path | None
    memory: int | None
    micro_batch: int | None
    test: int
    strict: bool
    report: Path | None
    json: bool

    def settings(self, progress: "Progress | None") -> dict[str, Any]:
        """What converting takes beside the network and its images, whichever the task."""
        return {
            "T": self.steps,
            "pipeline": self.pipeline,
            "seed": self.seed,
            "workdir": self.workdir,
            "memory": self.memory,
            "micro_batch": self.micro_batch,
            "progress": progress,
        }

    def facts(self) -> dict[str, Any]:
        """For machines: what came of it begins with these."""
        return {
            "file": str(self.output),
            "bytes": self.output.stat().st_size,
            "model": self.model,
            "T": self.steps,
            "pipeline": self.pipeline.to_dict(),
            "seed": self.seed,
        }
