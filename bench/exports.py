"""Exports of the embedded ResNet-20 in every installed simulator: bench/results/exports.json, docs/how-to/export.md.

    python bench/exports.py DIR     rerun to resume after the last finished row

`make verify-exports` runs it in one environment with SpikingJelly and ONNX Runtime and in another one with sinabs: they
want different versions of nir. Networks are calibrated by LCP on 128 embedded images and kept in DIR, so that both
environments run the same ones. DIR has the names of finished rows, too, so that a new one begins all over again.
Networks run on 100 test images; as they are, the first one and NIR files on 500. Every spike is compared in single
precision; in double precision on 50 of them. `accuracy` has the network and its exact export on 1,000 images.
"""

import json
import platform
import re
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spikecal
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.export.export import make_netlist
from spikecal.export.grid import on_grid
from spikecal.export.simulate import run_netlist
from spikecal.export.simulators import SIMULATORS
from spikecal.files import write_whole
from spikecal.zoo.models import load_model

RESULT = Path(__file__).parent / "results" / "exports.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "export.md"
T, CALIBRATION, TESTED = 8, 128, 1000
IMAGES, ANSWERS = 100, 500  # test images, and more for the answers of the first network and of NIR files
LATENCIES = {"resnet20, T=8": None, "resnet20, T=8, latency 18": 18}
KINDS = {False: "as it is", True: "exact"}
SUFFIXES = {"nir": ".nir", "onnx": ".onnx", "spikingjelly": ".py"}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}, "accuracy": {}}
    finished = folder / "finished.json"
    done = {*json.loads(finished.read_text())} & {*found["rows"]} if finished.exists() else set()
    images, labels = tested(TESTED)
    for exact, (name, latency), to in product((False, True), LATENCIES.items(), SIMULATORS):
        wanted = {s.name: f"{name}, {KINDS[exact]}, {to}, {s.name}" for s in SIMULATORS[to] if s.installed}
        if done.issuperset(wanted.values()):
            continue
        snn = converted(folder / f"{name}.snn", latency)
        count = ANSWERS if not exact and (latency is None or to == "nir") else IMAGES
        for verdict, packages in verified(snn, to, exact, images[:count], labels[:count]):
            found["rows"][wanted[verdict["simulator"]]] = {**verdict, "packages": packages}
        if exact and latency is None and name not in found["accuracy"]:
            found["accuracy"][name] = accuracies(snn, images, labels)
        found["machine"] = platform.machine()
        write_whole(RESULT, json.dumps(found, indent=1, sort_keys=True) + "\n")
        page = re.sub(
            r"(<!-- exports -->\n).*?(<!-- end -->)", rf"\1\n{table(found)}\n\2", PAGE.read_text(), flags=re.DOTALL
        )
        write_whole(PAGE, page)
        done.update(wanted.values())
        write_whole(finished, json.dumps(sorted(done), indent=1) + "\n")
    wrong = [row for row in sorted(done) if not found["rows"][row]["faithful"]]
    if wrong:
        raise SystemExit(f"not faithful: {'; '.join(wrong)}")


def tested(count: int) -> tuple[Tensor, Tensor]:
    _, card = load_model("resnet20", None)
    test = subset(load_data("demo", "test"), count, 0)
    assert test.labels is not None
    return torch.cat([batch for batch, _ in Prepared(test, card).batches(100)]), test.labels


def converted(path: Path, latency: int | None) -> spikecal.SpikingNetwork:
    if not path.exists():
        network, card = load_model("resnet20", None)
        calibration = Prepared(subset(load_data("demo", "train"), CALIBRATION, 0), card)
        result = spikecal.convert(network, calibration, T=T, pipeline=spikecal.LCP, latency=latency)
        result.describe(card=card.to_dict())
        result.save(path)
    return spikecal.load(path)


def accuracies(snn: spikecal.SpikingNetwork, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """Of the network itself and of what is exported, and how many answers are the same."""
    netlist = on_grid(make_netlist(snn, images[:1])).to(torch.float)
    own = torch.cat([snn(part).argmax(1) for part in images.split(100)])
    outputs = [snn.export_outputs(run_netlist(netlist, part).outputs) for part in images.split(50)]
    exported = torch.cat(outputs).argmax(1)
    return {
        "images": len(images),
        "network": int((own == labels).sum()),
        "export": int((exported == labels).sum()),
        "agreeing": int((own == exported).sum()),
        "latency": snn.latency,
    }


def verified(
    snn: spikecal.SpikingNetwork, to: str, exact: bool, images: Tensor, labels: Tensor
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Verdicts, each with the versions of the packages that it was found with."""
    packages = {simulator.name: simulator.packages for simulator in SIMULATORS[to]}
    with tempfile.TemporaryDirectory() as folder:
        made = snn.export(Path(folder) / f"network{SUFFIXES[to]}", exact=exact)
        begun = time.process_time()
        verdicts = [verdict.to_dict() for verdict in made.verify(images, labels)]
        print(to, exact, verdicts, f"{time.process_time() - begun:.0f} s of a core", flush=True)
    names = [("torch", *packages[verdict["simulator"]]) for verdict in verdicts]
    return [(verdict, {n: version(n) for n in of}) for verdict, of in zip(verdicts, names, strict=True)]


def table(found: dict[str, Any]) -> str:
    lines = [
        "| Network | Export | In | Spikes | Differing in float32 | In float64 | Same answers | Accuracy % | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in sorted(found["rows"].items()):
        network, kind, to, simulator = key.rsplit(", ", 3)
        seen = row["traced"]
        double = f"{row['double']:,} of {seen['spikes'] / 1e6:.1f} million" if row["double"] is not None else ""
        right = f"{100 * row['right'] / row['images']:.1f} (here {100 * row['expected'] / row['images']:.1f})"
        said = "faithful" if row["faithful"] else "not faithful"
        cells = [
            network, f"{to}, {kind}", f"{simulator} {row['packages'][simulator]}", f"{row['spikes'] / 1e6:.1f} million",
            f"{row['differing']:,}", double, f"{row['agreeing']} of {row['images']}", right, said,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if found["accuracy"]:
        lines += ["", "| Network | float32 changes | Exact sums change | Same answers | Accuracy % |"]
        lines.append("|---|---|---|---|---|")
    for name, of in found["accuracy"].items():
        seen = next(row["traced"] for key, row in found["rows"].items() if key.startswith(f"{name}, exact"))
        changed = " | ".join(f"{100 * seen[kind] / seen['spikes']:.3f} %" for kind in ("rounding", "rounded"))
        right = f"{100 * of['export'] / of['images']:.1f} (network {100 * of['network'] / of['images']:.1f})"
        lines.append(f"| {name} | {changed} | {of['agreeing']:,} of {of['images']:,} | {right} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
