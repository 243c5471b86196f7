"""Work that ranks share, conversions and evaluations, and its results, which one rank must reach as well."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection.scenes import images as photographs
from detection.scenes import tiny_detector
from networks import images, residual
from torch import Tensor, nn

import spikecal
from spikecal.data.card import Card
from spikecal.data.sources import Data
from spikecal.progress import Silent
from spikecal.ranks import Ranks, current
from spikecal.reproduce.run import make_plan, run
from spikecal.reproduce.sizes import Sizes as TableSizes
from spikecal.reproduce.tables import find
from spikecal.reproduce.ways import Order, TwoPhase
from spikecal.training.loop import train
from spikecal.training.recipes import QUICK
from spikecal.workdir import fingerprint

EXACT: dict[str, dict[str, Any]] = {
    "lcp": {"pipeline": "lcp", "T": 4, "micro_batch": 3},
    "pc": {"pipeline": "pc", "T": [2, 8], "micro_batch": 4},
    "grouped": {"pipeline": "lcp", "T": 32},
    "maxact": {"pipeline": "maxact", "T": 4},
    "step by step": {
        "pipeline": spikecal.Pipeline(
            sweeps=(
                (spikecal.ClosedFormWeights(images=24), spikecal.RefineThreshold(grid=2)),
                (spikecal.TemporalBias(images=24, rounds=1),),
                spikecal.ReadOut(),
            )
        ),
        "T": 4,
        "micro_batch": 5,
    },
    "auto": {"pipeline": "auto", "effort": "low", "T": 4, "micro_batch": 4},
    "waits": {"pipeline": "lcp", "T": 4, "latency": 7, "micro_batch": 4},
}
LEARNED: dict[str, dict[str, Any]] = {
    "weights": {
        "pipeline": spikecal.Pipeline(sweeps=((spikecal.Weights(images=24, iterations=12, batch=8, lr=1e-3),),)),
        "T": 4,
        "micro_batch": 4,
    },
    "fine-tuned": {
        "pipeline": spikecal.Pipeline(sweeps=(spikecal.FineTune(images=24, iterations=8, batch=8),)),
        "T": 4,
        "micro_batch": 4,
    },
}


class Sizes(torch.utils.data.Dataset[Tensor]):
    """Images of several sizes."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Tensor:
        return images(1, size=8 + 2 * (index % 3), seed=index)[0]


def converted(model: nn.Module, data: Any, **settings: Any) -> spikecal.Result:
    return spikecal.convert(model, data, **settings)


def print_of(result: spikecal.Result, folder: Path) -> str | None:
    """A hash of the file; None on ranks that write no file."""
    file = folder / "net.snn"
    result.save(file)
    if current().rank > 0:
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()


def exact(folder: Path) -> dict[str, Any]:
    """What has to be the same to the bit on any number of ranks."""
    found = {name: print_of(converted(residual(), images(24), **case), folder) for name, case in EXACT.items()}
    found["several sizes"] = print_of(converted(residual(), Sizes(), pipeline="pc", T=4, micro_batch=2), folder)
    found["one image"] = print_of(converted(residual(), images(1), pipeline="pc", T=4), folder)
    snn = converted(residual(), images(8), pipeline="lcp", T=4).snn
    labels = torch.arange(21) % 5
    found["evaluate"] = asdict(spikecal.evaluate(snn, (images(21), labels), ann=residual()))
    batches = [(images(n, seed=n), torch.zeros(n, dtype=torch.int64)) for n in (3, 1, 4)]
    found["batches"] = asdict(spikecal.evaluate(snn, batches))
    rule = spikecal.exit_rule(snn, [images(n, seed=n) for n in (9, 2, 14)], ann=residual(), agreement=0.2)
    found["exit"] = asdict(rule), asdict(spikecal.evaluate(snn, batches, exit=rule))
    detector = spikecal.detection.convert(tiny_detector(), photographs(4), T=4, pipeline="pc").at(4)
    found["detected"] = [asdict(spikecal.detection.evaluate(detector, boxed(count))) for count in (1, 4)]
    order = Order(
        model=residual(), images=images(24), plan=spikecal.LCP, T=4, seed=0, workdir=None, memory=None,
        progress=Silent(),
    )  # fmt: skip
    found["two-phase"] = fingerprint(TwoPhase().make(order).snn.state_dict().values(), [])
    made = spikecal.distill(residual(), 40, 12, batch=16, iterations=2, workdir=folder / "distilled")
    found["distilled"] = hashlib.sha256(made.images.numpy().tobytes()).hexdigest()
    return found


def boxed(count: int, seed: int = 0) -> list[tuple[Tensor, dict[str, list[Any]]]]:
    """Photographs with a box each."""
    return [(image, {"boxes": [[4, 4, 30, 30]], "labels": [1]}) for image in photographs(count, seed)]


def reproduced(folder: Path) -> dict[str, float]:
    """The figures of a small table."""
    networks, images = folder / "nets.py", folder / "images.npz"
    own = folder / f"{os.getpid()}.npz"  # all ranks write, and none may read what another has not finished
    own.with_suffix(".py").write_text(NETWORKS)
    own.with_suffix(".py").replace(networks)
    pixels = torch.randint(0, 256, (60, 12, 12, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = (torch.arange(60) % 4).numpy()
    arrays = {"x_train": pixels.numpy(), "y_train": labels, "x_test": pixels[:20].numpy(), "y_test": labels[:20]}
    np.savez(own, **arrays)
    own.replace(images)
    sizes = TableSizes(images=20, seeds=2, iterations=2)
    plan = make_plan(find("lcp", None), sizes, models=[f"{networks}:make"], data=f"npz:{images}", root=folder, T=[2, 4])
    found = run(plan, folder / "tables")
    return {str(cell): facts.get("rate", facts["score"]) for cell, facts in found.items()}


NETWORKS = """
import torch
from torch import nn
from spikecal.data.card import Card

def make():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    card = Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return nn.Sequential(*layers).eval(), card
"""


def trained(folder: Path) -> list[float]:
    """All numbers of a network after some steps of training, BN's too."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4)]
    network = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (56, 3, 8, 8), generator=generator, dtype=torch.uint8)
    data = Data(name="random", images=pixels, labels=torch.arange(56) % 4)
    card = Card(name="small", size=(8, 8), mean=(0.5,) * 3, std=(0.25,) * 3)
    train(network, data, card, QUICK.changed(epochs=2, batch=14, pad=2), folder / "checkpoint", validation=data)
    return torch.cat([value.double().flatten() for value in network.state_dict().values()]).tolist()


def learned(folder: Path) -> dict[str, list[float]]:
    """Outputs of networks whose weights were learned."""
    made = {name: converted(residual(), images(24), **case).snn for name, case in LEARNED.items()}
    found = {name: torch.cat([p.flatten() for p in snn.parameters()]).tolist() for name, snn in made.items()}
    return {**found, "trained": trained(folder)}


def refusals(folder: Path) -> Iterator[tuple[str, Callable[[Ranks], Any]]]:
    """Calls in which one argument differs between ranks, by that argument."""

    def version(ranks: Ranks) -> None:
        kept = spikecal.ranks.group.__version__
        spikecal.ranks.group.__version__ = kept + (".dev" if ranks.rank == 1 else "")
        try:
            converted(residual(), images(4), T=2, pipeline="lcp")
        finally:
            spikecal.ranks.group.__version__ = kept

    yield "version", version
    yield "weights", lambda ranks: converted(residual(ranks.rank % 2), images(4), T=2, pipeline="lcp")
    yield "images", lambda ranks: converted(residual(), images(4, seed=ranks.rank), T=2, pipeline="lcp")
    yield "settings", lambda ranks: converted(residual(), images(4), T=2 + ranks.rank, pipeline="lcp")
    yield (
        "evaluated",
        lambda ranks: spikecal.evaluate(
            converted(residual(), images(4), T=2, pipeline="lcp").snn,
            (images(4, seed=ranks.rank), torch.zeros(4, dtype=torch.int64)),
        ),
    )
    detector = tiny_detector()
    yield "detected", lambda ranks: spikecal.detection.evaluate(detector, boxed(3, seed=ranks.rank))
    own = [folder / f"of rank {i}" for i in range(3)]  # disks that ranks do not share
    own[0].mkdir(exist_ok=True)
    (own[0] / "checkpoint").write_text("of a training that rank 0 alone knows of")
    yield "checkpoint", lambda ranks: trained(own[ranks.rank])
    yield "directory", lambda ranks: converted(residual(), images(4), T=2, workdir=own[ranks.rank])


def refused(ranks: Ranks, folder: Path) -> dict[str, str]:
    """What each of these is refused with."""
    found = {}
    for name, call in refusals(folder):
        try:
            call(ranks)
        except spikecal.ConfigError as error:
            found[name] = str(error)
    return found
