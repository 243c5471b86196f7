"""Writes hostile `.snn` files with right checksums and uses each of them; prints what came of it as JSON.

    python tests/hostile/fuzz.py FOLDER [FILES]

A program of its own, so that its memory can be limited: what a file asks for must be refused before it is computed.
"""

import json
import random
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from hostile import mutations
from hostile.subjects import subjects, written

import spikecal
from spikecal.memory import _free_in_process
from spikecal.report.content import NOTHING, build
from spikecal.report.page import render
from spikecal.report.source import from_file
from spikecal.tasks.check import check_file

FILES = 2000
ROOM = 400 * 2**20  # beyond what is in use when the fuzz begins
Outcome = Counter[str]


def use(path: Path, x: torch.Tensor, outcome: Outcome) -> None:
    """Everything one can do with a file; any error except the library's own is a fault."""
    snn = spikecal.load(path)
    outcome["loaded"] += 1
    attempts = {
        "run": lambda: snn.run(x),
        "step": lambda: snn.step(x),
        "normalized": lambda: snn.normalized()(x),
        "check": lambda: json.dumps(check_file(path).facts, default=str, allow_nan=False),
    }
    if outcome["loaded"] % 3 == 0:  # these take as long as all others together
        attempts["evaluate"] = lambda: spikecal.evaluate(snn, (x, torch.zeros(len(x), dtype=torch.int64)))
    if outcome["loaded"] % 3 == 1:
        attempts["report"] = lambda: render(build([(from_file(path), NOTHING)]))
    if outcome["loaded"] % 3 == 2:
        attempts["trainable"] = lambda: snn.trainable()(x)
        attempts["saved"] = lambda: snn.save(path.with_name("again.snn"))
        attempts["export"] = lambda: snn.export(path.with_name("net.nir"))
    for name, attempt in attempts.items():
        try:
            attempt()
            outcome[name] += 1
        except spikecal.SpikecalError as error:
            outcome[f"{name} refused" if _is_one_line(error) else f"{name} says too much"] += 1


def _is_one_line(error: Exception) -> bool:
    return bool(str(error).strip()) and "\n" not in str(error)


def place_of(error: BaseException) -> str:
    """The check that refused a file: `description.py:81`."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    frame = next(frame for frame in reversed(frames) if frame.name != "require" and "spikecal" in frame.filename)
    return f"{Path(frame.filename).relative_to(Path(spikecal.__file__).parent)}:{frame.lineno}"


def main(folder: Path, count: int) -> None:
    torch.set_num_threads(1)
    generator = random.Random(25)
    bases = subjects()
    x = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    path = folder / "net.snn"
    for base in bases:
        written(path, base)
        use(path, x, Counter())  # also imports what is imported late
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, limit))
    assert _free_in_process() <= ROOM
    outcome: Outcome = Counter()
    places: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    for number, (what, parts) in enumerate(mutations.files(bases, generator, count)):
        try:
            use(written(path, parts), x, outcome)
        except spikecal.FileError as error:
            outcome["refused" if _is_one_line(error) else "says too much"] += 1
            places[place_of(error)] += 1
        except Exception as error:
            trace = traceback.format_exception(error)[-6:]
            faults.append({"number": number, "what": what, "error": f"{type(error).__name__}: {error}", "trace": trace})
        outcome["files"] += 1
    json.dump({"outcome": outcome, "places": places, "faults": faults}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else FILES)
