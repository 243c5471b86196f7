"""The accuracy that AUTO reaches within T steps, and with some steps of waiting; writes bench/results/auto.json.

    python bench/auto.py DATA [NETWORK=FILE …]     rerun to resume after the last finished row

DATA is the folder with CIFAR-10 (`spikecal datasets get cifar10 --data-root DATA`). Networks that are not in the
package are named with their weights; those without a file are left out. Calibrated on 1,024 training images without
labels, tested on the first 2,000 test images: `below` is how many points a network is below its ANN. LCP and PC stand
beside AUTO at every T; `gain` is what AUTO gains over the better of them, in points, and `error` its standard error,
paired over images.
"""

import json
import sys
from pathlib import Path
from typing import Any

from waits import CALIBRATION, EMBEDDED, TESTED, Subject, cifar, facts_of, unpacked

import spikecal
from spikecal.files import write_whole
from spikecal.reproduce.cells import machine

RESULT = Path(__file__).parent / "results" / "auto.json"
# network -> its T, and how much longer than T the answer may take
ROWS: dict[str, tuple[tuple[int, ...], int]] = {
    "resnet20": ((4, 8, 2, 16, 32), 10),
    "vgg16-half": ((4, 8, 2, 16, 32), 7),
    "resnet56": ((16, 8, 32), 24),
    "resnet20-nobn": ((4, 8), 10),
}


def main(root: Path, files: dict[str, Path]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    found |= {"calibration": CALIBRATION, "tested": TESTED, "machine": machine()}
    for name, (steps, more) in ROWS.items():
        if name not in files and name not in EMBEDDED:
            continue
        one = cifar(name, files.get(name), root)
        for T in steps:
            for pipeline in ("lcp", "pc"):
                put(found, f"{name}, {pipeline}, T={T}", one, {"T": T, "pipeline": pipeline})
            put(found, f"{name}, auto, T={T}", one, {"T": T})
            put(found, f"{name}, auto, T={T}, latency {T + more}", one, {"T": T, "latency": T + more})


def put(found: dict[str, Any], row: str, one: Subject, settings: dict[str, Any]) -> None:
    """Measure a row, unless it is there, with what it gains over the better of LCP and PC at its T."""
    rows = found["rows"]
    if row in rows:
        return
    result = spikecal.convert(one.model, one.seen, records=False, **settings)
    facts = facts_of(one, result.snn)
    T = settings["T"]
    if T in result.origin.choices:
        choice = result.origin.choices[T]
        facts |= {"kept": choice["kept"], "why": choice["why"], "tried": [trial["name"] for trial in choice["tried"]]}
        name = row.split(",")[0]
        rival = min((rows[f"{name}, {other}, T={T}"] for other in ("lcp", "pc")), key=lambda other: other["below"])
        gains = 100 * (unpacked(facts["answers"]) - unpacked(rival["answers"]))
        facts |= {"gain": float(gains.mean()), "error": float(gains.std()) / len(gains) ** 0.5}
    rows[row] = {**facts, "seconds": sum(result.timings.to_dict().values())}
    print(row, {key: value for key, value in rows[row].items() if key != "answers"}, flush=True)
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    named = [argument.partition("=") for argument in sys.argv[2:]]
    main(Path(sys.argv[1]), {name: Path(file) for name, _, file in named})
