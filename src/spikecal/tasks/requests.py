"""Requests to a task, for classifiers and detectors alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spikecal.analysis.timing import timings
from spikecal.arguments import choices_of, plan_of
from spikecal.calibration.calibrators import Potential, Weights
from spikecal.calibration.finetune import FineTune
from spikecal.errors import ConfigError
from spikecal.graph.joints import DEFAULT, Joints
from spikecal.parts import imported
from spikecal.pipeline import AUTO, BASELINE, THRESHOLDS, Auto, Effort, Pipeline, Plan, Rounding
from spikecal.progress import Progress
from spikecal.result import Result
from spikecal.snn.network import Readout
from spikecal.training.recipes import Recipe, resolve


def pipeline_of(
    name: str | None,
    config: Path | None,
    *,
    images: int | None = None,
    iterations: int | None = None,
    rounding: Rounding | None = None,
    kappa: float | None = None,
    threshold: str | None = None,
    calibrators: Sequence[str] = (),
    neuron: str | None = None,
    per: Literal["layer", "channel"] | None = None,
    potentials: Literal["neuron", "channel"] | None = None,
    effort: Effort | None = None,
) -> Plan:
    """The pipeline of `--pipeline` or `--config`, with changes by other flags; named classes are imported."""
    if name is not None and config is not None:
        raise ConfigError("give --pipeline or --config, not both: the file can name a preset")
    default = BASELINE if calibrators and effort is None else AUTO
    result = plan_of(Pipeline.from_toml(config) if config is not None else name or default, effort)
    if isinstance(result, Auto):
        changes = {
            "--iterations": iterations, "--rounding": rounding, "--kappa": kappa, "--threshold": threshold,
            "--per": per, "--calibrator": calibrators or None, "--neuron": neuron,
        }  # fmt: skip
        for flag, value in changes.items():
            if value is not None:
                raise ConfigError(
                    f"{flag} changes a fixed pipeline, and auto chooses its own: add --pipeline lcp or acp"
                )
        result = result if potentials is None else replace(result, potentials=potentials)
        return result if images is None else result.with_images(images)
    if rounding is not None:
        result = replace(result, rounding=rounding, kappa=kappa)
    elif kappa is not None:
        result = replace(result, kappa=kappa)
    named: dict[str, Any] = {}
    if threshold is not None and type(result.threshold) is not THRESHOLDS.get(threshold):
        old = result.threshold
        named["threshold"] = {"kind": threshold, "per": old.per, "images": old.images}
    if calibrators:
        named["sweeps"] = [[{"kind": calibrator} for calibrator in calibrators]]
    if neuron is not None:
        named["neuron"] = neuron
    result = result.with_parts(named, imported())
    if per is not None:
        result = replace(result, threshold=replace(result.threshold, per=per))
    if images is not None:
        result = result.with_images(images)
    if potentials is not None:
        if not any(isinstance(part, Potential) for part in result.parts):
            raise ConfigError(
                "--potentials is for initial potentials, which this pipeline lacks: use --pipeline pc or acp"
            )
        result = result.changed(Potential, per=potentials)
    if iterations is not None:
        if not any(isinstance(part, Weights | FineTune) for part in result.parts):
            raise ConfigError("--iterations is for weights calibration, which this pipeline lacks: use --pipeline acp")
        result = result.changed(Weights, iterations=iterations).changed(FineTune, iterations=iterations)
    return result


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A network to convert, the file to write, and how."""

    model: str
    output: Path
    weights: Path | None
    data: str | None
    data_root: Path | None
    steps: list[int] | None  # None: chosen to fit the latency
    latency: str | None  # of each network: steps, a multiple of T such as 2x, or +10 for ten more than T
    joints: Joints | None  # None: the default
    pipeline: Plan
    images: int | None  # of every part, instead of the pipeline's own numbers
    keep: tuple[str, ...]
    readout: Readout | None
    seed: int
    workdir: Path | None
    memory: int | None
    micro_batch: int | None
    test: int
    strict: bool
    records: bool  # whether a pipeline without calibrators simulates images to record the errors of stages
    report: Path | None  # the page to write
    device: str | None = None

    def __post_init__(self) -> None:
        choices_of(self.steps, self.latency)  # raises before a network or an image is read

    def settings(self, progress: Progress | None) -> dict[str, Any]:
        """Arguments of `convert` other than the network and its images, whatever the task."""
        return {
            "T": self.steps,
            "latency": self.latency,
            "joints": self.joints or DEFAULT,
            "pipeline": self.pipeline,
            "seed": self.seed,
            "workdir": self.workdir,
            "memory": self.memory,
            "micro_batch": self.micro_batch,
            "records": self.records,
            "progress": progress,
        }

    def facts(self, result: Result) -> dict[str, Any]:
        """For machines: the first of its facts."""
        return {
            "file": str(self.output),
            "bytes": self.output.stat().st_size,
            "model": self.model,
            "T": sorted(result.networks),
            "timing": [found.to_dict() for found in timings(result)],
            "joints": result.origin.joints,
            "pipeline": self.pipeline.to_dict(),
            "choices": {T: dict(found) for T, found in result.origin.choices.items()},
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A file whose networks are measured, and the data to measure them on."""

    file: Path
    model: str | None
    weights: Path | None
    data: str | None
    data_root: Path | None
    steps: list[int]  # empty: all networks in the file
    images: int | None
    seed: int
    strict: bool
    within: float | None  # points of the ANN's accuracy
    neurons: Sequence[str] = ()  # classes of the file's own neurons
    device: str | None = None
    exit: float | None = None  # share of answers that early exit promises to agree with the ANN
    exit_images: int | None = None  # to set its rule on

    def __post_init__(self) -> None:
        if self.exit is not None and not 0 < self.exit < 1:
            raise ConfigError(f"--exit must be a share between 0 and 1, such as 0.99, not {self.exit:g}")
        if self.exit is None and self.exit_images is not None:
            raise ConfigError("--exit-images is for --exit: add --exit with a share such as 0.99")


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """The data that the networks of a page are run on."""

    model: str | None
    weights: Path | None
    data: str | None
    data_root: Path | None
    images: int  # 0: none, the page shows what the files hold
    seed: int
    strict: bool
    neurons: Sequence[str] = ()  # classes of the file's own neurons
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A network to train, the data, the file for its weights, and the settings."""

    model: str
    data: str
    data_root: Path | None
    output: Path
    recipe: str | None
    config: Path | None
    changes: dict[str, Any]  # of the recipe
    backbone: str | None
    validate: int  # images to hold out
    half: bool
    checkpoint: Path
    every: float  # seconds between checkpoints
    device: str | None
    workers: int | None
    strict: bool

    def recipe_or(self, paper: str) -> tuple[str, Recipe]:
        """The requested recipe, else the paper's, with its changes; and its name."""
        if self.recipe is not None and self.config is not None:
            raise ConfigError("give --recipe or --config, not both: the file can name a preset")
        if self.config is not None:
            return self.config.name, Recipe.from_toml(self.config, resolve(paper)).changed(**self.changes)
        return (self.recipe or paper).lower(), resolve(self.recipe or paper).changed(**self.changes)
