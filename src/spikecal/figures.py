"""The paper's figures from networks and images: what each of them converts, measures and draws."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from spikecal.analysis import plots
from spikecal.analysis.errors import NetworkErrors, measure_errors
from spikecal.calibration.calibrators import Calibrator, Weights
from spikecal.calibration.threshold import MMSE, MaxAct, Percentile, Threshold
from spikecal.conversion import convert
from spikecal.errors import ConfigError
from spikecal.evaluation import accuracy, evaluate
from spikecal.pipeline import ACP, BASELINE, FEW_ITERATIONS, LCP, MAXACT, Pipeline, resolve
from spikecal.progress import Progress
from spikecal.result import Result

THETA, STEPS = 10.0, 5  # of the figure of ReLU, ClipFloor and ClipRound
FEWER = 256  # images of shortened weights calibration, so that a figure takes minutes
COPIED = replace(MAXACT, rounding="floor")  # conversion before the paper: weights copied, nothing rounded
SAMPLES = (32, 64, 128, 256)
Drawn = tuple[Figure, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network with its calibration images, and repeatable batches of test images with labels."""

    name: str
    model: nn.Module
    calibration: Any
    test: Iterable[Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a figure is made. `T` are its time steps; `images` of the test set measure errors."""

    T: tuple[int, ...] = ()
    images: int = 128
    iterations: int = 200
    seeds: int = 3
    seed: int = 0
    layer: str | None = None
    progress: Progress | None = None

    def pipelines(self) -> dict[str, Pipeline]:
        return {"uncalibrated": BASELINE, "LCP": LCP, **self._acp()}

    def _acp(self) -> dict[str, Pipeline]:
        """ACP as in the paper, or with fewer iterations by an optimiser that learns in so few; the label says which."""
        if self.iterations >= Weights.iterations:
            return {"ACP": ACP.changed(Weights, iterations=self.iterations)}
        shorter = ACP.changed(Weights, iterations=self.iterations, images=FEWER, **FEW_ITERATIONS)
        return {f"ACP, {self.iterations:,} iterations of Adam": shorter}

    @property
    def steps(self) -> int:
        return max(self.T)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One figure: `models` are what it shows if there are weights for them, `T` the paper's."""

    about: str
    draw: Callable[[list[Subject], Settings], Drawn]
    T: tuple[int, ...] = ()
    models: tuple[str, ...] = ("resnet20",)
    instead: tuple[str, ...] = ("resnet20",)  # if there are no weights for any of `models`


def _converted(subject: Subject, pipeline: Pipeline, settings: Settings, T: Sequence[int]) -> Result:
    return convert(
        subject.model,
        subject.calibration,
        T=T,
        pipeline=pipeline,
        seed=settings.seed,
        progress=settings.progress,
    )


def _errors(subject: Subject, pipeline: Pipeline, settings: Settings) -> NetworkErrors:
    snn = _converted(subject, pipeline, settings, [settings.steps]).snn
    return measure_errors(subject.model, snn, subject.test, count=settings.images, progress=settings.progress)


def bn(subjects: list[Subject], settings: Settings) -> Drawn:
    """Relative error by layer of networks with copied weights, with BN and without."""
    found = {subject.name: _errors(subject, COPIED, settings) for subject in subjects}
    title = f"Relative error by layer, weights copied (MaxAct, ClipFloor), T = {settings.steps}"
    return plots.relative_error(found, title), {name: errors.to_dict() for name, errors in found.items()}


def calibration(subjects: list[Subject], settings: Settings) -> Drawn:
    """Relative error by layer before calibration, after LCP and after ACP."""
    (subject,) = subjects
    found = {name: _errors(subject, pipeline, settings) for name, pipeline in settings.pipelines().items()}
    title = f"{subject.name}, T = {settings.steps}"
    return plots.relative_error_compared(found, title), {name: errors.to_dict() for name, errors in found.items()}


def parts(subjects: list[Subject], settings: Settings) -> Drawn:
    """What the error of each layer is made of, after LCP."""
    (subject,) = subjects
    found = _errors(subject, LCP, settings)
    return plots.error_parts(found, f"{subject.name}, LCP, T = {settings.steps}"), found.to_dict()


def clip(subjects: list[Subject], settings: Settings) -> Drawn:
    """ReLU, ClipFloor and ClipRound."""
    T = settings.steps
    return plots.clip_functions(THETA, T), {"theta": THETA, "T": T}


def threshold(subjects: list[Subject], settings: Settings) -> Drawn:
    """Threshold of one layer against T, by the three methods."""
    (subject,) = subjects
    result = convert(subject.model, subject.calibration, T=1, pipeline=BASELINE, seed=settings.seed)
    layers = list(result.histograms)
    layer = settings.layer or layers[len(layers) // 2]
    if layer not in layers:
        raise ConfigError(f"there is no layer of neurons {layer!r}: choose from {', '.join(layers)}")
    methods: dict[str, Threshold] = {"MaxAct": MaxAct(), "Percentile 99.99 %": Percentile(), "MMSE": MMSE()}
    curves = {
        name: {T: float(method.solve(result.histograms[layer], T, "round")) for T in settings.T}
        for name, method in methods.items()
    }
    return plots.thresholds(curves, f"{subject.name}, layer {layer}"), {"layer": layer, "thresholds": curves}


def rate(subjects: list[Subject], settings: Settings) -> Drawn:
    """Firing rate by layer after LCP."""
    (subject,) = subjects
    T = settings.steps
    snn = convert(
        subject.model, subject.calibration, T=T, pipeline=LCP, seed=settings.seed, progress=settings.progress
    ).snn
    found = evaluate(snn, subject.test, settings.progress)
    assert found.energy is not None
    ratio = found.energy.ratio or 0.0
    title = f"{subject.name}, LCP, T = {T}: {100 * ratio:.1f} % of the ANN's energy"
    facts = {"T": T, "images": found.images, "rates": found.rates, "energy": found.energy.to_dict()}
    return plots.firing_rates(found.rates, title), facts


def accuracy_over_time(subjects: list[Subject], settings: Settings) -> Drawn:
    """Accuracy over steps for the three pipelines, with that of the ANN."""
    (subject,) = subjects
    ann = accuracy(subject.model, subject.test)
    curves: dict[str, list[float]] = {}
    points: dict[str, dict[int, float]] = {}
    images = 0
    for name, pipeline in settings.pipelines().items():
        result = _converted(subject, pipeline, settings, settings.T)
        found = {T: evaluate(result.at(T), subject.test, settings.progress) for T in settings.T}
        curves[name], images = found[settings.steps].accuracy, found[settings.steps].images
        points[name] = {T: e.accuracy[-1] for T, e in found.items()}
    title = f"{subject.name}, {images:,} test images"
    facts = {"ann": ann, "images": images, "after_every_step": curves, "accuracy": points}
    return plots.accuracy_over_time(curves, points, ann, title), facts


def accuracy_against_images(
    model: nn.Module,
    images: Any,
    test: Any,
    counts: Sequence[int],
    *,
    T: int = 8,
    pipeline: Pipeline | str = "lcp",
    seeds: Sequence[int] = (0, 1, 2),
    progress: Progress | None = None,
) -> dict[int, list[float]]:
    """Accuracy on `test` after calibration with `count` images, for every seed that draws them.

    Thresholds keep their own images: only the calibrators' vary, as in the paper's study.
    """
    found: dict[int, list[float]] = {}
    for count in counts:
        varied = resolve(pipeline).changed(Calibrator, images=count)
        networks = (convert(model, images, T=T, pipeline=varied, seed=seed, progress=progress) for seed in seeds)
        found[count] = [evaluate(result.snn, test, progress=progress).accuracy[-1] for result in networks]
    return found


def samples(subjects: list[Subject], settings: Settings) -> Drawn:
    """Accuracy against the number of calibration images, for LCP."""
    (subject,) = subjects
    found = accuracy_against_images(
        subject.model,
        subject.calibration,
        subject.test,
        SAMPLES,
        T=settings.steps,
        pipeline=LCP,
        seeds=range(settings.seed, settings.seed + settings.seeds),
        progress=settings.progress,
    )
    ann = accuracy(subject.model, subject.test)
    each = "1 sample" if settings.seeds == 1 else f"{settings.seeds} samples"
    title = f"{subject.name}, T = {settings.steps}, {each} each"
    figure = plots.accuracy_over_images({"LCP": found}, ann, title)
    return figure, {"T": settings.steps, "ann": ann, "accuracy": found}


FIGURES: dict[str, Recipe] = {
    "bn": Recipe(
        about="relative error by layer with and without BN",
        draw=bn,
        T=(16,),
        models=("vgg16-nobn", "vgg16"),
        instead=("resnet20-nobn", "resnet20"),
    ),
    "calibration": Recipe(about="relative error by layer: uncalibrated, LCP, ACP", draw=calibration, T=(16,)),
    "parts": Recipe(about="what the error of each layer is made of", draw=parts, T=(16,)),
    "clip": Recipe(about="ReLU, ClipFloor, ClipRound", draw=clip, T=(STEPS,), models=(), instead=()),
    "threshold": Recipe(about="threshold against T by three methods", draw=threshold, T=tuple(range(1, 65))),
    "rate": Recipe(about="firing rate by layer, LCP", draw=rate, T=(64,)),
    "accuracy": Recipe(about="accuracy over steps, three pipelines", draw=accuracy_over_time, T=(4, 8, 16, 32)),
    "samples": Recipe(about="accuracy against calibration images, LCP", draw=samples, T=(8,)),
}


def draw(name: str, subjects: list[Subject], settings: Settings) -> Drawn:
    """A figure and the data behind it."""
    recipe = FIGURES[name]
    if recipe.models and not subjects:
        raise ConfigError(f"figure {name} needs a network")
    if len(subjects) > 1 and len(recipe.models) < 2:
        raise ConfigError(f"figure {name} shows one network, not {len(subjects)}")
    return recipe.draw(subjects, replace(settings, T=settings.T or recipe.T))
