"""Accuracy of the embedded ResNet-20 in integers: bench/results/bits.json, and a table in docs/how-to/integers.md.

    python bench/bits.py     rerun to resume after the last finished row

`loss` is how many points a network in integers loses relative to floats, and `error` its standard error, paired
over images.
"""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

import spikecal
from spikecal.calibration.divergence import standard_error
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.export.export import export_outputs, make_netlist
from spikecal.export.integers import Per, quantised
from spikecal.export.simulate import run_netlist
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "bits.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "integers.md"
T, CALIBRATION, IMAGES, BITS = 16, 128, 100, (4, 5, 6, 8)


def main() -> None:
    network, card = load_model("resnet20", None)
    calibration = Prepared(subset(load_data("demo", "train"), CALIBRATION, 0), card)
    test = subset(load_data("demo", "test"), IMAGES, 0)
    images = torch.cat([batch for batch, _ in Prepared(test, card).batches(100)])
    again = torch.stack([calibration[i] for i in range(64)])
    snn = spikecal.convert(network, calibration, T=T, pipeline=spikecal.LCP).snn
    snn.origin = snn.origin.changed(card=card.to_dict())
    netlist = make_netlist(snn)
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found |= {"T": T, "images": IMAGES, "machine": machine()}
    own = right(torch.cat([snn(part) for part in images.split(50)]), test.labels)
    found["float"] = 100 * float(own.mean())
    rows = found.setdefault("rows", {})
    for bits, per in product(BITS, get_args(Per)):
        if f"{bits}, {per}" not in rows:
            made = quantised(netlist, bits, per, again)
            flat = made.netlist.to(torch.float)
            outputs = [export_outputs(snn, run_netlist(flat, made.image(part)).outputs) for part in images.split(50)]
            answers = right(torch.cat(outputs), test.labels)
            losses = 100 * (own - answers)
            rows[f"{bits}, {per}"] = {
                "accuracy": 100 * float(answers.mean()), "loss": float(losses.mean()), "error": standard_error(losses),
            }  # fmt: skip
            print(bits, per, rows[f"{bits}, {per}"], flush=True)
            write_whole(RESULT, json.dumps(found, indent=1) + "\n")
            shown = rf"\1\n{table(found)}\n\2"
            page = re.sub(r"(<!-- bits -->\n).*?(<!-- end -->)", shown, PAGE.read_text(), flags=re.DOTALL)
            write_whole(PAGE, page)


def table(found: dict[str, Any]) -> str:
    """Of the rows that are finished."""
    kinds = get_args(Per)
    lines = ["| weights | per channel, % | points lost | per layer, % | points lost |", "|---|---|---|---|---|"]
    for bits in BITS:
        rows = [found["rows"].get(f"{bits}, {per}") for per in kinds]
        cells = [f"{row['accuracy']:.1f} | {row['loss']:.1f} ± {row['error']:.1f}" if row else " | " for row in rows]
        lines += [f"| {bits} bits | {' | '.join(cells)} |"] if any(rows) else []
    return "\n".join([*lines, f"| float | {found['float']:.1f} | | {found['float']:.1f} | |", ""])


def right(answers: Tensor, labels: Tensor | None) -> Tensor:
    assert labels is not None
    return (answers.argmax(1) == labels).double()


if __name__ == "__main__":
    main()
