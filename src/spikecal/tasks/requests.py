"""What a task is asked for; of classifiers and detectors alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spikecal.analysis.timing import timings
from spikecal.arguments import choices_of, plan_of
from spikecal.calibration.calibrators import Weights
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
    effort: Effort | None = None,
) -> Plan:
    """The pipeline of `--pipeline` or `--config`, with what is changed in it; classes that are named are imported."""
    if name is not None and config is not None:
        raise ConfigError("give --pipeline or --config, not both: a file can name a preset")
    default = BASELINE if calibrators and effort is None else AUTO
    result = plan_of(Pipeline.from_toml(config) if config is not None else name or default, effort)
    if isinstance(result, Auto):
        changes = {
            "--iterations": iterations, "--rounding": rounding, "--kappa": kappa, "--threshold": threshold,
            "--per": per, "--calibrator": calibrators or None, "--neuron": neuron,
        }  # fmt: skip
        for flag, value in changes.items():
            if value is not None:
                raise ConfigError(f"{flag} changes a fixed pipeline, and auto chooses one: add --pipeline lcp, or acp")
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
    if iterations is not None:
        if not any(isinstance(calibrator, Weights) for calibrator in result.calibrators):
            raise ConfigError("--iterations is for weights calibration, not in this pipeline: use --pipeline acp")
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
    steps: list[int] | None  # None: chosen for the latency
    latency: str | None  # of each network: steps, a multiple of T such as 2x, or +10 for ten more than T
    joints: Joints | None  # None: the default
    pipeline: Plan
    images: int | None  # of every part, where the pipeline's own numbers are not wanted
    keep: tuple[str, ...]
    readout: Readout | None
    seed: int
    workdir: Path | None
    memory: int | None
    micro_batch: int | None
    test: int
    strict: bool
    records: bool  # whether a pipeline without calibrators simulates images to know the errors of stages
    report: Path | None  # the page to write
    device: str | None = None

    def __post_init__(self) -> None:
        choices_of(self.steps, self.latency)  # before a network or an image is read

    def settings(self, progress: Progress | None) -> dict[str, Any]:
        """What converting takes beside the network and its images, whichever the task."""
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
        """For machines: what came of it begins with these."""
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
    """A file whose networks are to be measured, and on what."""

    file: Path
    model: str | None
    weights: Path | None
    data: str | None
    data_root: Path | None
    steps: list[int]  # none: all that are in the file
    images: int | None
    seed: int
    strict: bool
    within: float | None  # points of the ANN
    neurons: Sequence[str] = ()  # classes of those that are not spikecal's
    device: str | None = None
    exit: float | None = None  # share of answers that early exit promises to be the ANN's
    exit_images: int | None = None  # that its rule is set on

    def __post_init__(self) -> None:
        if self.exit is not None and not 0 < self.exit < 1:
            raise ConfigError(f"--exit is a share between 0 and 1, such as 0.99, not {self.exit:g}")
        if self.exit is None and self.exit_images is not None:
            raise ConfigError("--exit-images is for --exit: say which share of answers is promised, such as 0.99")


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """What the networks of a page are run on."""

    model: str | None
    weights: Path | None
    data: str | None
    data_root: Path | None
    images: int  # 0: none, the page shows what the files carry
    seed: int
    strict: bool
    neurons: Sequence[str] = ()  # classes of those that are not spikecal's
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A network to train, on what, the file for its weights, and how."""

    model: str
    data: str
    data_root: Path | None
    output: Path
    recipe: str | None
    config: Path | None
    changes: dict[str, Any]  # of the recipe
    backbone: str | None
    validate: int  # images held out
    half: bool
    checkpoint: Path
    every: float  # seconds between checkpoints
    device: str | None
    workers: int | None
    strict: bool

    def recipe_or(self, paper: str) -> tuple[str, Recipe]:
        """The recipe asked for, else the paper's, with what is changed in it; and its name."""
        if self.recipe is not None and self.config is not None:
            raise ConfigError("give --recipe or --config, not both: a file can name a preset")
        if self.config is not None:
            return self.config.name, Recipe.from_toml(self.config, resolve(paper)).changed(**self.changes)
        return (self.recipe or paper).lower(), resolve(self.recipe or paper).changed(**self.changes)
