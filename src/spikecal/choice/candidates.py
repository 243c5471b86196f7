"""The pipelines that AUTO chooses from, the most promising first."""

from collections.abc import Iterator
from dataclasses import dataclass

from spikecal.calibration.calibrators import Bias, Potential
from spikecal.calibration.finetune import FineTune
from spikecal.calibration.regression import ClosedFormWeights
from spikecal.calibration.temporal import TemporalBias
from spikecal.pipeline import PC, Auto, Pipeline


@dataclass(frozen=True)
class Candidate:
    """A pipeline, and what it is called."""

    name: str
    pipeline: Pipeline


def candidates(auto: Auto) -> Iterator[Candidate]:
    """All but LCP, in the order in which effort is spent on them."""
    found = [*(tuned() if auto.effort == "high" else ()), *swept()]
    return (Candidate(candidate.name, auto.fitted(candidate.pipeline)) for candidate in found)


def swept() -> Iterator[Candidate]:
    """Sweeps alone."""
    steps, regressed = TemporalBias(), (ClosedFormWeights(), Bias(), TemporalBias())
    yield Candidate("temporal bias", Pipeline(sweeps=((steps,),)))
    yield Candidate("closed form, temporal bias", Pipeline(sweeps=(regressed,)))
    yield Candidate("temporal bias, potentials", Pipeline(sweeps=((steps, Potential()),)))
    yield Candidate("PC", PC)
    yield Candidate("closed form, temporal bias, twice", Pipeline(sweeps=(regressed, regressed)))


def tuned() -> Iterator[Candidate]:
    """The whole network fine-tuned, then sweeps."""
    steps, regressed = TemporalBias(), (ClosedFormWeights(), Bias(), TemporalBias())
    yield Candidate("fine-tuned, temporal bias", Pipeline(sweeps=(FineTune(iterations=300), (steps,))))
    yield Candidate("fine-tuned, closed form, temporal bias", Pipeline(sweeps=(FineTune(iterations=300), regressed)))
