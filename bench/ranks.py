"""The throughput of two ranks relative to two processes, and what ranks send; writes bench/results/ranks.json.

    python bench/ranks.py          about six minutes, two processes of one thread each; also the tables of
                                   docs/how-to/distributed.md. Nothing else should run beside it.

Both measurements are of the same two processes, in turns: each does the whole task by itself while the other does the
same, then both do it together. What happens with more ranks is computed on paper from the bytes and the speed.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import spikecal
from spikecal.analysis.operations import Weighted, nominal_macs
from spikecal.calibration.histogram import BINS
from spikecal.files import write_whole
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Spike
from spikecal.graph.stages import partition, with_joints
from spikecal.ranks import CHUNK, Group, apart, current
from spikecal.reproduce.cells import machine
from spikecal.snn.execute import images_per_call, shapes_of
from spikecal.zoo.models import build_model, load_model

ROOT = Path(__file__).parents[1]
RESULT, PAGE = ROOT / "bench" / "results" / "ranks.json", ROOT / "docs" / "how-to" / "distributed.md"
MARKS = "<!-- by bench/ranks.py -->", "<!-- until here -->"
T, ROUNDS = 32, 5
GIVEN, SWEPT, EVALUATED = 1024, 128, 256  # images: what `convert` is given by default, what LCP simulates, a test set
FLOAT, FLAG = 8, 1  # bytes of a sum, and of whether a neuron has fired
PAPER_T, COUNTS, RANKS = 64, (1024, 50_000), (8, 64, 512)
BANDWIDTH, LATENCY = 1.25e9, 50e-6  # bytes per second and seconds of an ordinary network, 10 Gbit/s


class Bytes:
    """Progress that notes how many bytes this rank had sent by the end of every stage."""

    def __init__(self, ranks: Group) -> None:
        self.ranks, self.sent = ranks, list[int]()

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        if name.startswith("T="):
            self.sent = [self.ranks.moved]

    def advance(self, note: str = "") -> None:
        self.sent.append(self.ranks.moved)

    def stages(self) -> list[int]:
        return [b - a for a, b in zip(self.sent, self.sent[1:], strict=False)]


def in_turn(task: Callable[[], Any], ranks: Group) -> dict[str, Any]:
    """What two processes do together against what they do independently, in the middle one of some rounds.

    Independent processes do not wait for each other: the throughput of the two is the sum of theirs, and `apart` is the
    time of one task at half of that. Together they are as fast as the slower one. `work` leaves waiting out: the
    processor time of one task by itself over that of both ranks together.
    """
    rounds = []
    for _ in range(ROUNDS + 1):
        with apart():
            alone = _timed(task, ranks)
        together = _timed(task, ranks)
        parts = {part: {"apart": _shared(alone, part), "together": _slowest(together, part)} for part in alone[0]}
        found, _ = parts.pop("all"), parts.pop("processor")
        efficiency = found["apart"] / (2 * found["together"])
        rounds.append({**found, "efficiency": efficiency, "work": _work(alone, together), "parts": parts})
    rounds = sorted(rounds[1:], key=lambda one: one["efficiency"])  # the first one warms up
    work = statistics.median(one["work"] for one in rounds)
    return {**rounds[ROUNDS // 2], "work": work, "rounds": [one["efficiency"] for one in rounds]}


def _timed(task: Callable[[], Any], ranks: Group) -> list[dict[str, float]]:
    """The seconds that each rank took for the task and its parts."""
    ranks.wait()
    started, used = time.perf_counter(), time.process_time()
    done = task()
    seconds = {"all": time.perf_counter() - started, "processor": time.process_time() - used}
    if isinstance(done, spikecal.Result):
        seconds.update(done.timings.to_dict())
    return [facts for _, facts in ranks.gathered({}, seconds)]


def _work(alone: list[dict[str, float]], together: list[dict[str, float]]) -> float:
    return statistics.fmean(rank["processor"] for rank in alone) / sum(rank["processor"] for rank in together)


def _shared(each: list[dict[str, float]], part: str) -> float:
    return len(each) / sum(1 / seconds[part] for seconds in each)


def _slowest(each: list[dict[str, float]], part: str) -> float:
    return max(seconds[part] for seconds in each)


def rank() -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = current()
    assert isinstance(ranks, Group)
    model, _ = load_model("resnet20", None)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(GIVEN, 3, 32, 32, generator=generator)
    test = images[:EVALUATED], torch.zeros(EVALUATED, dtype=torch.int64)
    pipeline = spikecal.LCP
    watched = Bytes(ranks)

    def convert() -> spikecal.Result:
        return spikecal.convert(model, images, T=T, pipeline=pipeline, progress=watched)

    snn = convert().snn
    sent = watched.stages()
    found = {
        "evaluate": in_turn(lambda: spikecal.evaluate(snn, test), ranks),
        "lcp": in_turn(convert, ranks),
        "bytes": sent,
    }
    if ranks.first:
        sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()


def two_ranks() -> dict[str, Any]:
    """What rank 0 of two measures."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"], env={**os.environ, **own, "RANK": str(i)}, stdout=subprocess.PIPE
        )
        for i in range(2)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    return json.loads(outputs[0])  # type: ignore[no-any-return]


# -- on paper ----------------------------------------------------------------------------------------------------------


def stage_bytes(model: nn.Module, image: Tensor) -> tuple[list[int], int, float, int]:
    """Bytes that LCP sends in each stage, and for thresholds; MACs of an image, and images that stay on one rank."""
    graph = with_joints(lower(model, (image.repeat(2, 1, 1, 1),)))
    shapes = shapes_of(graph, (image,))
    per_stage, counts = [], 0
    for stage in partition(graph):
        size, op = math.prod(shapes[stage.name][1:]), stage.end.op
        calibrated = stage.spiking or stage.parametric()
        sums = FLOAT * ((2 + size) + 2) if calibrated else FLOAT * 2  # before the bias and after it
        if isinstance(op, Spike):
            counts += FLOAT * shapes[stage.name][op.channel] * (BINS + 2)
        per_stage.append(sums + (FLOAT * 4 + FLAG * size if stage.spiking else 0))
    weighted = (node for node in graph.nodes.values() if isinstance(node.op, Weighted))
    macs = sum(
        nominal_macs(n.op, tuple(shapes[n.inputs[0]][1:]), tuple(shapes[n.name][1:]))  # type: ignore[arg-type]
        for n in weighted
    )
    return per_stage, counts, float(macs), min(16, 4 * images_per_call(shapes, PAPER_T))


def on_paper(rate: float) -> dict[str, Any]:
    """The speed-up of LCP on ResNet-34 at so many MACs a second and rank: kernels, and sums passed along the ranks."""
    model, card = build_model("resnet34-imagenet")
    per_stage, counts, macs, unit = stage_bytes(model.eval(), torch.randn(1, 3, *(card.size or (224, 224))))
    rows = []
    for images in COUNTS:
        units = -(-images // unit)
        alone = images * macs * (PAPER_T + 2) / rate
        for ranks in RANKS:
            kernels = -(-units // ranks) * unit * macs * (PAPER_T + 2) / rate
            chunks = [max(1, -(-size // (FLOAT * CHUNK))) for size in per_stage]
            passing = sum(
                (ranks - 1 + count) * (LATENCY + min(size, FLOAT * CHUNK) / BANDWIDTH)
                + math.log2(ranks) * (LATENCY + size / BANDWIDTH)
                for size, count in zip(per_stage, chunks, strict=True)
            )
            reducing = 2 * counts / BANDWIDTH + 2 * LATENCY * math.log2(ranks) * len(per_stage)
            total = kernels + passing + reducing
            rows.append(
                {
                    "images": images, "ranks": ranks, "hours": total / 3600, "speed-up": alone / total,
                    "efficiency": alone / total / ranks, "sending": (passing + reducing) / total,
                }
            )  # fmt: skip
    facts = {"stages": len(per_stage), "bytes": sum(per_stage), "largest": max(per_stage), "thresholds": counts}
    return {**facts, "macs": macs, "unit": unit, "rows": rows}


def _row(title: str, one: dict[str, Any]) -> str:
    reached = one["apart"] / (2 * one["together"])
    work = f"{100 * one['work']:.0f} %" if "work" in one else ""
    return f"| {title} | {one['apart']:.2f} s | {one['together']:.2f} s | {100 * reached:.0f} % | {work} |"


def page(found: dict[str, Any]) -> str:
    """The tables of docs/how-to/distributed.md."""
    paper, sent, expected = found["paper"], found["bytes"], found["expected"]
    lines = [
        "| ResNet-20, T = 32 | two tasks at once | one by both | of two processes | without waiting |",
        "|---|---|---|---|---|",
    ]
    titles = {
        "evaluate": f"`evaluate`, {EVALUATED} images",
        "lcp": f"`convert`, LCP, {GIVEN:,} images ({SWEPT} of them in the sweep)",
    }
    parts = {"lower": "tracing and lowering", "thresholds": "histograms", f"T={T}": "thresholds and sweep"}
    for name, title in titles.items():
        lines.append(_row(title, found[name]))
        lines += [_row(f"… {parts[part]}", one) for part, one in found[name]["parts"].items()]
    small = (
        f"{sum(sent) / 1e6:.2f} MB from each rank in its {len(sent)} stages, {max(sent) / 1e3:.0f} kB in the largest"
    )
    large = f"{paper['bytes'] / 1e6:.1f} MB, {paper['largest'] / 1e6:.1f} MB in the largest stage"
    speed = f"ranks as fast as one core here ({found['rate'] / 1e9:.1f} GMAC/s)"
    lines += [
        "",
        f"LCP of ResNet-20 sends {small} (measured; {sum(expected) / 1e6:.2f} MB by the shapes).",
        f"That of ResNet-34 sends {large}, and {paper['thresholds'] / 1e6:.0f} MB of histograms once (by the shapes).",
        "",
        f"On paper, for LCP of ResNet-34 at T = {PAPER_T} on {speed},",
        f"with a network of 10 Gbit/s and 50 µs and units of {paper['unit']} images:",
        "",
        "| images | ranks | hours | speed-up | efficiency | of it sending |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['images']:,} | {row['ranks']} | {row['hours']:.2f} | {row['speed-up']:.0f} | "
        f"{100 * row['efficiency']:.0f} % | {100 * row['sending']:.1f} % |"
        for row in paper["rows"]
    ]
    return "\n".join(lines)


def main() -> None:
    found = two_ranks()
    model, _ = load_model("resnet20", None)
    found["expected"], _, macs, _ = stage_bytes(model, torch.randn(1, 3, 32, 32))
    found["rate"] = (SWEPT * (T + 1) + GIVEN) * macs / found["lcp"]["apart"]
    found["paper"] = on_paper(found["rate"])
    write_whole(RESULT, json.dumps({**found, "machine": {**machine(), "threads": 1}}, indent=1) + "\n")
    before, rest = PAGE.read_text().split(MARKS[0])
    write_whole(PAGE, f"{before}{MARKS[0]}\n{page(found)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    print(page(found))


if __name__ == "__main__":
    rank() if "--rank" in sys.argv else main()
