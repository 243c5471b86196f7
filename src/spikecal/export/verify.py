"""Verify that an exported file does the same as the network, by running it in its simulators on real images.

Spikes are compared in single precision on all images, and in double precision on some. In single precision the last bit
of a sum decides some spikes, in this network as in any other, and every later layer has more of them: how many these
are in the network itself is counted too (`rounding`). An export on a grid is exact in single precision: its spikes
are compared with those of the same numbers here, and what its grid changes in the network is counted (`rounded`).
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikecal.errors import ConfigError
from spikecal.export.accumulate import accumulate
from spikecal.export.grid import is_exact
from spikecal.export.integers import Integers
from spikecal.export.netlist import Netlist
from spikecal.export.reference import trains
from spikecal.export.simulate import Trains, run_netlist
from spikecal.export.simulators import SIMULATORS, Simulator
from spikecal.progress import Progress, Silent
from spikecal.snn.network import SpikingNetwork

FAITHFUL = 1e-4  # the share of spikes that may differ
ROUNDED = (
    3  # tolerated multiple of the changes by a different order of additions, if a simulator lacks double precision
)
BATCH = 50  # images at once
TRACED = 50  # images for double precision

Answer = Callable[[Tensor], Tensor]  # outputs over all steps -> answers


@dataclass(frozen=True)
class Reference:
    """What an export is held to: the answers' source in single precision, and in double the network and its netlist."""

    single: Callable[[Tensor], Trains]
    double: Callable[[Tensor], Trains]
    built: Callable[[Tensor], Trains]


def of_network(snn: SpikingNetwork, build: Callable[[SpikingNetwork], Netlist]) -> Reference:
    """The network itself; `build` makes its netlist, whose numbers are not rounded yet."""
    double = deepcopy(snn).double()
    netlist = build(double)
    return Reference(
        lambda x: trains(snn, x), lambda x: trains(double, x.double()), lambda x: run_netlist(netlist, x.double())
    )


def of_integers(made: Integers) -> Reference:
    """The integer run; `x` is an image in integers."""
    single = made.netlist.to(torch.float)
    return Reference(
        lambda x: run_netlist(single, x),
        lambda x: accumulate(made, x).trains,
        lambda x: run_netlist(made.netlist, x.double()),
    )


@dataclass(frozen=True)
class Traced:
    """Changes of the network on its way into the file, on some images with `spikes` spikes in total.

    Places where levels differ from the network's, in double precision: those of the netlist (`built`), of the netlist
    as written (`rounded`), and of the network itself in single precision (`rounding`). `agreeing` are images with the
    same answer as written. `exact` says whether a grid makes all sums of the written netlist exact.
    """

    images: int
    spikes: int
    built: int
    rounded: int
    rounding: int
    agreeing: int
    exact: bool


@dataclass(frozen=True)
class Verdict:
    """How a simulator and the network compare on `images`, on which the network has `spikes` spikes.

    `differing` are the places where the simulator's levels differ in single precision, and `double` those where they do
    in double precision on the images of `traced`, where the simulator has it and sums are not exact. Where it has not,
    `reordered` are the places where the netlist run here differs from the network, both in single precision: what
    another order of additions changes. `difference` is the largest between two answers, and `agreeing` the images with
    the same answer. All of this is compared with the network or, where sums are exact, with the netlist as written.
    """

    simulator: str
    traced: Traced
    images: int
    spikes: int
    differing: int
    double: int | None
    reordered: int | None
    difference: float
    agreeing: int
    right: int | None = None  # images that the simulator answers correctly, and
    expected: int | None = None  # those that the network answers correctly; both if labels are known

    @property
    def faithful(self) -> bool:
        """At most one spike in 10,000 differs; in single precision, only exact sums can guarantee that."""
        return self.share <= max(FAITHFUL, ROUNDED * (self.reordered or 0) / max(1, self.spikes))

    @property
    def share(self) -> float:
        """The share of spikes that differ: in the simulator, or in the netlist if that is more."""
        spikes = max(1, self.traced.spikes)
        wrong = self.differing / max(1, self.spikes) if self.double is None else self.double / spikes
        return max(wrong, self.traced.built / spikes)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faithful": self.faithful}


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
    """Run the file in each installed simulator; `images` are the inputs before the rounding of `netlist`."""
    there, progress = simulators(to), progress or Silent()
    parts = images.split(BATCH)
    marks = [None] * len(parts) if labels is None else labels.split(BATCH)
    progress.phase("running in simulators", len(parts) * len(there) + 1, None)
    traced, written = _traced(netlist, reference, answer, images[:TRACED])
    progress.advance()
    own = (lambda part: run_netlist(netlist, part)) if traced.exact else reference.single
    fine = traced.exact or all(simulator.double for simulator in there)
    loaded = {simulator.name: simulator.load(path, netlist, torch.float) for simulator in there}
    found: dict[str, list[Verdict]] = {name: [] for name in loaded}
    for part, mark in zip(parts, marks, strict=True):
        expected = own(part)
        reordered = None if fine else differing(run_netlist(netlist, part).levels, expected.levels)[0]
        for name, run in loaded.items():
            verdict = _compared(name, traced, run(part), expected, answer, mark)
            found[name].append(replace(verdict, reordered=reordered))
            progress.advance()
    for simulator in there:
        if simulator.double and not traced.exact:
            again = simulator.load(path, netlist, torch.double)(images[:TRACED].double())
            double = differing(again.levels, written.levels)[0]
            found[simulator.name] = [replace(verdict, double=double) for verdict in found[simulator.name]]
    return [_together(verdicts) for verdicts in found.values()]


def simulators(to: str) -> list[Simulator]:
    """The installed simulators for this format; ConfigError if there are none."""
    there = [simulator for simulator in SIMULATORS[to] if simulator.installed]
    if not there:
        names = " or ".join(simulator.name for simulator in SIMULATORS[to])
        raise ConfigError(f"no simulator for {to} files is installed: `pip install {names}`")
    return there


def differing(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[int, int]:
    """In how many places levels differ, and how many spikes there should be."""
    wrong = sum(int((found[name] != levels).sum()) for name, levels in expected.items())
    return wrong, sum(int(levels.abs().sum(dtype=torch.long)) for levels in expected.values())


def _traced(netlist: Netlist, reference: Reference, answer: Answer, images: Tensor) -> tuple[Traced, Trains]:
    """The changes of the network, and the run of the netlist as written, in double precision."""
    network, single = reference.double(images), reference.single(images)
    written = run_netlist(netlist.to(torch.double), images.double())
    rounding, spikes = differing(single.levels, network.levels)
    chosen, meant = (answer(run.outputs).flatten(1).argmax(1) for run in (written, network))
    traced = Traced(
        images=len(images),
        spikes=spikes,
        built=differing(reference.built(images).levels, network.levels)[0],
        rounded=differing(written.levels, network.levels)[0],
        rounding=rounding,
        agreeing=int((chosen == meant).sum()),
        exact=is_exact(netlist),
    )
    return traced, written


def _compared(
    name: str, traced: Traced, found: Trains, wanted: Trains, answer: Answer, labels: Tensor | None
) -> Verdict:
    """A simulator's result (`found`) on a batch, and the expected one (`wanted`)."""
    wrong, spikes = differing(found.levels, wanted.levels)
    given, expected = answer(found.outputs), answer(wanted.outputs)
    chosen, meant = given.flatten(1).argmax(1), expected.flatten(1).argmax(1)
    return Verdict(
        simulator=name,
        traced=traced,
        images=len(given),
        spikes=spikes,
        differing=wrong,
        double=None,
        reordered=None,
        difference=float((given - expected).abs().max()),
        agreeing=int((chosen == meant).sum()),
        right=None if labels is None else int((chosen == labels).sum()),
        expected=None if labels is None else int((meant == labels).sum()),
    )


def _together(parts: list[Verdict]) -> Verdict:
    """The verdict on all images from those on batches."""

    def total(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if None in found else sum(found)

    names = ("images", "spikes", "differing", "reordered", "agreeing", "right", "expected")
    sums = {name: total(name) for name in names}
    return replace(parts[0], difference=max(part.difference for part in parts), **sums)
