"""The cost of AUTO's efforts, as a multiple of LCP's; writes bench/results/effort.json.

    python bench/effort.py DATA     rerun to resume after the last finished row

DATA is the folder with CIFAR-10. The ResNet-20 in the package is converted with 1,024 images. Seconds are those of the
processor, with one thread, so that whatever else runs on the machine does not count.
"""

import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from waits import Subject, cifar

import spikecal
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine

RESULT = Path(__file__).parent / "results" / "effort.json"
STEPS = (2, 4, 8, 16)
WAYS: dict[str, dict[str, Any]] = {
    "LCP": {"pipeline": "lcp"},
    "low": {"effort": "low"},
    "normal": {"effort": "normal"},
    "normal, latency T+10": {"effort": "normal", "latency": "+10"},
}


def main(root: Path) -> None:
    torch.set_num_threads(1)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {"seconds": {}}
    found["machine"] = machine()
    one = cifar("resnet20", None, root)
    spikecal.convert(one.model, one.seen[:64], T=2, pipeline="lcp")  # loops are compiled or loaded
    for T, (way, settings) in product(STEPS, WAYS.items()):
        row = found["seconds"].setdefault(str(T), {})
        if way not in row:
            row[way] = seconds(one, T, settings)
            write_whole(RESULT, json.dumps(found, indent=1) + "\n")
            print(f"T={T}, {way}: {row[way]:.1f} s, {row[way] / row['LCP']:.1f} times LCP's", flush=True)


def seconds(one: Subject, T: int, settings: dict[str, Any]) -> float:
    start = time.process_time()
    spikecal.convert(one.model, one.seen, T=T, records=False, **settings)
    return time.process_time() - start


if __name__ == "__main__":
    main(Path(sys.argv[1]))
