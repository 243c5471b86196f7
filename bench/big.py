"""Conversions at ImageNet's size by LCP: time over the floor, peak memory beside the plan; bench/results/big.json.

    python bench/big.py                            MobileNetV2 over its floor, then RegNetX-4GF at two numbers of images
    python bench/big.py --part regnet --images 32  the demonstration: some minutes

Weights are random with BN statistics of random images, as speed does not depend on them. RegNetX-4GF is converted for
T = 64 within 8 GB; from two numbers of images follow the slopes of time and of memory, and from those 1,024 images.
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
from spikecal.files import write_whole
from spikecal.zoo.models import build_model

RESULT = Path(__file__).parent / "results" / "big.json"
MOBILE, REGNET = "torchvision:mobilenet_v2", "torchvision:regnet_x_4gf"
MOBILE_T, MOBILE_IMAGES = 16, 128
REGNET_T, BUDGET, WANTED = 64, "8G", (32, 1024)


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name)[0].train()
    with torch.no_grad():
        model(images(8))
    return model.eval()


def over_floor(rounds: int) -> dict[str, Any]:
    """LCP on as many images for the bias as for the thresholds, over T + 2 passes of the ANN."""
    model, x = network(MOBILE), images(MOBILE_IMAGES).contiguous(memory_format=torch.channels_last)
    ann = fuse(model).to(memory_format=torch.channels_last)
    lcp = spikecal.LCP.with_images(MOBILE_IMAGES)
    with torch.no_grad():
        times = in_turn(
            rounds,
            floor=lambda: [ann(x) for _ in range(MOBILE_T + 2)],
            convert=lambda: spikecal.convert(model, x, T=MOBILE_T, pipeline=lcp),
        )
    return {"seconds": medians(times), "convert_over_floor": ratio(times["convert"], times["floor"])}


def within_budget(counts: list[int]) -> dict[str, Any]:
    """Seconds and growth of the peak for each number of images, and what their slopes make of more."""
    model, found = network(REGNET), {}
    for n in counts:
        x, before = images(n), resident_now()
        lcp = spikecal.LCP.with_images(n)
        taken = seconds(lambda x=x, lcp=lcp: spikecal.convert(model, x, T=REGNET_T, pipeline=lcp, memory=BUDGET))
        found[n] = {"seconds": taken, "peak_growth_bytes": resident("VmHWM") - before}
        print(n, found[n], flush=True)
    if len(counts) > 1:
        few, many = min(counts), max(counts)
        slope = (found[many]["seconds"] - found[few]["seconds"]) / (many - few)
        found["extrapolated_seconds"] = {n: found[many]["seconds"] + slope * (n - many) for n in WANTED}
    return {"T": REGNET_T, "budget": BUDGET, "images": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("mobilenet", "regnet"), action="append")
    parser.add_argument("--images", type=int, action="append", help="of RegNetX-4GF, 2 and 4 by default")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in given.part or ("mobilenet", "regnet"):
        made = over_floor(given.rounds) if part == "mobilenet" else within_budget(given.images or [2, 4])
        found[part] = made | {"machine": machine()}
        print(json.dumps({part: found[part]}, indent=1), flush=True)
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
