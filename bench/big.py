"""Conversions at ImageNet's size by LCP: plans, time over the floor, peak memory; bench/results/big.json.

    python bench/big.py                            everything: half an hour or more
    python bench/big.py --part plans               what 1,024 images and T = 64 need: seconds
    python bench/big.py --part regnet --images 4 --images 8    a conversion at two numbers of images

Weights are random with BN statistics of random images, as speed does not depend on them. RegNetX-4GF is converted for
T = 64 within 8 GB; from two numbers of images follow the slopes of time and of memory, and from those 1,024 images.
With OMP_NUM_THREADS=1 times are seconds of the processor, which those of others on a shared machine are not part of.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from convert import in_turn, machine, medians, ratio, resident, resident_now, seconds
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import spikecal
from spikecal.conversion import COUNTED
from spikecal.errors import ConfigError
from spikecal.files import write_whole
from spikecal.graph.joints import staged
from spikecal.kernels import described
from spikecal.memory import parse_bytes
from spikecal.phases import Context
from spikecal.planning import Needs, check_room, needs
from spikecal.progress import Silent
from spikecal.zoo.models import build_model

RESULT = Path(__file__).parent / "results" / "big.json"
MOBILE, REGNET, RESNET = "torchvision:mobilenet_v2", "regnetx4gf", "resnet34-imagenet"
MOBILE_T, MOBILE_IMAGES = 16, (16, 128)
REGNET_T, BUDGET, WANTED = 64, "8G", (32, 1024)
PARTS = ("plans", "mobilenet", "regnet")
LITTLE = 4 * 2**30  # free bytes, of memory or of a disk, that refuse some plans


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name)[0].train()
    with torch.no_grad():
        model(images(8))
    return model.eval()


def plans() -> dict[str, Any]:
    """What is said before a conversion starts: its plan, and how it is refused with little memory or disk."""
    found = {}
    for name in (MOBILE, REGNET, RESNET):
        x = images(1)
        context = Context(
            ann=staged(build_model(name)[0].eval(), (x,)),
            images=[(x,)] * max(WANTED),
            pipeline=spikecal.LCP.with_images(max(WANTED)),
            seed=0,
            micro_batch=None,
            memory=int(COUNTED * parse_bytes(BUDGET)),
            records=True,
            progress=Silent(),
            workdir=None,
        )
        need = needs(context, REGNET_T)
        found[name] = {
            "memory_bytes": need.memory, "disk_bytes": need.disk, "one_call_bytes": need.working,
            "little_disk": refusal(need, need.memory, LITTLE),
            "little_memory": refusal(need, need.working // 2, need.disk),
        }  # fmt: skip
    return {"T": REGNET_T, "budget": BUDGET, "images": max(WANTED), "networks": found}


def refusal(need: Needs, memory: int, disk: int) -> str | None:
    """What a conversion with these free bytes is refused with."""
    try:
        check_room(need, memory, disk)
    except ConfigError as error:
        return str(error)
    return None


def over_floor(rounds: int, count: int) -> dict[str, Any]:
    """LCP on as many images for the bias as for the thresholds, over T + 2 passes of the ANN."""
    model, x = network(MOBILE), images(count).contiguous(memory_format=torch.channels_last)
    ann = fuse(model).to(memory_format=torch.channels_last)
    lcp = spikecal.LCP.with_images(count)
    with torch.no_grad():
        times = in_turn(
            rounds,
            floor=lambda: [ann(x) for _ in range(MOBILE_T + 2)],
            convert=lambda: spikecal.convert(model, x, T=MOBILE_T, pipeline=lcp),
        )
    of = {"T": MOBILE_T, "rounds": rounds, "loops": described()}
    return of | {"seconds": medians(times), "convert_over_floor": ratio(times["convert"], times["floor"])}


def within_budget(counts: list[int]) -> dict[str, Any]:
    """Seconds and growth of the peak for each number of images, and what their slopes make of more."""
    model, found, further = network(REGNET), {}, {}
    spikecal.convert(model, images(1), T=2, pipeline=spikecal.LCP)  # what is compiled and allocated once and for all
    for n in counts:
        x, before = images(n), resident_now()
        lcp = spikecal.LCP.with_images(n)
        taken = seconds(lambda x=x, lcp=lcp: spikecal.convert(model, x, T=REGNET_T, pipeline=lcp, memory=BUDGET))
        found[n] = {"seconds": taken, "peak_growth_bytes": resident("VmHWM") - before}
        print(n, found[n], flush=True)
    if len(counts) > 1:
        few, many = min(counts), max(counts)
        slope = (found[many]["seconds"] - found[few]["seconds"]) / (many - few)
        further = {"extrapolated_seconds": {n: found[many]["seconds"] + slope * (n - many) for n in WANTED}}
    return {"T": REGNET_T, "budget": BUDGET, "loops": described(), "images": found, **further}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument(
        "--images", type=int, action="append", help="of MobileNetV2, 16 and 128 by default, or of RegNetX-4GF, 2 and 4"
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    measures = {
        "plans": plans,
        "mobilenet": lambda: {str(n): over_floor(given.rounds, n) for n in given.images or MOBILE_IMAGES},
        "regnet": lambda: within_budget(given.images or [2, 4]),
    }
    for part in given.part or PARTS:
        found[part] = measures[part]() | {"machine": machine()}
        print(json.dumps({part: found[part]}, indent=1), flush=True)
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
