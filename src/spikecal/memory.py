"""Free memory, and sizes as people write them."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from spikecal.errors import ConfigError

resource: ModuleType | None
try:
    import resource
except ImportError:  # not on Windows
    resource = None

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
NO_LIMIT = 2**62
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
NEVER, LARGEST = 2**31 - 1, 2**25  # the largest number it accepts, and the largest value that it keeps by default
CGROUPS = {  # by the controller in /proc: the folder of its groups, and their files for limit and usage
    "": ("/sys/fs/cgroup", ("memory.max", "memory.current")),
    "memory": ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}


def free_memory(device: Any = None, processes: int = 1) -> int:
    """Free bytes on a torch device; on a CPU without swapping, within the limits of process and container.

    With `processes`, the share of one process of that many at work on the same task.
    """
    kind = getattr(device, "type", "cpu")
    if kind in ("cuda", "xpu"):
        return int(getattr(import_module("torch"), kind).mem_get_info(device)[0])
    if kind == "mps":
        mps = import_module("torch").mps
        return max(0, int(mps.recommended_max_memory()) - int(mps.driver_allocated_memory()))
    return max(0, min(min(_free_on_machine(), _free_in_container()) // processes, _free_in_process()))


def _free_on_machine() -> int:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 4 * 2**30


def _free_in_container() -> int:
    """What the control groups of this process leave it, version 1 or 2; cached files count as free."""
    least = NO_LIMIT
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, (limit, used) = CGROUPS[controllers]
            group = Path(top, name.lstrip("/"))
            for folder in (group, *group.parents[: len(group.parts) - len(Path(top).parts)]):
                with suppress(OSError, ValueError):  # a group without a limit holds "max", or lacks the file
                    free = int((folder / limit).read_text()) - int((folder / used).read_text()) + _cached(folder)
                    least = min(least, free)
    return least


def _cached(group: Path) -> int:
    facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(facts.get("inactive_file", 0))


def _free_in_process() -> int:
    """What `ulimit -v` leaves."""
    try:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0] if resource is not None else -1
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if limit >= 0 else 0
    except (OSError, ValueError):
        return NO_LIMIT
    return limit - used if limit >= 0 else NO_LIMIT


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is about memory: torch has no class for that on the CPU."""
    said = str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "allocate memory" in said


def in_words(count: float) -> str:
    """Bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def parse_bytes(text: str) -> int:
    """`4G`, `512M`, `1000000` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None or not 0 < float(match[1]) < NO_LIMIT:
        raise ConfigError(f"{text!r} is not a size in bytes: write 512M or 4G")
    return int(float(match[1]) * UNITS[match[2].upper()])


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, glibc keeps freed memory for later requests; at the end it returns it to the system.

    A stage frees hundreds of megabytes that the next one asks for. Left alone, glibc returns part of
    them, in some processes more than in others, and the system fills every page with zeros again.
    """
    _return_above(NEVER)
    try:
        yield
    finally:
        _return_above(2 * LARGEST)  # as glibc does once a value of that size was freed
        return_freed_memory()


def _return_above(free: int) -> None:
    """How many free bytes glibc may hold. Values above `LARGEST` are always given back."""
    with suppress(OSError, AttributeError, TypeError):  # elsewhere there is no such thing
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGEST)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, free)


def return_freed_memory() -> None:
    """Return freed memory to the system: glibc keeps large holes with small values between them."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
