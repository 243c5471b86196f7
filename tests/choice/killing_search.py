"""Searches for waits in child processes that are killed; prints what came of it as JSON.

A program of its own: children are forked from a process that has imported torch and never run anything on it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch._dynamo  # imported here once, instead of late in every child
from calibration.killing import Trap, die_in_save
from killed import in_child
from networks import images, residual

import spikecal
import spikecal.conversion

PIPELINE = spikecal.Pipeline(sweeps=((spikecal.Bias(images=12),),))


def child(folder: Path, trap: Trap | None = None) -> bool:
    """Convert within a latency in a child; whether it came to its end."""
    folder.mkdir(exist_ok=True)

    def converting() -> None:
        if trap is not None:
            trap()
        result = spikecal.convert(residual(), images(16), T=4, latency=7, pipeline=PIPELINE, workdir=folder / "work")
        result.save(folder / "net.snn")

    return in_child(converting, None)


def measured(folder: Path) -> dict[str, int]:
    """The placements that are on disk, and when they were written."""
    found = (folder / "work" / "T4" / "waits").glob("*/found.step")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def killed(folder: Path, placement: int) -> dict[str, Any]:
    """Killed when this placement has been measured and is not yet on disk, then run again."""
    assert not child(folder, die_in_save(f"waits/{placement:04d}/found.step", 1))
    done = measured(folder)
    assert child(folder)
    after = measured(folder)
    redone = [name for name, written in done.items() if after[name] != written]
    return {"done": len(done), "redone": redone, "bytes": (folder / "net.snn").read_bytes().hex()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    child(folder / "whole")
    report = {
        "uninterrupted": (folder / "whole" / "net.snn").read_bytes().hex(),
        "deaths": [killed(folder / f"placement{number}", number) for number in (1, 3)],
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
