"""Work in child processes that are killed, and the programs that do it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None], seconds: float | None) -> bool:
    """Do `work` in a child, which is killed after `seconds` of processor time; whether it came to its end.

    Not of time on the wall: where other programs take the processor, all moments would be at the beginning of the work.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    if seconds is not None:
        while _used(pid) < seconds and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed")
    return os.WIFEXITED(status)


def _used(pid: int) -> float:
    """Seconds of processor time of a process, by the clock that Linux has for it."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0  # it has ended


def used_by_children(work: Callable[[], object]) -> float:
    """Seconds of processor time of the children that `work` waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report_of(program: Path, *arguments: object) -> Any:
    """What a program, such as one that kills its children, prints as JSON."""
    found = subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=1800,  # on a busy machine
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)
