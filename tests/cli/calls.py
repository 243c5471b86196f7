"""Commands as the tests call them."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
                        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return net, Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
"""

Run = Callable[..., tuple[int, str, str]]  # arguments -> exit code, standard output, standard error


def fails(result: tuple[int, str, str], reason: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error that gives the reason."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err


def on_terminal(folder: Path, *arguments: object) -> str:
    """What a command shows on a terminal; it must not fail."""
    command = [sys.executable, "-m", "spikecal.cli.main", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "150"}
    main_end, other_end = pty.openpty()
    shown = b""
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=other_end, stderr=other_end) as process:
        os.close(other_end)
        while True:
            try:
                shown += os.read(main_end, 4096)
            except OSError:  # the other end is closed: the command has ended
                break
    os.close(main_end)
    assert process.returncode == 0, shown.decode()
    return shown.decode()
