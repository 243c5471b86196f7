"""Converts a small network in child processes that are killed, again and again; prints what came of it as JSON.

A program of its own: children are forked from a process that has imported torch and never run anything on it.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # imported here once, instead of late in every child
from killed import die, in_child, used_by_children
from networks import images, residual

import spikecal
import spikecal.conversion

os.environ["SPIKECAL_KERNELS"] = "torch"  # loading compiled loops would take a third of each child's time

MOMENTS = 20
Trap = Callable[[], None]  # armed in the child
PIPELINE = spikecal.Pipeline(
    threshold=spikecal.MMSE(per="channel", images=16),
    sweeps=(
        (spikecal.Potential(images=12), spikecal.Weights(images=16, iterations=25, batch=8, lr=1e-3)),
        (spikecal.Bias(images=12),),
    ),
)


def die_in_sgd(call: int) -> Trap:
    """A trap: the process dies in the `call`-th step of SGD."""

    def arm() -> None:
        original, calls = torch.optim.SGD.step, iter(range(1, sys.maxsize))

        def step(*arguments: Any) -> Any:
            if next(calls) == call:
                die()
            return original(*arguments)

        torch.optim.SGD.step = step  # type: ignore[assignment, method-assign]

    return arm


def die_in_save(suffix: str, call: int) -> Trap:
    """A trap: the process dies after writing the `call`-th file of this kind, before renaming it."""

    def arm() -> None:
        original, calls = os.replace, iter(range(1, sys.maxsize))

        def replace(source: Any, target: Any) -> None:
            if str(target).endswith(suffix) and next(calls) == call:
                die()
            original(source, target)

        os.replace = replace  # type: ignore[assignment]

    return arm


def child(work: Path, out: Path, trap: Trap | None = None, seconds: float | None = None) -> bool:
    """Convert in a child, which is killed after `seconds`; whether it came to its end."""
    out.parent.mkdir(exist_ok=True)

    def converting() -> None:
        if trap is not None:
            trap()
        spikecal.convert(residual(), images(16), T=[4, 8], pipeline=PIPELINE, workdir=work).save(out)

    return in_child(converting, seconds)


def steps(work: Path) -> dict[str, int]:
    return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in work.rglob("*.step")}


def kill_and_resume(folder: Path, trap: Trap | None = None, seconds: float | None = None) -> dict[str, Any]:
    """One kill, and the result of the next run."""
    work, out = folder / "work", folder / "net.snn"
    while child(work, out, trap, seconds):  # it was faster than measured: there was nothing to kill
        assert seconds is not None, "the trap did not work"
        seconds *= 0.8
        folder = folder.with_name(folder.name + "x")
        work, out = folder / "work", folder / "net.snn"
    done = steps(work)
    half = [path.name for path in folder.rglob("*.part")]
    finished = child(work, out)
    after = steps(work)
    return {
        "seconds": seconds,
        "done": len(done),
        "half": half,
        "finished": finished,
        "redone": [name for name in done if after.get(name) != done[name]],
        "steps": len(after),
        "left": [p.name for p in folder.rglob("*") if p.is_file() and p.suffix not in (".step", ".snn", ".json")],
        "bytes": out.read_bytes().hex(),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    uninterrupted, seconds = [], []
    for name in ("first", "second"):
        paths = folder / name / "work", folder / name / "net.snn"
        seconds.append(used_by_children(partial(child, *paths)))
        uninterrupted.append((folder / name / "net.snn").read_bytes().hex())
    whole = min(seconds)
    generator = random.Random(7)
    moments = [whole * (i + generator.random()) / MOMENTS for i in range(MOMENTS)]
    traps = {
        "sgd": die_in_sgd(85),
        "step": die_in_save(".step", 5),
        "boundary": die_in_save(".snn", 2),
        "result": die_in_save("net.snn", 1),
    }
    report = {
        "whole": whole,
        "uninterrupted": uninterrupted,
        "moments": [kill_and_resume(folder / f"moment{i}", seconds=moment) for i, moment in enumerate(moments)],
        "traps": {name: kill_and_resume(folder / name, trap) for name, trap in traps.items()},
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
