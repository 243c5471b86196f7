"""How long conversions and runs take, and how much memory."""

import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from answers import Subject
from contest import LTB_PART, OURS, PEERS
from peer import Net, Peer, Way
from torch import Tensor

from spikecal.memory import return_freed_memory

TIMED_T = 16
TRIED = 32  # images at least, on which the fastest way is found
ENOUGH = 5.0  # seconds after which a conversion is not measured again

# With one thread, processor seconds: those of other users of a shared machine do not count.
CLOCK = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def seconds(action: Callable[[], Any]) -> float:
    started = CLOCK()
    action()
    return CLOCK() - started


def peak_growth(action: Callable[[], Any]) -> int:
    """By how many bytes the memory of the process grows at most while something is done."""
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = resident("VmRSS")
    action()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def conversion(peer: Peer, subject: Subject) -> dict[str, Any]:
    """Seconds and memory of a conversion."""

    def convert() -> None:
        peer.convert(subject.model, subject.calibration, TIMED_T)

    peer.convert(subject.model, subject.calibration[:LTB_PART], TIMED_T)  # what libraries allocate once and for all
    grown = peak_growth(convert)
    taken = [seconds(convert)]
    while sum(taken) < ENOUGH and len(taken) < 3:
        taken.append(seconds(convert))
    return {"seconds": statistics.median(taken), "bytes": grown}


@dataclass(frozen=True)
class Entrant:
    """A peer's network that is run in some ways, and the seconds that each has taken in every round."""

    peer: Peer
    net: Net
    ways: Sequence[Way]
    taken: dict[Way, list[float]] = field(default_factory=dict)

    def run(self, way: Way, x: Tensor) -> None:
        self.peer.laid_out(self.net, way)
        self.taken.setdefault(way, []).append(seconds(lambda: self.peer.run(self.net, x, TIMED_T, way)))

    def peak(self, way: Way, x: Tensor) -> int:
        self.peer.laid_out(self.net, way)
        return peak_growth(lambda: self.peer.run(self.net, x, TIMED_T, way))


def runs(subject: Subject, images: int, rounds: int) -> dict[str, Any]:
    """Seconds of T steps, in turns; the first round does not count."""
    x = subject.tested[:images]
    everybody = entrants(subject, x)
    last = deepcopy(subject.model).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def passes() -> None:
        for _ in range(TIMED_T):
            last(x.contiguous(memory_format=torch.channels_last))

    dense = []
    for number in range(rounds + 1):
        dense.append(seconds(passes))
        for name, entrant in everybody.items():
            for way in entrant.ways:
                entrant.run(way, x)
            print(number, name, {str(way): round(taken[-1], 2) for way, taken in entrant.taken.items()}, flush=True)

    def ratio(above: list[float], below: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(above[1:], below[1:], strict=True))

    ours = everybody[OURS]
    rows = {}
    for name, entrant in everybody.items():
        made = [
            {
                "way": str(way),
                "seconds": statistics.median(entrant.taken[way][1:]),
                "over_spikecal": ratio(entrant.taken[way], ours.taken[ours.ways[0]]),
                "over_passes": ratio(entrant.taken[way], dense),
                "bytes": entrant.peak(way, x),
            }
            for way in entrant.ways
        ]
        rows[name] = {"documented": made[0], "fastest": min(made, key=lambda way: way["over_spikecal"])}
    return {"images": images, "T": TIMED_T, "rounds": rounds, "passes": statistics.median(dense[1:]), "rows": rows}


def entrants(subject: Subject, x: Tensor) -> dict[str, Entrant]:
    """Everybody's network; speed does not depend on thresholds, so that few images are enough to find them."""
    made: dict[str, Entrant] = {}
    known: dict[Any, Way] = {}  # by what the layers of a network are: recipes that differ in numbers alone are as fast
    for name, peer in PEERS.items():
        net = peer.convert(subject.model, subject.calibration[:LTB_PART], TIMED_T)
        kind = type(peer), tuple(type(module) for module in net.modules())
        known[kind] = known[kind] if kind in known else fastest(peer, net, x)
        made[name] = Entrant(peer, net, list(dict.fromkeys([peer.documented, known[kind]])))
    return made


def fastest(peer: Peer, net: Net, x: Tensor) -> Way:
    """The way that takes least time per image; the best three are tried again."""
    if len(peer.ways()) == 1:
        return peer.documented

    def taken(way: Way) -> float:
        peer.laid_out(net, way)
        some = x[: max(TRIED, way.images)]
        return seconds(lambda: peer.run(net, some, TIMED_T, way)) / len(some)

    return min(sorted(peer.ways(), key=taken)[:3], key=lambda way: min(taken(way), taken(way)))
