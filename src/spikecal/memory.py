"""How much memory there is, and sizes as people write them."""

import ctypes
import os
import re
from contextlib import suppress

from spikecal.errors import ConfigError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def free_memory() -> int:
    """Bytes that can be had without swapping."""
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


def parse_bytes(text: str) -> int:
    """`4G`, `512M`, `1000000` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{text!r} is not a size in bytes: write 512M or 4G")
    return int(float(match[1]) * UNITS[match[2].upper()])


def return_freed_memory() -> None:
    """Give memory that was freed back to the system: glibc keeps it where small values lie between large holes."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
