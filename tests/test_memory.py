"""What glibc does with freed memory, in a process of its own: others have holes in theirs."""

import json
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource
from pathlib import Path

import torch

from spikecal.memory import freed_memory_kept


def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values = [torch.zeros(2**20) for _ in range(32)]  # 128 MB
    del values
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


start, found = held(), {}
with freed_memory_kept():
    found["first"], _, found["again"], found["inside"] = faults(), faults(), faults(), held() - start
print(json.dumps({**found, "after": held() - start}))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep")
def test_freed_memory_is_kept_for_what_comes_next_and_then_given_back() -> None:
    found = json.loads(subprocess.check_output([sys.executable, "-c", PROGRAM], text=True))
    assert found["again"] < found["first"] / 10 + 100
    assert found["inside"] > 120 * 2**20 > 12 * 2**20 > found["after"]
