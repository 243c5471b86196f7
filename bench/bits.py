"""Accuracy of the embedded ResNet-20 in whole numbers: bench/results/bits.json, and a table in docs/how-to/integers.md.

python bench/bits.py
"""

import json
import re
from pathlib import Path
from typing import Any, get_args

import torch

import spikecal
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.export.export import export_outputs, make_netlist
from spikecal.export.integers import Per, quantised
from spikecal.export.planes import frames
from spikecal.export.simulate import simulate
from spikecal.files import write_whole
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "bits.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "integers.md"
T, CALIBRATION, IMAGES, BITS = 16, 128, 500, (4, 5, 6, 8)


def main() -> None:
    network, card = load_model("resnet20", None)
    calibration = Prepared(subset(load_data("demo", "train"), CALIBRATION, 0), card)
    test = subset(load_data("demo", "test"), IMAGES, 0)
    images = torch.cat([batch for batch, _ in Prepared(test, card).batches(100)])
    again = torch.stack([calibration[i] for i in range(64)])
    snn = spikecal.convert(network, calibration, T=T, pipeline=spikecal.LCP).snn
    snn.origin = snn.origin.changed(card=card.to_dict())
    netlist = make_netlist(snn)
    found: dict[str, Any] = {"T": T, "images": IMAGES, "float": _right(snn(images), test.labels), "rows": {}}
    for bits in BITS:
        for per in get_args(Per):
            made = quantised(netlist, bits, per, again)
            flat = made.netlist.to(torch.float)
            answers = [
                export_outputs(snn, simulate(flat, frames(made.image(part), T, snn.latency, 0)).outputs)
                for part in images.split(50)
            ]
            found["rows"][f"{bits}, {per}"] = _right(torch.cat(answers), test.labels)
            print(bits, per, found["rows"][f"{bits}, {per}"], flush=True)
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")
    page = re.sub(r"(<!-- bits -->\n).*?(<!-- end -->)", rf"\1\n{table(found)}\n\2", PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)


def table(found: dict[str, Any]) -> str:
    lines = [f"| accuracy %, T = {found['T']} | per channel | per layer |", "|---|---|---|"]
    for bits in BITS:
        rows = [f"{100 * found['rows'][f'{bits}, {per}']:.1f}" for per in get_args(Per)]
        lines.append(f"| {bits} bits | {' | '.join(rows)} |")
    return "\n".join([*lines, f"| float | {100 * found['float']:.1f} | {100 * found['float']:.1f} |", ""])


def _right(answers: torch.Tensor, labels: torch.Tensor | None) -> float:
    assert labels is not None
    return float((answers.argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
