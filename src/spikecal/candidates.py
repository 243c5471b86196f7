"""The pipelines that AUTO chooses from, the most promising first."""

from collections.abc import Iterator
from dataclasses import dataclass

from spikecal.calibration.calibrators import Potential
from spikecal.calibration.temporal import TemporalBias
from spikecal.pipeline import PC, Auto, Pipeline


@dataclass(frozen=True)
class Candidate:
    """A pipeline, and what it is called."""

    name: str
    pipeline: Pipeline


def candidates(T: int, waits: bool, auto: Auto) -> Iterator[Candidate]:
    """All but LCP, in the order in which effort is spent on them."""
    for candidate in _all(T, waits):
        pipeline = candidate.pipeline
        yield Candidate(candidate.name, pipeline if auto.images is None else pipeline.with_images(auto.images))


def _all(T: int, waits: bool) -> Iterator[Candidate]:
    yield Candidate("temporal bias", Pipeline(sweeps=((TemporalBias(),),)))
    yield Candidate("temporal bias, potentials", Pipeline(sweeps=((TemporalBias(), Potential()),)))
    yield Candidate("PC", PC)
