"""The rows, time steps and networks of each of the paper's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spikecal.calibration.calibrators import Bias, Calibrator, Potential, Weights
from spikecal.calibration.threshold import MMSE, MaxAct, Percentile, Threshold
from spikecal.errors import ConfigError
from spikecal.pipeline import (
    ACP,
    AUTO,
    BASELINE,
    HYBRID_TRAIN,
    LCP,
    LOCAL_BALANCING,
    PC,
    QCFS,
    RMP,
    ROBUST_NORM,
    SPIKE_NORM,
    TSC,
    Effort,
    Pipeline,
    Plan,
)
from spikecal.reproduce.detectors import Detector
from spikecal.reproduce.kinds import SUBJECTS, subject_of
from spikecal.reproduce.sizes import PAPER, Sizes
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.ways import Anytime, Converted, TwoPhase, Way, Within


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table; `added` rows are not in the paper's, and serve for comparison."""

    label: str
    pipeline: Plan
    added: bool = False
    elsewhere: tuple[str, str] | None = None  # the paper's other table and row that has this one, if any
    source: str = ""  # of the calibration images, from `sources`; by default the network's own
    way: Way = Converted()
    rival: str = ""  # of a method of others: how it is run here, and what its own paper has that is not here
    least: int = 1  # steps from which it is measured
    most: int | None = None  # and up to which

    def steps(self, T: Sequence[int]) -> list[int]:
        """The T of its cells, for a table of these: all that it is measured for, or the most where one run is read."""
        wanted = [one for one in T if self.least <= one and (self.most is None or one <= self.most)]
        return wanted[-1:] if self.way.anytime else wanted


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table. `bn` says which networks it is about; `long` is the T of its "at least" column."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    T: tuple[int, ...] = (16, 32)
    bn: tuple[bool, ...] = (True,)
    kind: str = "accuracy"  # of `kinds`, or "time" or "space"
    long: int | None = None
    quick: tuple[int, ...] = ()  # the T measured by default
    models: tuple[str, ...] = ("resnet20",)  # without `-nobn`
    own_images: bool = False  # whether it is about numbers of images
    own_T: bool = False  # whether it has T of ours besides the paper's
    data: str | None = None  # the dataset of its networks, if that on their card is too small
    sizes: Sizes | None = None  # how much is run by default

    @property
    def default_T(self) -> tuple[int, ...]:
        return self.quick or self.T

    def steps(self, full: bool) -> tuple[int, ...]:
        """The T measured by default; `full` is as in the paper."""
        return self.T if full else self.default_T

    def sized(self, full: bool, changes: Mapping[str, int | None]) -> Sizes:
        """The paper's sizes or those for this machine, with changes."""
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        return replace(PAPER if full else self.sizes or Sizes(), **given)

    @property
    def sources(self) -> bool:
        """Whether its rows differ in the source of calibration images."""
        return any(row.source for row in self.rows)

    @property
    def measures(self) -> bool:
        """Whether its figures are scores on test images, with the ANN's beside them."""
        return self.kind in SUBJECTS

    @property
    def subject(self) -> type[Subject]:
        """Its subject."""
        return subject_of(self.kind)

    def default_models(self) -> list[str]:
        """The names of its networks, those without BN before those with."""
        return [name if bn else f"{name}-nobn" for name in self.models for bn in sorted(self.bn)]


THRESHOLDS: dict[str, Threshold] = {
    "MaxAct": MaxAct(),
    "Percentile 99.99 %": Percentile(),
    "MMSE": MMSE(per="layer"),
    "MMSE*": MMSE(per="channel"),
}


def _thresholds(base: Pipeline, suffix: str = "") -> tuple[Row, ...]:
    """`base` with each way to find thresholds."""
    return tuple(
        Row(label=f"{name}{suffix}", pipeline=replace(base, threshold=threshold))
        for name, threshold in THRESHOLDS.items()
    )


def _rounded(name: str) -> tuple[Row, ...]:
    """One threshold with flooring and with rounding."""
    base = replace(BASELINE, threshold=THRESHOLDS[name])
    return (
        Row(label=f"{name} + ClipFloor", pipeline=replace(base, rounding="floor")),
        Row(label=f"{name} + ClipRound", pipeline=base),
    )


def _samples(name: str, base: Pipeline, kind: type[Calibrator], counts: tuple[int, ...]) -> tuple[Row, ...]:
    return tuple(Row(label=f"{name}, {count:,} images", pipeline=base.changed(kind, images=count)) for count in counts)


BASELINES = (
    Row(label="Baseline", pipeline=BASELINE),
    Row(label="Baseline + LCP", pipeline=LCP),
    Row(label="Baseline + ACP", pipeline=ACP),
)
METHODS = (
    Row(label="Bias", pipeline=replace(BASELINE, sweeps=((Bias(),),))),
    Row(label="Potential", pipeline=replace(BASELINE, sweeps=((Potential(),),))),
    Row(label="Weights", pipeline=replace(BASELINE, sweeps=((Weights(),),))),
)
SOURCES = {
    "": "Real images",
    "distilled": "Distilled images",
    "several": "Distilled from two networks",
    "other": "Other real images",
    "noise": "Gaussian noise",
}
PAPERS_SOURCES = ("", "distilled")  # calibrated with ACP
FAKE = tuple(
    Row(
        label=f"{label} + {name}",
        pipeline=pipeline,
        source=source,
        added=name != "ACP" or source not in PAPERS_SOURCES,
    )
    for name, pipeline in (("LCP", LCP), ("ACP", ACP))
    for source, label in SOURCES.items()
)

PAPER_DETECTORS = ("retinanet-r50", "fasterrcnn-r50")
SMALL_DETECTORS = (
    "retinanet-r18-quarter", "retinanet-r50-quarter", "fasterrcnn-r18-quarter", "retinanet-r18", "fasterrcnn-r18",
)  # fmt: skip
ABLATED = ("resnet20", "vgg16-half")  # the families of the paper's ablations
IMAGENET = ("resnet34-imagenet", "vgg16-imagenet", "mobilenet", "mnasnet", "regnetx4gf")

_ALL = (
    Table(
        name="clipround",
        title="ClipRound against ClipFloor",
        about="Accuracy with and without the half step of rounding, networks without BN. MMSE is per layer.",
        rows=(*_rounded("MaxAct"), *_rounded("MMSE")),
        bn=(False,),
        models=ABLATED,
    ),
    Table(
        name="threshold",
        title="Ways to find the threshold",
        about="Accuracy with four kinds of threshold, rounding, networks without BN. * is one threshold per channel.",
        rows=_thresholds(BASELINE),
        bn=(False,),
        models=ABLATED,
    ),
    Table(
        name="bn",
        title="Networks with and without BN, uncalibrated",
        about="Accuracy with one MMSE threshold per layer and rounding, no calibration.",
        rows=(_rounded("MMSE")[1],),
        bn=(False, True),
        models=ABLATED,
    ),
    Table(
        name="lcp",
        title="Light calibration (bias) with each threshold",
        about="Accuracy after bias calibration, networks with BN.",
        rows=(
            Row(label="MMSE*, uncalibrated", pipeline=BASELINE, added=True, elsewhere=("imagenet", "Baseline")),
            *_thresholds(LCP, " + LCP"),
        ),
        models=ABLATED,
    ),
    Table(
        name="acp",
        title="Advanced calibration (potential and weights) with each threshold",
        about="Accuracy after calibration of potentials and weights, networks with BN.",
        rows=(
            Row(label="MMSE* + LCP", pipeline=LCP, added=True, elsewhere=("lcp", "MMSE* + LCP")),
            *_thresholds(ACP, " + ACP"),
        ),
        models=ABLATED,
    ),
    Table(
        name="cifar",
        title="Baseline, LCP and ACP on CIFAR",
        about="Accuracy at few steps and at many. Baseline: MMSE thresholds per channel, rounding.",
        rows=BASELINES,
        T=(4, 8, 16, 32, 512),
        long=512,
    ),
    Table(
        name="imagenet",
        title="Baseline, LCP and ACP on ImageNet",
        about="Accuracy at few steps and at many. Baseline as in `cifar`; PC is potentials alone.",
        rows=(*BASELINES[:2], Row(label="Baseline + PC", pipeline=PC, added=True), BASELINES[2]),
        T=(16, 32, 64, 128, 256, 2048),
        bn=(False, True),
        long=2048,
        models=IMAGENET,
    ),
    Table(
        name="time",
        title="Conversion time",
        about="Seconds of each kind of calibration, without the search for thresholds, and the same in ANN passes.",
        rows=METHODS,
        T=(16, 64),
        kind="time",
        own_images=True,
    ),
    Table(
        name="space",
        title="Memory of one calibrated parameter set",
        about="Parameters that differ between two T, counted in the graph, in MB of 2^20 bytes.",
        rows=METHODS,
        T=(),
        kind="space",
        models=("resnet20", "vgg16", *IMAGENET),
    ),
    Table(
        name="samples",
        title="Number of calibration images",
        about="Accuracy against the images of bias calibration (LCP) and of weights calibration (ACP). Thresholds keep "
        "1,024 images, and the potentials of ACP 128.",
        rows=(
            *_samples("LCP", LCP, Bias, (32, 64, 128, 256)),
            *_samples("ACP", ACP, Weights, (128, 256, 512, 1024)),
        ),
        T=(8,),
        own_images=True,
    ),
    Table(
        name="fakedata",
        title="Calibration without the training data",
        about="Accuracy after calibration on images from elsewhere: distilled from the network itself or from two, "
        "real ones of something else, noise.",
        rows=FAKE,
        T=(16, 32, 64, 128),
        quick=(4, 8, 32),
        own_T=True,
        data="cifar10",
        sizes=Sizes(images=2000),
    ),
    Table(
        name="detect",
        title="Baseline, LCP and ACP on detectors",
        about="COCO's mAP of detectors whose body spikes; feature pyramid and heads are analog. There is one potential "
        "per channel. Baseline as in `cifar`.",
        rows=BASELINES,
        T=(4, 8, 16, 32, 64, 128, 256),
        kind="detection",
        own_T=True,
        models=(*SMALL_DETECTORS, *PAPER_DETECTORS),
        sizes=Sizes(images=None, iterations=300, batch=8, weights=Detector.most_images),
    ),
)
TABLES = {table.name: table for table in _ALL}  # of the paper
WAITS = 10  # steps of latency beyond T


PAPERS = tuple(Row(label=name, pipeline=p) for name, p in (("LCP", LCP), ("PC", PC), ("ACP", ACP)))


def frontier(waits: int = WAITS, effort: Effort = AUTO.effort) -> Table:
    """The cost of accuracy in steps, spikes and energy, with the paper's pipelines and ours."""
    auto, name = replace(AUTO, effort=effort), "AUTO" if effort == AUTO.effort else f"AUTO, {effort} effort"
    return Table(
        name="frontier",
        title="Accuracy against latency, spikes and energy",
        about="The paper's pipelines, AUTO without waiting and within a latency, and the two-phase network, calibrated "
        "with LCP: every layer waits T - 1 steps, which is the most that waiting can give.",
        rows=(
            Row(label="BASELINE", pipeline=BASELINE),
            *PAPERS,
            Row(label=name, pipeline=auto),
            Row(label=f"{name}, latency T+{waits}", pipeline=auto, way=Converted(f"+{waits}")),
            Row(label="two-phase", pipeline=LCP, way=TwoPhase()),
        ),
        T=(2, 4, 8, 16, 32),
        kind="frontier",
        sizes=Sizes(seeds=1),
    )


LATENCY = Table(
    name="latency",
    title="Accuracy at equal latency",
    about="Networks that all answer after the same number of steps, T in the columns. The paper's pipelines and AUTO "
    "without waiting run for so many steps; AUTO with waits chooses a T and waits within them.",
    rows=(*PAPERS, Row(label="AUTO", pipeline=AUTO), Row(label="AUTO with waits", pipeline=AUTO, way=Within())),
    T=(14, 18, 26),
    kind="frontier",
    sizes=Sizes(seeds=1),
)

OURS = {table.name: table for table in (frontier(), LATENCY)}


IMAGES = "Images are currents, not Poisson spikes"
OTHERS = (
    Row(
        label="Robust-Norm",
        pipeline=ROBUST_NORM,
        way=Anytime(),
        rival="thresholds are the 99.9th percentile of each layer, without rounding, as in its paper.",
    ),
    Row(
        label="Spike-Norm",
        pipeline=SPIKE_NORM,
        way=Anytime(),
        rival=f"thresholds are maximal inputs; hard resets. {IMAGES}, and its paper takes 2,500 steps.",
    ),
    Row(
        label="RMP",
        pipeline=RMP,
        way=Anytime(),
        rival=f"thresholds as low as the residual allows; soft resets. {IMAGES}; the paper's T≥512 is 2,048 steps.",
    ),
    Row(
        label="TSC",
        pipeline=TSC,
        way=Anytime(),
        rival="RMP's thresholds, so the same accuracy as RMP with different spikes. Its paper also encodes the "
        "image as switches, so that its neurons fire without a break.",
    ),
    Row(
        label="Local balancing",
        pipeline=LOCAL_BALANCING,
        most=32,
        rival="one threshold per channel, v(0) = θ/2, delayed read-out; published after the paper.",
    ),
    Row(
        label="Hybrid Train",
        pipeline=HYBRID_TRAIN,
        least=16,
        most=32,
        rival=f"soft resets without leaks, trained for T with few iterations on few images. {IMAGES}; its paper has 20 "
        "epochs of all training images, dropout, leaks, and 100 to 250 steps. With fewer than 16 steps, too few spikes "
        "get through to learn from.",
    ),
    Row(
        label="QCFS",
        pipeline=QCFS,
        way=Anytime(),
        rival="a trained network, fine-tuned with 8 levels for few iterations; its paper, published after this one, "
        "trains from scratch for 300 epochs.",
    ),
)


def with_rivals(table: Table) -> Table:
    """The table with the methods of others, measured."""
    if table.name != "cifar":
        raise ConfigError(f"--rivals is for the table cifar, not for {table.name}")
    return replace(table, rows=(*table.rows, *OTHERS))


def with_rows(table: Table, labels: Sequence[str]) -> Table:
    """The table with these rows alone."""
    there = [row.label for row in table.rows]
    if missing := [label for label in labels if label not in there]:
        raise ConfigError(f"{table.name} has no row {missing[0]!r}; it has {', '.join(there)}")
    return replace(table, rows=tuple(row for row in table.rows if row.label in labels))


def find(name: str, waits: int | None = None, effort: Effort | None = None, rivals: bool = False) -> Table:
    """The table of that name; `waits` and `effort` are for the frontier, `rivals` for the table that quotes others."""
    known = {**TABLES, **OURS}
    if name not in known:
        raise ConfigError(f"there is no table {name!r}: choose from {', '.join(known)}")
    if rivals:
        return with_rivals(known[name])
    for flag, given in (("--waits", waits), ("--effort", effort)):
        if given is not None and name != "frontier":
            raise ConfigError(f"{flag} is for the table frontier, not for {name}")
    return frontier(waits or WAITS, effort or AUTO.effort) if name == "frontier" else known[name]
