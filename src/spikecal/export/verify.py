"""Whether an exported file does what the network does: it is run where it is meant to run, on real images.

Spikes are compared in double precision where the simulator has it: in single precision the last bit of a sum decides
some spikes, in this network as in any other, and every later layer has more of them. How many it are is measured too.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikecal.errors import ConfigError
from spikecal.export.integers import Integers, run_integers
from spikecal.export.netlist import Netlist
from spikecal.export.planes import frames
from spikecal.export.reference import trains
from spikecal.export.simulate import Trains, simulate
from spikecal.export.simulators import SIMULATORS, Simulator
from spikecal.progress import Progress, Silent
from spikecal.snn.network import SpikingNetwork

FAITHFUL = 1e-4  # the share of spikes that may differ
ROUNDED = 3  # times as many as rounding changes in the network itself, of a simulator without double precision
BATCH = 50  # images at once

Answer = Callable[[Tensor], Tensor]  # outputs over all steps -> answers


@dataclass(frozen=True)
class Reference:
    """What an export is held to: how it runs in both precisions, and the netlist it was written from, in double.

    `image` makes of images what goes in.
    """

    single: Callable[[Tensor], Trains]
    double: Callable[[Tensor], Trains]
    netlist: Netlist
    image: Callable[[Tensor], Tensor]


def of_network(snn: SpikingNetwork, build: Callable[[SpikingNetwork], Netlist]) -> Reference:
    """The network itself; `build` makes its netlist."""
    double = deepcopy(snn).double()
    return Reference(lambda x: trains(snn, x), lambda x: trains(double, x.double()), build(double), lambda x: x)


def of_integers(made: Integers) -> Reference:
    """The run in whole numbers."""
    single = made.netlist.to(torch.float)
    return Reference(
        lambda x: _run(single, made.image(x)), lambda x: run_integers(made, x).trains, made.netlist, made.image
    )


@dataclass(frozen=True)
class Verdict:
    """How a simulator and the network compare on `images`, in which the network has so many `spikes`.

    `differing` are the places where the simulator's levels differ in double precision, from those of the netlist as
    written; `built` those where that netlist, before its weights are rounded, differs from the network. `single` is
    the same of all in single precision, and `rounding` what that changes in the network itself. `difference` is the
    largest between two answers and `agreeing` the images with the same answer, both in single precision.
    """

    simulator: str
    images: int
    spikes: int
    built: int
    differing: int | None
    single: int
    rounding: int
    difference: float
    agreeing: int
    right: int | None = None  # images that the simulator gets right, and
    expected: int | None = None  # those that the network gets right; both where labels are known

    @property
    def faithful(self) -> bool:
        allowed = FAITHFUL * self.spikes
        if self.differing is None:
            return self.built <= allowed and self.single <= max(allowed, ROUNDED * self.rounding)
        return self.built <= allowed and self.differing <= allowed

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faithful": self.faithful}


@dataclass(frozen=True)
class _Expected:
    """What the network does with one batch of images."""

    images: Tensor
    labels: Tensor | None
    single: Trains
    written: Trains  # by the netlist, in double precision
    built: int
    rounding: int


def verify(
    path: Path,
    to: str,
    netlist: Netlist,
    reference: Reference,
    answer: Answer,
    images: Tensor,
    labels: Tensor | None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """Run the file in each installed simulator."""
    there, progress = simulators(to), progress or Silent()
    written = netlist.to(torch.double)
    found: dict[str, list[Verdict]] = {simulator.name: [] for simulator in there}
    parts = images.split(BATCH)
    marks = [None] * len(parts) if labels is None else labels.split(BATCH)
    progress.phase("running it elsewhere", len(parts) * len(there), None)
    for part, mark in zip(parts, marks, strict=True):
        network, single, image = reference.double(part), reference.single(part), reference.image(part)
        built = differing(_run(reference.netlist, image.double()).levels, network.levels)[0]
        rounding = differing(single.levels, network.levels)[0]
        batch = _Expected(image, mark, single, _run(written, image.double()), built, rounding)
        for simulator in there:
            found[simulator.name].append(_compared(simulator, path, netlist, batch, answer))
            progress.advance()
    return [_together(verdicts) for verdicts in found.values()]


def simulators(to: str) -> list[Simulator]:
    """Those that are installed for this format; ConfigError where there are none."""
    there = [simulator for simulator in SIMULATORS[to] if simulator.installed]
    if not there:
        names = " or ".join(simulator.name for simulator in SIMULATORS[to])
        raise ConfigError(f"nothing is installed that runs {to} files: `pip install {names}`")
    return there


def differing(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[int, int]:
    """At how many places levels differ, and how many spikes there should be."""
    wrong = sum(int((found[name] != levels).sum()) for name, levels in expected.items())
    return wrong, sum(int(levels.abs().sum(dtype=torch.long)) for levels in expected.values())


def _run(netlist: Netlist, images: Tensor) -> Trains:
    return simulate(netlist, frames(images, netlist.T, netlist.latency, 0))


def _compared(simulator: Simulator, path: Path, netlist: Netlist, batch: _Expected, answer: Answer) -> Verdict:
    single = simulator.load(path, netlist, torch.float)(batch.images)
    wrong, spikes = differing(single.levels, batch.single.levels)
    exact = None
    if simulator.double:
        run = simulator.load(path, netlist, torch.double)
        exact = differing(run(batch.images.double()).levels, batch.written.levels)[0]
    answers, expected = answer(single.outputs), answer(batch.single.outputs)
    chosen, meant = answers.flatten(1).argmax(1), expected.flatten(1).argmax(1)
    return Verdict(
        simulator=simulator.name,
        images=len(batch.images),
        spikes=spikes,
        built=batch.built,
        differing=exact,
        single=wrong,
        rounding=batch.rounding,
        difference=float((answers - expected).abs().max()),
        agreeing=int((chosen == meant).sum()),
        right=None if batch.labels is None else int((chosen == batch.labels).sum()),
        expected=None if batch.labels is None else int((meant == batch.labels).sum()),
    )


def _together(parts: list[Verdict]) -> Verdict:
    def total(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if None in found else sum(found)

    names = ("images", "spikes", "built", "differing", "single", "rounding", "agreeing", "right", "expected")
    sums = {name: total(name) for name in names}
    return Verdict(simulator=parts[0].simulator, difference=max(part.difference for part in parts), **sums)
