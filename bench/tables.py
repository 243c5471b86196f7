"""How long the tables of `spikecal reproduce` take with their defaults; writes bench/results/tables.json.

    python bench/tables.py [NAME …]     an hour; rerun to resume after the last finished table

Each runs as for a user, in an empty folder; nothing else should run meanwhile. `imagenet` and `detect` have
no defaults that run anywhere, and `fakedata` takes hours: they are not among them.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spikecal.files import write_whole
from spikecal.reproduce.cells import machine

RESULT = Path(__file__).parent / "results" / "tables.json"
NAMES = ("cifar", "acp", "samples", "lcp", "threshold", "clipround", "bn", "space", "time")


def main(names: list[str]) -> None:
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    minutes = found.setdefault("minutes", {})
    for name in names or [name for name in NAMES if name not in minutes]:
        minutes[name] = round(measured(name) / 60, 1)
        print(name, minutes[name], "min", flush=True)
        write_whole(RESULT, json.dumps({**found, "machine": machine()}, indent=1) + "\n")


def measured(name: str) -> float:
    """Seconds of one table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spikecal.cli.main", "reproduce", name, "-o", folder]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1:])
