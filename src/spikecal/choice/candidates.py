"""The pipelines that AUTO chooses from, the most promising first."""

from collections.abc import Iterator
from dataclasses import dataclass

from spikecal.calibration.calibrators import Bias, Calibrator, Potential
from spikecal.calibration.finetune import FineTune
from spikecal.calibration.regression import ClosedFormWeights
from spikecal.calibration.temporal import TemporalBias
from spikecal.pipeline import PC, Auto, Pipeline

REGRESSED: tuple[Calibrator, ...] = (ClosedFormWeights(images=512), Bias(), TemporalBias())
STEPS: tuple[Calibrator, ...] = (TemporalBias(),)


@dataclass(frozen=True)
class Candidate:
    """A pipeline and its name."""

    name: str
    pipeline: Pipeline


def candidates(auto: Auto) -> Iterator[Candidate]:
    """All except LCP, in the order in which effort is spent on them."""
    found = {"low": quick, "normal": swept, "high": tuned}[auto.effort]()
    return (Candidate(candidate.name, auto.fitted(candidate.pipeline)) for candidate in found)


def quick() -> Iterator[Candidate]:
    """Few images, few rounds."""
    yield Candidate("temporal bias", Pipeline(sweeps=((TemporalBias(images=128, rounds=2),),)))
    yield Candidate("PC", PC)


def swept() -> Iterator[Candidate]:
    """Sweeps alone."""
    yield Candidate("closed form, temporal bias", Pipeline(sweeps=(REGRESSED,)))
    yield Candidate("temporal bias", Pipeline(sweeps=(STEPS,)))
    yield Candidate("temporal bias, potentials", Pipeline(sweeps=((*STEPS, Potential()),)))
    yield Candidate("PC", PC)
    yield Candidate("closed form, temporal bias, twice", Pipeline(sweeps=(REGRESSED, REGRESSED)))


def tuned() -> Iterator[Candidate]:
    """The whole network fine-tuned before the sweeps as well."""
    yield Candidate("fine-tuned, closed form, temporal bias", Pipeline(sweeps=(FineTune(), REGRESSED)))
    yield Candidate("fine-tuned, temporal bias", Pipeline(sweeps=(FineTune(), STEPS)))
    yield from swept()
