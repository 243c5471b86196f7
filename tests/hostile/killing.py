"""Kills commands at random moments, again and again, and runs them again; prints what came of it as JSON.

    python tests/hostile/killing.py FOLDER [KILLS]

A program of its own: children are forked from a process that has imported everything and never run anything.
"""

import json
import os
import random
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch._dynamo  # imported here once, instead of late in every child
from killed import in_child, used_by_children

from spikecal.cli.main import main as command
from spikecal.vision import vision

KILLS = 4
NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

def make():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()]
    card = Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval(), card
"""
COMMANDS = {  # and the files that must be the same
    "convert ../net.py:make --data npz:../images.npz -T 2 -T 4 --pipeline acp --iterations 15 --test 0 "
    "--calibration 16 --workdir work -o net.snn": ["net.snn"],
    "train ../net.py:make --data npz:../images.npz --recipe quick --epochs 8 --batch 10 --every 0 --workers 0 "
    "--device cpu -o w.safetensors": ["w.safetensors"],
    "distill ../net.py:make -n 24 --batch 8 --iterations 6 --workdir work -o images.npz": ["images.npz", "images.png"],
    "reproduce lcp --model ../net.py:make --data npz:../images.npz --images 10 --seeds 2 --iterations 2 -T 2 "
    "-o tables": ["tables/lcp.json", "tables/lcp.md"],
}
VERBS = {words.split()[0]: (words.split(), files) for words, files in COMMANDS.items()}

SOONEST = 0.05  # seconds after which a command may be killed


def prepare(folder: Path) -> None:
    (folder / "net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 60), ("test", 20)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = rng.integers(0, 4, count)
    np.savez(folder / "images.npz", **arrays)


def child(verb: str, folder: Path, seconds: float | None = None) -> bool:
    """Run a command in `folder`, in a child that is killed after `seconds`; whether it came to its end."""
    folder.mkdir(exist_ok=True)

    def work() -> None:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if command(VERBS[verb][0]) != 0:
            raise SystemExit("the command failed")

    return in_child(work, seconds)


def contents(verb: str, folder: Path) -> list[str]:
    return [(folder / name).read_bytes().hex() for name in VERBS[verb][1]]


def kill_and_resume(verb: str, folder: Path, seconds: float) -> dict[str, Any]:
    """One kill, and the result of the next run; earlier if the command had already finished."""
    killed = not child(verb, folder, seconds)
    while not killed and seconds > SOONEST:
        shutil.rmtree(folder)
        seconds *= 2 / 3
        killed = not child(verb, folder, seconds)
    before = sum(path.is_file() for path in folder.rglob("*"))
    finished = child(verb, folder)
    left = [path.name for path in folder.rglob("*.part")]
    return {"killed": killed, "before": before, "finished": finished, "left": left, "files": contents(verb, folder)}


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    vision("torchvision.transforms.v2")
    os.environ["SPIKECAL_DATA"] = str(folder / "sets")
    prepare(folder)
    generator = random.Random(25)
    report = {}
    for number, verb in enumerate(VERBS):
        whole = used_by_children(partial(child, verb, folder / f"{verb}-whole"))
        count = (kills + number) // len(VERBS)
        moments = [whole * (i + generator.random()) / count for i in range(count)]
        report[verb] = {
            "seconds": whole,
            "uninterrupted": contents(verb, folder / f"{verb}-whole"),
            "deaths": [kill_and_resume(verb, folder / f"{verb}-{i}", moment) for i, moment in enumerate(moments)],
        }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else KILLS)
