"""How a network is made from a row's pipeline: by `convert`, within a latency, or with every layer waiting."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from spikecal.arguments import home_of, image_dims, memory_of, number_of_inputs
from spikecal.calibration.images import collect
from spikecal.calibration.sweep import StageRecord
from spikecal.choice.placement import STEPS
from spikecal.conversion import convert
from spikecal.graph.joints import Joints
from spikecal.phases import Context, run_phases
from spikecal.pipeline import Auto, Plan
from spikecal.progress import Progress
from spikecal.ranks import current
from spikecal.snn.network import SpikingNetwork

PAPERS_JOINTS: Joints = "analog"
PLACEMENTS = 6  # networks tried in the search for waits, including the last comparison


@dataclass(frozen=True, kw_only=True)
class Order:
    """The inputs for making a network."""

    model: nn.Module
    images: Any
    plan: Plan
    T: int
    seed: int
    workdir: Path | None
    memory: int | None
    progress: Progress


@dataclass(frozen=True)
class Made:
    """A network, the records of its stages, and what was kept: T and pipeline, as far as they were chosen."""

    snn: SpikingNetwork
    records: list[StageRecord]
    kept: str | None = None


class Way(ABC):
    """A way to make a network. Ways are frozen, as they identify cells."""

    anytime: ClassVar[bool] = False  # whether what it makes does not depend on T: run once, it is read at every T

    @abstractmethod
    def make(self, order: Order) -> Made: ...

    @abstractmethod
    def depends(self) -> dict[str, Any]:
        """What a figure depends on besides its pipeline and T."""

    @abstractmethod
    def times(self, plan: Plan) -> float:
        """The approximate cost as a multiple of one calibration."""


@dataclass(frozen=True)
class Converted(Way):
    """By `convert`, within a latency such as "+10"; without one, no layer waits."""

    latency: str | None = None

    def make(self, order: Order) -> Made:
        return _converted(order, order.T, self.latency)

    def depends(self) -> dict[str, Any]:
        return {} if self.latency is None else {"latency": self.latency}

    def times(self, plan: Plan) -> float:
        tried = plan.times if isinstance(plan, Auto) else 1.0
        return tried if self.latency is None else tried + PLACEMENTS


@dataclass(frozen=True)
class Within(Way):
    """By `convert` within a latency of T steps, which chooses how many of them to spend on waits."""

    def make(self, order: Order) -> Made:
        return _converted(order, None, order.T)

    def depends(self) -> dict[str, Any]:
        return {"latency": "T"}

    def times(self, plan: Plan) -> float:
        return (plan.times if isinstance(plan, Auto) else 1.0) + len(STEPS) * PLACEMENTS


def _converted(order: Order, T: int | None, latency: int | str | None) -> Made:
    result = convert(
        order.model,
        order.images,
        T=T,
        pipeline=order.plan,
        latency=latency,
        joints=PAPERS_JOINTS,
        seed=order.seed,
        workdir=order.workdir,
        memory=order.memory,
        records=False,
        progress=order.progress,
    )
    snn = result.snn
    kept = [] if T else [f"T={snn.T}"]
    if snn.T in result.origin.choices:
        kept.append(result.origin.choices[snn.T]["kept"])
    return Made(snn, result.records, ", ".join(kept) or None)


@dataclass(frozen=True)
class Anytime(Converted):
    """By `convert` for the most steps of a table; what is made is the same for every T, and is read at every step."""

    anytime: ClassVar[bool] = True

    def depends(self) -> dict[str, Any]:
        return {"read": "every step"}


@dataclass(frozen=True)
class TwoPhase(Way):
    """Every layer waits T - 1 steps, so it has read all of its input before it fires, and is calibrated that way."""

    def make(self, order: Order) -> Made:
        pipeline = order.plan.fixed
        plain = replace(pipeline, sweeps=())
        bare = Converted().make(replace(order, plan=plain, workdir=None)).snn
        waits = {stage.name: order.T - 1 for stage in bare.stages if stage.spiking}
        network = SpikingNetwork(bare.graph, order.T, waits)
        ranks, (device, dtype) = current(), home_of(order.model)
        inputs, dims = number_of_inputs(order.model), image_dims(order.model)
        images = collect(order.images, pipeline.images, inputs, order.seed, dims)
        context = Context(
            ann=bare.graph.clone(),
            images=[tuple(x.to(device, dtype) for x in image) for image in images],
            pipeline=pipeline,
            seed=order.seed,
            micro_batch=None,
            memory=memory_of(order.memory, ranks.neighbours, device),
            records=False,
            progress=order.progress,
            workdir=None,  # a sweep of biases is short
            ranks=ranks,
        )
        return Made(network, run_phases(context, network, 0.0))

    def depends(self) -> dict[str, Any]:
        return {"waits": "T-1"}

    def times(self, plan: Plan) -> float:
        return 1.0
