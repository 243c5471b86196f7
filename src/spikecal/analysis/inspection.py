"""Show what a file holds, without running it."""

import math
from pathlib import Path
from typing import Any

from spikecal.analysis.timing import Timing, search_of
from spikecal.errors import ConfigError, FileError
from spikecal.graph.stages import partition
from spikecal.snn.reading import Reader
from spikecal.snn.windows import Windows


def inspect(path: str | Path) -> dict[str, Any]:
    """The content of a file: T, when each network answers, pipeline, records, and the bytes of each parameter set.

    `neurons` are the file's own, with class and settings.
    """
    reader = Reader(path)
    info = {name: _finite(value) for name, value in reader.spec["info"].items() if name != "placements"}  # in timing
    return {
        **info,
        "path": str(path),
        "bytes": reader.path.stat().st_size,
        "T": reader.steps(),
        "timing": [found.to_dict() for found in _timings(reader)],
        "nodes": len(reader.spec["nodes"]),
        "operations": sorted({entry["op"] for entry in reader.spec["nodes"]}),
        "head": reader.spec["head"],
        "neurons": reader.spec.get("neurons", {}),
        "parameter_bytes": _parameter_bytes(reader),
    }


def _finite(value: Any) -> Any:
    """Plain data without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _timings(reader: Reader) -> list[Timing]:
    """When each network of a file answers. The graph is the same in all of them."""
    steps, origin = reader.steps(), reader.origin()
    graph = reader.graph(steps[0])
    made = []
    try:
        stages = partition(graph)
        for T in steps:
            windows = Windows(T, stages, reader.waits(T))
            latency = T + windows.latest(graph.outputs(), reader.readout() == "current")
            found = origin.placements.get(T)
            search = None if found is None else search_of(found, T, windows.waits)
            made.append(Timing(T, latency, windows.interval, windows.waits, search))
    except (ConfigError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(f"{reader.path} holds an invalid record of waits: {error}") from error
    return made


def _parameter_bytes(reader: Reader) -> dict[str, dict[str, int]]:
    """Bytes by kind, shared by all networks and for each one alone."""
    tables: dict[str, dict[str, str]] = reader.spec["parameters"]
    readers: dict[str, set[str]] = {}
    for T, table in tables.items():
        for key in table.values():
            readers.setdefault(key, set()).add(T)
    sets: dict[str, dict[str, int]] = {"shared": {}}
    for T, table in tables.items():
        for key, slot in {key: slot for slot, key in table.items()}.items():
            shared = len(readers[key]) == len(tables) and len(tables) > 1
            kind = slot.rpartition(":")[2]
            group = sets["shared"] if shared else sets.setdefault(f"T={T}", {})
            if not (shared and T != next(iter(tables))):
                group[kind] = group.get(kind, 0) + reader.bytes[key]
    return sets
