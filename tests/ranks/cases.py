"""What ranks do together: conversions and evaluations that one rank does as well, and what comes of them."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from networks import images, residual
from torch import Tensor, nn

import spikecal
from spikecal.neurons import IntegrateAndFire  # noqa: F401  what is imported late is imported before forking
from spikecal.ranks import Ranks, current

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
    """A hash of the file; None on ranks that write none."""
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
    return found


def learned(folder: Path) -> dict[str, list[float]]:
    """Outputs of networks whose weights were learned."""
    made = {name: converted(residual(), images(24), **case).snn for name, case in LEARNED.items()}
    return {name: torch.cat([p.flatten() for p in snn.parameters()]).tolist() for name, snn in made.items()}


def refusals() -> Iterator[tuple[str, Callable[[Ranks], Any]]]:
    """Calls that ranks make with something of their own, by what that is."""

    def version(ranks: Ranks) -> None:
        kept = spikecal.ranks.__version__
        spikecal.ranks.__version__ = kept + (".dev" if ranks.rank == 1 else "")
        try:
            converted(residual(), images(4), T=2, pipeline="lcp")
        finally:
            spikecal.ranks.__version__ = kept

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


def refused(ranks: Ranks) -> dict[str, str]:
    """What each of these is refused with."""
    found = {}
    for name, call in refusals():
        try:
            call(ranks)
        except spikecal.ConfigError as error:
            found[name] = str(error)
    return found
