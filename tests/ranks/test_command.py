"""The command on several ranks: what the launchers start, who prints and writes, and errors for bad calls."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from spikecal.cli.main import app, main

SCRIPTS = Path(__file__).parents[2] / "docs" / "how-to" / "distributed"
FEW = ["-T", "2", "--pipeline", "lcp", "--calibration", "9", "--micro-batch", "4", "--test", "5"]
CONVERT = ["convert", "resnet20", *FEW]
SLURM = {  # what the script needs of it, for two nodes that are both this machine
    "scontrol": "echo 127.0.0.1",
    "srun": 'shift 2; SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" && wait $!',
    "torchrun": 'exec python -m torch.distributed.run "$@"',
}


def environment(**more: str) -> dict[str, str]:
    """The environment of a process whose `python` is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {**os.environ, **own, **more}


def free_port() -> str:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return str(tried.getsockname()[1])


def programs(folder: Path, scripts: dict[str, str]) -> str:
    """A path on which these are found first."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{environment()['PATH']}"


@pytest.mark.parametrize("script", ["loopback.sh", "slurm.sh"])
def test_two_nodes_of_torchrun_write_what_one_process_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here[1-2]", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    several = subprocess.run(
        [SCRIPTS / script, *CONVERT, "-o", tmp_path / "several nodes.snn"],
        env=environment(**slurm, PORT=free_port()) | {"PATH": programs(tmp_path, SLURM)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert several.returncode == 0, several.stderr
    assert main([*CONVERT, "-o", str(tmp_path / "one.snn")]) == 0
    assert (tmp_path / "several nodes.snn").read_bytes() == (tmp_path / "one.snn").read_bytes()
    assert several.stdout.count("5 test images of demo") == 1  # one of them prints
    assert capsys.readouterr().out.count("5 test images of demo") == 1


def test_pods_of_kubernetes_find_each_other(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((SCRIPTS / "kubernetes.yaml").read_text())
    spec, (container,) = job["spec"], job["spec"]["template"]["spec"]["containers"]
    started = subprocess.run(
        [*container["command"], *container["args"]],
        env=environment(JOB_COMPLETION_INDEX="1") | {"PATH": programs(tmp_path, {"torchrun": "printf '%s\\n' \"$@\""})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    launcher, words = (text.split("\n") for text in started.stdout.strip().split("\n-m\nspikecal\n"))
    given = dict(zip(launcher[::2], launcher[1::2], strict=True))
    name, domain = job["metadata"]["name"], service["metadata"]["name"]
    assert int(given["--nnodes"]) == spec["completions"] == spec["parallelism"] and given["--node-rank"] == "1"
    assert given["--master-addr"] == f"{name}-0.{domain}" and spec["template"]["spec"]["subdomain"] == domain
    assert service["spec"]["selector"] == {"job-name": name} and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["ports"][0]["port"] == int(given["--master-port"])
    assert container["resources"]["requests"]["cpu"] == int(given["--nproc-per-node"])
    verb: Any = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    assert verb.make_context(words[0], words[1:]).params["workdir"]  # a restarted pod resumes
    (mounted,) = container["volumeMounts"]
    assert all(f"{mounted['mountPath']}/" in word for word in words if "/" in word)


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


def ranks_of(launcher: int) -> dict[str, int]:
    """The processes that torchrun has started, by their rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    variables = {int(pid): Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in children}
    ranks = {pid: [word[5:] for word in words if word.startswith("RANK=")] for pid, words in variables.items()}
    return {rank: pid for pid, named in ranks.items() for rank in named}


@pytest.mark.parametrize("lost", ["0", "1"])
def test_one_other_rank_reports_a_rank_that_torchrun_lost(tmp_path: Path, lost: str) -> None:
    long = ["-T", "16", "-T", "32", "--pipeline", "pc", "--workdir", "work", "-o", "net.snn"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    launcher = subprocess.Popen(
        [sys.executable, *torchrun, "-m", "spikecal", "convert", "resnet20", *long],
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("work/**/*.step")):
        assert launcher.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    os.kill(ranks_of(launcher.pid)[lost], signal.SIGKILL)
    output, said = launcher.communicate(timeout=60)
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "another rank has failed" in line or f"rank {lost} no longer answers" in line
    assert "rerun to resume" in line and output == "" and launcher.returncode == 1
    assert not list(tmp_path.glob("spikecal-*")) or lost == "1"  # whoever has time cleans up
