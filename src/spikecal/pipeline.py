"""Pipelines: which thresholds, rounding and calibrators, in which order. The paper's own are presets."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from spikecal.calibration.calibrators import Bias, Calibrator, Potential, Weights
from spikecal.calibration.finetune import FineTune
from spikecal.calibration.readout import ReadOut
from spikecal.calibration.regression import ClosedFormWeights
from spikecal.calibration.rescale import RefineThreshold
from spikecal.calibration.temporal import TemporalBias
from spikecal.calibration.threshold import MMSE, Learned, MaxAct, Percentile, Quantiser, Threshold
from spikecal.calibration.whole import NetworkPhase
from spikecal.errors import ConfigError
from spikecal.neurons import (
    NEURONS,
    IntegrateAndFire,
    Neuron,
    ResetToZero,
    SignedIntegrateAndFire,
    TemporalSwitch,
    check_neuron,
)
from spikecal.parts import Own, absent, build, imported, plain, stand_in
from spikecal.rivals.balancing import ResidualThreshold, SpikeNorm
from spikecal.rivals.labelled import HybridTraining, LearnedClips
from spikecal.rivals.local import LocalBalancing
from spikecal.settings import from_toml, preset
from spikecal.usercode import code_of, is_own

Rounding = Literal["floor", "bias", "potential", "split"]
ROUNDINGS = ("floor", "bias", "potential", "split")
EVENLY = 0.5  # default kappa of split rounding

THRESHOLDS: dict[str, type[Threshold]] = {
    "maxact": MaxAct,
    "percentile": Percentile,
    "mmse": MMSE,
    "learned": Learned,
    "local balancing": LocalBalancing,
}
CALIBRATORS: dict[str, type[Calibrator]] = {
    "bias": Bias,
    "potential": Potential,
    "weights": Weights,
    "closed-form weights": ClosedFormWeights,
    "temporal bias": TemporalBias,
    "threshold": RefineThreshold,
    "spike-norm": SpikeNorm,
    "residual threshold": ResidualThreshold,
}
KINDS: dict[str, type[Neuron]] = {name: type(neuron) for name, neuron in NEURONS.items()}
NETWORK_PHASES: dict[str, type[NetworkPhase]] = {
    "finetune": FineTune,
    "read-out": ReadOut,
    "hybrid training": HybridTraining,
    "learned clips": LearnedClips,
}

Effort = Literal["low", "normal", "high"]
EFFORTS = {"low": 5.0, "normal": 20.0, "high": 300.0}  # multiples of the cost of LCP

Phase = tuple[Calibrator, ...] | NetworkPhase
Part = TypeVar("Part", bound=Calibrator | NetworkPhase)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How a network is converted.

    `rounding` is where the half step of ClipRound goes: `bias` (theta/2T at every step, as in the paper's text),
    `potential` (v(0) = theta/2), `split` (the share `kappa` in the potential, the rest in the bias) or nowhere
    (`floor`). `sweeps` are its phases, in order. Most are passes over the
    network, front to back: a tuple of calibrators that each stage goes through in its turn. Others work
    on the whole network at once.
    """

    threshold: Threshold = MMSE(per="channel")
    rounding: Rounding = "bias"
    sweeps: tuple[Phase, ...] = ()
    neuron: Neuron = IntegrateAndFire()
    kappa: float | None = None

    def __post_init__(self) -> None:
        check_neuron(self.neuron)
        if isinstance(self.neuron, SignedIntegrateAndFire):
            raise ConfigError('signed neurons are for linear values, not for activations: convert with joints="signed"')
        if self.rounding not in ROUNDINGS:
            raise ConfigError(f"rounding must be one of {', '.join(ROUNDINGS)}, not {self.rounding!r}")
        self._check_kappa()
        if not isinstance(self.threshold, Threshold):
            raise ConfigError(
                f"a threshold must be an object such as MaxAct(), Percentile() or MMSE(), not {self.threshold!r}"
            )
        if not _are_sweeps(self.sweeps):
            raise ConfigError(
                f"sweeps must be a tuple of tuples of calibrators, such as ((Bias(),),), not {self.sweeps!r}"
            )

    def _check_kappa(self) -> None:
        if self.rounding == "split" and self.kappa is None:
            object.__setattr__(self, "kappa", EVENLY)
        if self.kappa is None:
            return
        if self.rounding != "split":
            raise ConfigError(f'kappa is for rounding="split", and rounding here is {self.rounding!r}: leave it out')
        if type(self.kappa) not in (int, float) or not 0 <= self.kappa <= 1:
            raise ConfigError(f"kappa must be between 0 and 1, not {self.kappa!r}")

    @property
    def half_step(self) -> tuple[float, float]:
        """The shares of rounding's half step in the initial potential and in the bias."""
        early = {"potential": 1.0, "split": self.kappa}.get(self.rounding) or 0.0
        return early, 0.0 if self.rounding == "floor" else 1 - early

    @property
    def quantiser(self) -> Quantiser:
        """The simulated function, with which thresholds are searched."""
        return "floor" if self.rounding == "floor" else "round"

    @property
    def calibrators(self) -> list[Calibrator]:
        """The calibrators of all sweeps, in order."""
        return [part for part in self.parts if isinstance(part, Calibrator)]

    @property
    def parts(self) -> list[Calibrator | NetworkPhase]:
        """Calibrators and phases on the whole network, in order."""
        sweeps = ((phase,) if isinstance(phase, NetworkPhase) else phase for phase in self.sweeps)
        return [part for sweep in sweeps for part in sweep]

    @property
    def everything(self) -> list[Any]:
        """Everything chosen: threshold, neuron and parts."""
        return [self.threshold, self.neuron, *self.parts]

    def phases(self, records: bool) -> tuple[Phase, ...]:
        """Its phases in order; if none of them simulates stages but records are wanted, one that only measures."""
        measures = any(isinstance(phase, tuple) for phase in self.sweeps)
        return self.sweeps if measures or not records else (*self.sweeps, ())

    def check_usable(self) -> None:
        """Raise if a part is absent, or could not be stored after hours of work."""
        missing = absent(self.everything)
        if missing is not None:
            raise ConfigError(f"this pipeline has a part {missing}, which is not in its file: build it from the class")
        self.to_dict()

    def own_code(self) -> list[str]:
        """Hashes of the user's own classes: a conversion with different code is a different one."""
        return [code_of(type(part)) for part in self.everything if is_own(type(part))]

    @property
    def learns(self) -> bool:
        """Whether weights change; the network then no longer contains the ANN."""
        return any(part.learns for part in self.parts)

    @property
    def needs_labels(self) -> bool:
        """Whether a part of it learns from labels."""
        return any(isinstance(phase, NetworkPhase) and phase.needs_labels for phase in self.sweeps)

    @property
    def slow(self) -> bool:
        """Whether a part takes so long that a killed run should resume inside it."""
        return self.learns or any(isinstance(phase, NetworkPhase) for phase in self.sweeps)

    @property
    def images(self) -> int:
        """How many images the whole pipeline looks at."""
        return max([self.threshold.images, *(part.images for part in self.parts)])

    @property
    def fixed(self) -> "Pipeline":
        """Itself: a fixed pipeline has nothing left to choose."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in TOML and in files."""
        return {
            "threshold": plain(self.threshold, THRESHOLDS),
            "rounding": self.rounding,
            **({} if self.kappa is None else {"kappa": self.kappa}),
            "sweeps": [
                plain(phase, NETWORK_PHASES)
                if isinstance(phase, NetworkPhase)
                else [plain(c, CALIBRATORS) for c in phase]
                for phase in self.sweeps
            ],
            **({} if self.neuron == IntegrateAndFire() else {"neuron": plain(self.neuron, KINDS)}),
        }

    @classmethod
    def from_dict(cls, settings: dict[str, Any], own: Own = stand_in) -> "Pipeline":
        """From plain data; `preset` names the pipeline that the other settings change.

        `own` makes the user's own parts. Plain data may come from a file, so by default their classes are
        not imported: the pipeline can then be looked at, and convert refuses it.
        """
        if not isinstance(settings, dict):
            raise ConfigError(f"a pipeline must be a table of settings, not {settings!r}")
        settings = dict(settings)
        return resolve(settings.pop("preset", "baseline")).with_parts(settings, own)

    def with_parts(self, settings: dict[str, Any], own: Own = stand_in) -> "Pipeline":
        """The same with changes from plain data."""
        settings, changes = dict(settings), dict[str, Any]()
        if "threshold" in settings:
            changes["threshold"] = build(
                settings.pop("threshold"), THRESHOLDS, Threshold, "threshold", own, self.threshold
            )
        if "sweeps" in settings:
            sweeps = settings.pop("sweeps")
            if not isinstance(sweeps, list):
                raise ConfigError("sweeps must be a list of lists of calibrators")
            changes["sweeps"] = tuple(_phase(phase, own) for phase in sweeps)
        changes |= {name: settings.pop(name) for name in ("rounding", "kappa") if name in settings}
        if "neuron" in settings:
            changes["neuron"] = _neuron(settings.pop("neuron"), own)
        if settings:
            known = "preset, threshold, rounding, kappa, sweeps, neuron"
            raise ConfigError(f"a pipeline has no setting {sorted(settings)[0]!r}: choose from {known}")
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_toml(cls, path: str | Path) -> "Pipeline":
        """From a file such as `docs/reference/pipeline.toml`. Classes it names (`file.py:Class`) are imported."""
        own = imported(Path(path).absolute().parent)
        return from_toml(path, lambda settings: cls.from_dict(settings, own))

    def changed(self, kind: type[Part], **settings: Any) -> "Pipeline":
        """The same with other settings in every part of one kind: `ACP.changed(Weights, iterations=200)`."""
        return self.mapped(kind, lambda part: dataclasses.replace(part, **settings))

    def mapped(self, kind: type[Part], change: Callable[[Part], Part]) -> "Pipeline":
        """The same with every part of one kind, calibrators or phases on the whole network, changed."""

        def new(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(new, part))
            return change(part) if isinstance(part, kind) else part

        return dataclasses.replace(self, sweeps=new(self.sweeps))

    def with_images(self, count: int) -> "Pipeline":
        """The same with `count` calibration images for every part."""
        threshold = dataclasses.replace(self.threshold, images=count)
        whole = dataclasses.replace(self, threshold=threshold).changed(Calibrator, images=count)
        return whole.changed(NetworkPhase, images=count)


@dataclass(frozen=True, kw_only=True)
class Auto:
    """A pipeline chosen for each network and T from several that are tried on held-out calibration images.

    `effort` limits how many are tried, to about 5, 20 or 300 times the cost of LCP. `images`, if given, is
    how many every part looks at; `potentials` is whether initial potentials are per neuron or per channel.
    """

    effort: Effort = "normal"
    images: int | None = None
    potentials: Literal["neuron", "channel"] = "neuron"

    def __post_init__(self) -> None:
        if not isinstance(self.effort, str) or self.effort not in EFFORTS:
            raise ConfigError(f"effort must be one of {', '.join(EFFORTS)}, not {self.effort!r}")
        if self.images is not None and (type(self.images) is not int or self.images < 1):
            raise ConfigError(f"AUTO needs at least one image, not {self.images!r}")
        if self.potentials not in ("neuron", "channel"):
            raise ConfigError(f"potentials must be per 'neuron' or 'channel', not per {self.potentials!r}")

    @property
    def times(self) -> float:
        """The limit on the total cost, as a multiple of the cost of LCP."""
        return EFFORTS[self.effort]

    @property
    def fixed(self) -> Pipeline:
        """The pipeline that others must beat."""
        return self.fitted(LCP)

    def fitted(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline with the requested images and potentials."""
        pipeline = pipeline.changed(Potential, per=self.potentials)
        return pipeline if self.images is None else pipeline.with_images(self.images)

    def with_images(self, count: int) -> "Auto":
        return dataclasses.replace(self, images=count)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in working directories; files hold the chosen pipelines."""
        return {"preset": "auto", **dataclasses.asdict(self)}


Plan = Pipeline | Auto  # of a conversion


def _are_sweeps(sweeps: Any) -> bool:
    return isinstance(sweeps, tuple) and all(
        isinstance(phase, NetworkPhase) or (isinstance(phase, tuple) and all(isinstance(c, Calibrator) for c in phase))
        for phase in sweeps
    )


def _phase(settings: Any, own: Own) -> Phase:
    """A list of calibrators, or a phase on the whole network."""
    if isinstance(settings, list):
        return tuple(build(c, CALIBRATORS, Calibrator, "calibrator", own) for c in settings)
    if not isinstance(settings, dict) or settings.get("kind") in CALIBRATORS:
        raise ConfigError("sweeps must be a list of lists of calibrators")
    phase: NetworkPhase = build(settings, NETWORK_PHASES, NetworkPhase, "phase", own)
    return phase


def _neuron(settings: Any, own: Own) -> Neuron:
    if isinstance(settings, str) and settings in NEURONS:
        return NEURONS[settings]
    named = {"kind": settings} if isinstance(settings, str) else settings
    neuron: Neuron = build(named, KINDS, Neuron, "neuron", own)
    return neuron


MAXACT = Pipeline(threshold=MaxAct())
PERCENTILE = Pipeline(threshold=Percentile())
BASELINE = Pipeline()
LCP = Pipeline(sweeps=((Bias(),),))
PC = Pipeline(sweeps=((Potential(),),))
ACP = Pipeline(sweeps=((Potential(), Weights()),))

# Too few for SGD at the paper's rate, so they use Adam (docs/explanation/method.md, what it gains).
FEW_ITERATIONS: dict[str, Any] = {"optimiser": "adam", "lr": 1e-3}

AUTO = Auto()

# Methods of others, each as in its own paper (docs/explanation/rivals.md).
ROBUST_NORM = Pipeline(threshold=Percentile(percent=99.9), rounding="floor")
SPIKE_NORM = Pipeline(
    threshold=MaxAct(), rounding="floor", sweeps=((SpikeNorm(residual="height"),),), neuron=ResetToZero()
)
RMP = Pipeline(threshold=MaxAct(), rounding="floor", sweeps=((ResidualThreshold(),),))
TSC = dataclasses.replace(RMP, neuron=TemporalSwitch())
LOCAL_BALANCING = Pipeline(threshold=LocalBalancing(per="channel"), rounding="potential", sweeps=(ReadOut(),))
HYBRID_TRAIN = Pipeline(
    threshold=MaxAct(), rounding="floor", sweeps=((SpikeNorm(factor=0.7, residual="height"),), HybridTraining())
)
QCFS = Pipeline(threshold=Learned(), rounding="potential", sweeps=(LearnedClips(),))

RIVALS = {
    "robust-norm": ROBUST_NORM,
    "spike-norm": SPIKE_NORM,
    "rmp": RMP,
    "tsc": TSC,
    "local-balancing": LOCAL_BALANCING,
    "hybrid-train": HYBRID_TRAIN,
    "qcfs": QCFS,
}
PRESETS = {"maxact": MAXACT, "percentile": PERCENTILE, "baseline": BASELINE, "lcp": LCP, "pc": PC, "acp": ACP}


def title_of(pipeline: Pipeline) -> str:
    """The name of the preset that differs at most in its numbers of images and iterations, or what it calibrates."""
    for name, one in {**PRESETS, **RIVALS}.items():
        if _bare(one) == _bare(pipeline):
            return name.upper()
    return " + ".join(part.label for part in pipeline.parts) or "thresholds only"


def _bare(pipeline: Pipeline) -> Pipeline:
    """The method without its numbers of images and iterations."""
    same = dataclasses.replace(pipeline, threshold=dataclasses.replace(pipeline.threshold, images=1))
    return same.changed(Calibrator, images=1).changed(Weights, iterations=1)


def resolve(pipeline: Pipeline | str) -> Pipeline:
    """A pipeline, or the preset with that name."""
    return preset(pipeline, Pipeline, {**PRESETS, **RIVALS}, "pipeline")


def resolve_plan(plan: Plan | str) -> Plan:
    """A pipeline or `AUTO`, or the one with that name."""
    if isinstance(plan, Auto) or (isinstance(plan, str) and plan.lower() == "auto"):
        return AUTO if isinstance(plan, str) else plan
    if isinstance(plan, str) and plan.lower() not in {**PRESETS, **RIVALS}:
        raise ConfigError(f"there is no pipeline {plan!r}: choose from auto, {', '.join((*PRESETS, *RIVALS))}")
    return resolve(plan)
