"""Speed of conversion and of running, as ratios to passes of the ANN measured in the same run.

    python bench/convert.py                      everything, into bench/results/convert.json; reports what got worse
    python bench/convert.py --part resnet20      one network (or scaling, or memory), into the same file
    python bench/convert.py --profile resnet20   where the time of a conversion goes

The ANN is the same network with BN folded, channels last. Weights are random, BN statistics are those of random
images: speed does not depend on them, and firing rates are ordinary. Ratios are measured with compiled loops, if numba
is installed, and with torch alone.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import spikecal
from spikecal import kernels
from spikecal.files import write_whole
from spikecal.zoo.models import build_model

RESULT = Path(__file__).parent / "results" / "convert.json"
NETWORKS = ("vgg16", "resnet20", "resnet32", "resnet44", "resnet56")
T, BIAS_IMAGES, THRESHOLD_IMAGES = 16, 128, 1024
RATIOS = ("convert_over_floor", "run_over_passes")
NOISE = 1.05  # between two runs of the same code


def network(name: str) -> nn.Module:
    """A zoo network with random weights and the BN statistics of random images."""
    torch.manual_seed(0)
    model = build_model(name)[0].train()
    with torch.no_grad():
        for _ in range(3):
            model(images(64))
    return model.eval()


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32)


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turn(rounds: int, **actions: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each action in every round; they take turns, so that a busy machine slows all of them alike."""
    for action in actions.values():
        action()
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    """Median over rounds of the ratio within a round, where both were measured one after the other."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def medians(taken: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in taken.items()}


@contextmanager
def loops_by(choice: str) -> Iterator[None]:
    """With loops by torch or numba, whatever is in use otherwise."""
    os.environ[kernels.VARIABLE] = choice
    kernels.compiled.cache_clear()
    try:
        yield
    finally:
        del os.environ[kernels.VARIABLE]
        kernels.compiled.cache_clear()


def measure(name: str, rounds: int) -> dict[str, Any]:
    model = network(name)
    ann = fuse(model).to(memory_format=torch.channels_last)
    many = images(THRESHOLD_IMAGES).contiguous(memory_format=torch.channels_last)
    few = many[:BIAS_IMAGES]
    results = [spikecal.convert(model, many, T=T, pipeline="lcp")]
    snn, stages = results[0].snn, len(results[0].snn.stages)

    def run() -> None:
        snn(few)

    def convert() -> None:
        results.append(spikecal.convert(model, many, T=T, pipeline="lcp"))

    def by_torch(action: Callable[[], None]) -> Callable[[], None]:
        return loops_by("torch")(action)

    with torch.no_grad():
        times = in_turn(
            rounds,
            passes=lambda: [ann(few) for _ in range(T)],
            run=run,
            run_torch=by_torch(run),
            floor=lambda: [ann(part) for part in ((few,) * (T + 1) + many.split(BIAS_IMAGES))],
            convert=convert,
            convert_torch=by_torch(convert),
        )
    sweeps = [sum(record.seconds for record in result.records) for result in results[3::2]]
    return {
        "seconds": medians(times),
        "stages": stages,
        "loops": kernels.described(),
        "convert_over_floor": ratio(times["convert"], times["floor"]),
        "run_over_passes": ratio(times["run"], times["passes"]),
        "convert_over_floor_torch": ratio(times["convert_torch"], times["floor"]),
        "run_over_passes_torch": ratio(times["run_torch"], times["passes"]),
        "seconds_per_stage": statistics.median(sweeps) / stages,
    }


def worse(name: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The ratios of a network that grew by more than noise."""
    return [
        f"{name}: {key} was {before[key]:.2f} and is {now[key]:.2f}"
        for key in RATIOS
        if key in before and now[key] > NOISE * before[key]
    ]


def scaling(rounds: int) -> dict[str, Any]:
    """Sweep seconds of ResNet-20 against T and against the number of images."""
    model, x = network("resnet20"), images(512)

    def sweep(steps: int, n: int) -> Callable[[], Any]:
        pipeline = spikecal.LCP.changed(spikecal.Bias, images=n)
        return lambda: spikecal.convert(model, x[:n], T=steps, pipeline=pipeline)

    by_T = medians(in_turn(rounds, **{str(steps): sweep(steps, 128) for steps in (8, 16, 32, 64)}))
    by_images = medians(in_turn(rounds, **{str(n): sweep(16, n) for n in (64, 128, 256, 512)}))
    return {"seconds_by_T": by_T, "seconds_by_images": by_images}


def memory(name: str) -> dict[str, Any]:
    """Peak memory of a conversion above that of the process before it, for several budgets, each in a new process."""
    found = {}
    for budget in (192, 384, 1024):
        command = [sys.executable, __file__, "--peak", name, str(budget)]
        found[f"{budget}M"] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def peak(name: str, megabytes: int) -> None:
    model, x = network(name), images(THRESHOLD_IMAGES)
    spikecal.convert(model, x[:4], T=1, pipeline="lcp")  # let torch allocate what it keeps
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = resident("VmRSS")
    taken = seconds(lambda: spikecal.convert(model, x, T=64, pipeline="lcp", memory=megabytes * 2**20))
    print(json.dumps({"peak_growth_bytes": resident("VmHWM") - before, "seconds": taken}))


def resident(field: str) -> int:
    """Resident memory of this process in bytes: now (VmRSS) or at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def profile(name: str) -> None:
    model, x = network(name), images(THRESHOLD_IMAGES)
    spikecal.convert(model, x, T=T, pipeline="lcp")
    with torch.profiler.profile() as recorded:
        result = spikecal.convert(model, x, T=T, pipeline="lcp")
    print({phase: round(value, 3) for phase, value in result.timings.to_dict().items()})
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=40))


def machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*NETWORKS, "scaling", "memory"], action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=NETWORKS)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        return peak(arguments.peak[0], int(arguments.peak[1]))
    if arguments.profile:
        return profile(arguments.profile)
    wanted = arguments.part or [*NETWORKS, "scaling", "memory"]
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"machine": machine(), "T": T, "rounds": arguments.rounds}
    got_worse: list[str] = []
    for part in wanted:
        if part in NETWORKS:
            networks = found.setdefault("networks", {})
            before, row = networks.get(part, {}), measure(part, arguments.rounds)
            networks[part] = row
            got_worse += worse(part, before, row)
            print(
                f"{part:10s} LCP conversion / floor {row['convert_over_floor']:.2f} (by torch "
                f"{row['convert_over_floor_torch']:.2f})   T steps / T passes {row['run_over_passes']:.2f} (by torch "
                f"{row['run_over_passes_torch']:.2f})   {1e3 * row['seconds_per_stage']:.0f} ms per stage"
            )
        else:
            found[part] = scaling(arguments.rounds) if part == "scaling" else memory("resnet20")
            print(json.dumps({part: found[part]}, indent=1))
        RESULT.parent.mkdir(exist_ok=True)
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")
    print("\n".join(["worse than before:", *got_worse] if got_worse else ["nothing got worse"]))
    return None


if __name__ == "__main__":
    main()
