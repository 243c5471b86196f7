"""The command on several ranks: what the launchers start, who prints and writes, and what is said of bad calls."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spikecal.cli.main import main

LOOPBACK = Path(__file__).parents[2] / "docs" / "how-to" / "distributed" / "loopback.sh"
CONVERT = [
    "convert",
    "resnet20",
    "-T",
    "2",
    "--pipeline",
    "lcp",
    "--calibration",
    "9",
    "--micro-batch",
    "4",
    "--test",
    "5",
]


def environment(**more: str) -> dict[str, str]:
    """That of a process whose `python` is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {**os.environ, **own, **more}


def free_port() -> str:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return str(tried.getsockname()[1])


def test_two_nodes_of_torchrun_write_what_one_process_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = subprocess.run(
        [LOOPBACK, *CONVERT, "-o", tmp_path / "several.snn"],
        env=environment(PORT=free_port()),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert several.returncode == 0, several.stderr
    assert main([*CONVERT, "-o", str(tmp_path / "one.snn")]) == 0
    assert (tmp_path / "several.snn").read_bytes() == (tmp_path / "one.snn").read_bytes()
    assert several.stdout.count("5 test images of demo") == 1  # one of them prints
    assert capsys.readouterr().out.count("5 test images of demo") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "absent.snn"], "absent.snn"),
        (["models"], "models runs in one process: start it without torchrun"),
    ],
)
def test_a_bad_call_is_one_line_of_the_first_rank(tmp_path: Path, arguments: list[str], said: str) -> None:
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "spikecal", *arguments],
            cwd=tmp_path,
            env=environment(**ranks, RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [2, 2]
    assert outputs[0][0] == outputs[1][0] == "" == outputs[1][1]
    (line,) = outputs[0][1].splitlines()
    assert line.startswith("error: ") and said in line
