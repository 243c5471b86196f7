"""Work in child processes that are killed, and the programs that do it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None], seconds: float | None) -> bool:
    """Do `work` in a child, which is killed after `seconds`; whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed")
    return os.WIFEXITED(status)


def report_of(program: Path, *arguments: object) -> Any:
    """What a program, such as one that kills its children, prints as JSON."""
    found = subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)
