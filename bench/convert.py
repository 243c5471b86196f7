"""Speed of conversion and of running, as ratios to passes of the ANN measured in the same run.

    python bench/convert.py                      everything, into bench/results/convert.json; reports what got worse
    python bench/convert.py --part resnet20      one network (or another part), into the same file
    python bench/convert.py --profile resnet20   where the time of a conversion goes

With OMP_NUM_THREADS=1 times are seconds of the processor, which those of others on a shared machine are not part of.
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
from torch.utils.data import Dataset

import spikecal
from spikecal import Weights, kernels
from spikecal.files import write_whole
from spikecal.graph.ops import Conv
from spikecal.graph.stages import partition
from spikecal.memory import return_freed_memory
from spikecal.planning import peak_bytes
from spikecal.snn.execute import shapes_of
from spikecal.zoo.models import build_model

RESULT = Path(__file__).parent / "results" / "convert.json"
NETWORKS = ("vgg16", "resnet20", "resnet32", "resnet44", "resnet56")
T, BIAS_IMAGES, THRESHOLD_IMAGES = 16, 128, 1024
RATIOS = ("convert_over_floor", "run_over_passes", "iteration_over_convolutions")
NOISE = 1.05  # between two runs of the same code
STEP_IMAGES, STEP_MEMORY = 4, 384 * 2**20  # of the memory over T
LEARNING = ("resnet20", "vgg16")
FEW, MORE = 5, 20  # iterations: what a run of more takes longer is of iterations alone
CLOCK = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
EVALUATED = (2_000, 8_000, 32_000)  # images
PARTS = (*NETWORKS, "weights", "scaling", "memory", "steps", "evaluation")


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
    started = CLOCK()
    action()
    return CLOCK() - started


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


def weights(rounds: int) -> dict[str, Any]:
    """An iteration of weights calibration over the convolutions it needs: forward, and the slope by the weights."""
    found = {}
    for name in LEARNING:
        model, x = network(name), images(64)
        snn = spikecal.convert(model, x[:4], T=4, pipeline="baseline", records=False).snn
        batch = Weights().batch
        shapes = shapes_of(snn.graph, (x[:batch],))
        convolutions = [
            convolution(
                node.op, torch.randn(batch, *shapes[node.inputs[0]][1:]), torch.randn(batch, *shapes[node.name][1:])
            )
            for stage in snn.stages
            for node in stage.weighted()
        ]

        def floor(needed: list[Callable[[], None]] = convolutions) -> float:
            return seconds(lambda: [one() for _ in range(MORE - FEW) for one in needed])

        ratios, taken = [], []
        for number in range(rounds + 1):
            least, of = floor(), [solving(model, x, iterations) for iterations in (FEW, MORE)]
            if number:  # the first does not count
                ratios.append((of[1] - of[0]) / least)
                taken.append((of[1] - of[0]) / (MORE - FEW))
        found[name] = {
            "iteration_over_convolutions": statistics.median(ratios),
            "seconds_per_iteration": statistics.median(taken),
        }
        print(name, found[name], flush=True)
    return found


def convolution(op: Any, x: Tensor, slope: Tensor) -> Callable[[], None]:
    """One layer with weights, and the slope by its weights, on values laid out as calibration has them."""
    if isinstance(op, Conv):
        x, slope = (t.contiguous(memory_format=torch.channels_last) for t in (x, slope))
    weight = op.weight.detach().clone().requires_grad_()

    def run() -> None:
        value = torch.func.functional_call(op, {"weight": weight}, (x,))
        torch.autograd.grad(value, weight, slope)

    return run


def solving(model: nn.Module, x: Tensor, iterations: int) -> float:
    """Seconds in which a conversion learns the weights of all stages."""
    spent = []

    class Timed(Weights):
        label = "weights"

        def solve(self, view: Any) -> Any:
            updates: list[Any] = []
            spent.append(seconds(lambda: updates.append(super(Timed, self).solve(view))))
            return updates[0]

    pipeline = spikecal.Pipeline(sweeps=((Timed(iterations=iterations, images=len(x)),),))
    spikecal.convert(model, x, T=4, pipeline=pipeline)
    return sum(spent)


def steps() -> dict[str, Any]:
    """Peak memory of a conversion beside the bits of its spikes, up to 1,024 steps, each in a new process."""
    found = {}
    for T in (16, 64, 256, 1024):
        command = [sys.executable, __file__, "--peak-steps", str(T)]
        found[str(T)] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(T, found[str(T)], flush=True)
    return found


def peak_steps(T: int) -> None:
    """On few images of a small network; the budget has room for one call, and keeps few currents between runs."""
    torch.manual_seed(0)
    model, x = build_model("resnet20")[0].eval(), images(STEP_IMAGES)
    lcp = spikecal.LCP.with_images(STEP_IMAGES)
    spikecal.convert(model, x[:2], T=2, pipeline=lcp)  # what is allocated once and for all
    before = resident_now()
    result = spikecal.convert(model, x, T=T, pipeline=lcp, memory=STEP_MEMORY)
    graph = result.snn.graph
    bits = peak_bytes(partition(graph), shapes_of(graph, (x,)), T, STEP_IMAGES)
    print(json.dumps({"peak_growth_bytes": resident("VmHWM") - before, "between_stages_bytes": bits}))


class Unending(Dataset[tuple[Tensor, int]]):
    """A dataset of any number of images, made when they are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.full((3, 32, 32), number % 97 / 97), number % 10


def evaluation() -> dict[str, Any]:
    """Growth of the peak while ever more images are evaluated by a small network, beside the size of all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)).eval()
    snn = spikecal.convert(model, images(16), T=4, pipeline="lcp").snn
    spikecal.evaluate(snn, Unending(512))
    found = {}
    for count in EVALUATED:
        before = resident_now()
        spikecal.evaluate(snn, Unending(count))
        found[str(count)] = {"peak_growth_bytes": resident("VmHWM") - before, "image_bytes": 4 * 3 * 32 * 32 * count}
        print(count, found[str(count)], flush=True)
    return found


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
    before = resident_now()
    taken = seconds(lambda: spikecal.convert(model, x, T=64, pipeline="lcp", memory=megabytes * 2**20))
    print(json.dumps({"peak_growth_bytes": resident("VmHWM") - before, "seconds": taken}))


def resident_now() -> int:
    """Resident memory, from which on the highest is looked for anew."""
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


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
        "clock": CLOCK.__name__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=NETWORKS)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--peak-steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        return peak(arguments.peak[0], int(arguments.peak[1]))
    if arguments.peak_steps:
        return peak_steps(arguments.peak_steps)
    if arguments.profile:
        return profile(arguments.profile)
    wanted = arguments.part or PARTS
    whole: dict[str, Callable[[], Any]] = {
        "weights": lambda: weights(arguments.rounds),
        "scaling": lambda: scaling(arguments.rounds),
        "memory": lambda: memory("resnet20"),
        "steps": steps,
        "evaluation": evaluation,
    }
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    here = {"machine": machine(), "rounds": arguments.rounds}
    found = {**here, **found, "T": T}  # parts say where they were measured; those of before that do not, here
    got_worse: list[str] = []
    for part in wanted:
        if part in NETWORKS:
            networks = found.setdefault("networks", {})
            before, row = networks.get(part, {}), measure(part, arguments.rounds) | here
            networks[part] = row
            got_worse += worse(part, before, row)
            print(
                f"{part:10s} LCP conversion / floor {row['convert_over_floor']:.2f} (by torch "
                f"{row['convert_over_floor_torch']:.2f})   T steps / T passes {row['run_over_passes']:.2f} (by torch "
                f"{row['run_over_passes_torch']:.2f})   {1e3 * row['seconds_per_stage']:.0f} ms per stage"
            )
        else:
            before, found[part] = found.get(part, {}), whole[part]() | here
            for name in LEARNING if part == "weights" else ():
                got_worse += worse(name, before.get(name, {}), found[part][name])
            print(json.dumps({part: found[part]}, indent=1))
        RESULT.parent.mkdir(exist_ok=True)
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")
    print("\n".join(["worse than before:", *got_worse] if got_worse else ["nothing got worse"]))
    return None


if __name__ == "__main__":
    main()
