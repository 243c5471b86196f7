"""Fine-tunes a small network in child processes that are killed inside an iteration; prints what came of it as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # imported here once, instead of late in every child
from killed import die, in_child
from networks import images, residual
from safetensors import safe_open

import spikecal
from spikecal import Bias, FineTune, Pipeline, phases
from spikecal.calibration import finetune

PIPELINE = Pipeline(sweeps=(FineTune(images=16, iterations=10, batch=8, lr=1e-3), (Bias(images=8),)))


def convert(work: Path, out: Path, survived: int | None) -> None:
    """Convert, and die inside an iteration after so many complete ones."""
    phases.SAVE_SECONDS = 0
    if survived is not None:
        advance, left = FineTune.advance, iter(range(survived, -1, -1))

        def dying(*arguments: Any) -> Any:
            if next(left) == 0:
                finetune._adam = lambda *_: die()  # type: ignore[assignment]
            return advance(*arguments)

        FineTune.advance = dying  # type: ignore[method-assign]
    spikecal.convert(residual(), images(16), T=4, pipeline=PIPELINE, workdir=work).save(out)


def saved(work: Path) -> int:
    path = work / "T4" / "phase0.step"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        return int(json.loads(file.metadata()["record"]))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    paths = [(folder / name / "work", folder / name / "net.snn") for name in ("whole", "killed")]
    for _, out in paths:
        out.parent.mkdir()
    in_child(lambda: convert(*paths[0], None), None)
    counts = []
    for survived in (3, 4):
        assert not in_child(lambda survived=survived: convert(*paths[1], survived), None)  # type: ignore[misc]
        counts.append(saved(paths[1][0]))
    finished = in_child(lambda: convert(*paths[1], None), None)
    uninterrupted, resumed = (out.read_bytes().hex() for _, out in paths)
    json.dump({"saved": counts, "finished": finished, "uninterrupted": uninterrupted, "resumed": resumed}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
