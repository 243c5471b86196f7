"""spikecal compared with other ways to a spiking network: time, memory, accuracy and spikes; bench/results/peers.json.

    make bench-peers                                half an hour, in an environment of its own; rerun to resume
    python bench/peers [--data-root DIR]            the same, where the peers are installed
    python bench/peers --part conversions           one part: runs, conversions or answers
    python bench/peers --images 8 --tested 20 --calibration 64 --result X     a quick look, into another file

Everybody gets the same network with batch normalisation folded, the same calibration images (of training) and the same
test images. Times are measured in turns, one run of everybody a round; ratios are medians over rounds of the ratio
*within* a round. Each peer runs as its documentation runs it, and in its fastest mode: of all its ways to run, layouts
of memory and numbers of images at once, the one that was fastest on some images. Peers get all that torch offers to
everybody: inference mode, channels-last memory, calls small enough for the processor's caches.

Nothing else should run while `runs` and `conversions` are measured; `answers` are no times. With OMP_NUM_THREADS=1
times are seconds of the processor, which those of others on a shared machine are not part of.
"""

import argparse
import json
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answers import NETWORKS, ROOT, Subject, ann, answers
from contest import ANSWERING, PEERS
from tables import missed, write_pages
from times import CLOCK, TIMED_T, conversion, runs

from spikecal.files import write_whole
from spikecal.kernels import described
from spikecal.reproduce.cells import machine

RESULT = ROOT / "bench" / "results" / "peers.json"
PARTS = ("runs", "conversions", "answers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--calibration", type=int, default=1024, help="calibration images")
    parser.add_argument("--tested", type=int, default=1000, help="test images, for accuracy")
    parser.add_argument("--images", type=int, default=128, help="images of timed runs")
    parser.add_argument("--rounds", type=int, default=2, help="timed runs of everybody")
    given = parser.parse_args()
    settings = {name: getattr(given, name) for name in ("calibration", "tested", "images", "rounds")}
    packages = {name: version(name) for name in ("spikecal", "spikingjelly", "sinabs")}
    configuration = {**settings, "T": TIMED_T, "packages": packages, "loops": described()}
    found: dict[str, Any] = json.loads(given.result.read_text()) if given.result.exists() else {}
    if found.get("configuration") != configuration:
        found = {"configuration": configuration, "networks": {}}

    @cache
    def subject(network: str) -> Subject:
        return Subject.load(network, given.calibration, given.tested, given.data_root)

    def once(place: dict[str, Any], name: str, measure: Callable[[], dict[str, Any]]) -> None:
        if name not in place:
            place[name] = measure()
            write_whole(given.result, json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(place[name]), flush=True)

    networks = {name: found["networks"].setdefault(name, {}) for name in NETWORKS}
    parts = given.part or PARTS
    here = {"machine": machine(), "clock": CLOCK.__name__}
    for network, of in networks.items():
        once(of, "ann", partial(ann, subject(network)))
        if "runs" in parts:
            once(of, "runs", lambda name=network: runs(subject(name), given.images, given.rounds) | here)
    for part, measure, peers in (("conversions", conversion, PEERS), ("answers", answers, ANSWERING)):
        for network, of in networks.items() if part in parts else ():
            for name, peer in peers.items():
                once(of.setdefault(part, {}), name, partial(measure, peer, subject(network)))
    timed = all("runs" in of and set(of.get("conversions", ())) == set(PEERS) for of in networks.values())
    if given.result == RESULT and timed:
        write_pages(found)
        print("\n".join(["missed:", *missed(found)]))


if __name__ == "__main__":
    main()
