"""Accuracy of the embedded ResNet-20 in integers: bench/results/bits.json, and a table in docs/how-to/integers.md.

python bench/bits.py     rerun to resume after the last finished row
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
from spikecal.export.simulate import run_netlist
from spikecal.files import write_whole
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "bits.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "integers.md"
T, CALIBRATION, IMAGES, BITS = 16, 128, 500, (4, 5, 6, 8, 16)


def main() -> None:
    network, card = load_model("resnet20", None)
    calibration = Prepared(subset(load_data("demo", "train"), CALIBRATION, 0), card)
    test = subset(load_data("demo", "test"), IMAGES, 0)
    images = torch.cat([batch for batch, _ in Prepared(test, card).batches(100)])
    again = torch.stack([calibration[i] for i in range(64)])
    snn = spikecal.convert(network, calibration, T=T, pipeline=spikecal.LCP).snn
    snn.origin = snn.origin.changed(card=card.to_dict())
    netlist = make_netlist(snn)
    found: dict[str, Any] = (
        json.loads(RESULT.read_text()) if RESULT.exists() else {"T": T, "images": IMAGES, "rows": {}}
    )
    if "float" not in found:
        found["float"] = _right(torch.cat([snn(part) for part in images.split(100)]), test.labels)
    for bits in BITS:
        for per in get_args(Per):
            if f"{bits}, {per}" in found["rows"]:
                continue
            made = quantised(netlist, bits, per, again)
            flat = made.netlist.to(torch.float)
            answers = [export_outputs(snn, run_netlist(flat, made.image(part)).outputs) for part in images.split(50)]
            found["rows"][f"{bits}, {per}"] = _right(torch.cat(answers), test.labels)
            print(bits, per, found["rows"][f"{bits}, {per}"], flush=True)
            write_whole(RESULT, json.dumps(found, indent=1) + "\n")
            shown = rf"\1\n{table(found)}\n\2"
            page = re.sub(r"(<!-- bits -->\n).*?(<!-- end -->)", shown, PAGE.read_text(), flags=re.DOTALL)
            write_whole(PAGE, page)


def table(found: dict[str, Any]) -> str:
    """Of the rows that are finished."""
    rows, kinds = found["rows"], get_args(Per)
    lines = [f"| accuracy %, T = {found['T']} | per channel | per layer |", "|---|---|---|"]
    for bits in BITS:
        cells = [f"{100 * rows[key]:.1f}" if (key := f"{bits}, {per}") in rows else "" for per in kinds]
        lines += [f"| {bits} bits | {' | '.join(cells)} |"] if any(cells) else []
    return "\n".join([*lines, f"| float | {100 * found['float']:.1f} | {100 * found['float']:.1f} |", ""])


def _right(answers: torch.Tensor, labels: torch.Tensor | None) -> float:
    assert labels is not None
    return float((answers.argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
