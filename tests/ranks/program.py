"""Groups of ranks, forked from a process that has imported torch and never run it; prints what came of them as JSON.

Some ranks are killed, stopped or put to sleep. Each group meets at a port of its own, or in network namespaces.
"""

import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import cases
import torch
import torch._dynamo  # imported here once, instead of late in every child
import torch.distributed as dist
from networks import images, residual

import spikecal
import spikecal.conversion
import spikecal.ranks.watch
from spikecal.data.download import Checksum, download
from spikecal.errors import ConfigError, RankError
from spikecal.files import lock
from spikecal.ranks import Ranks, apart, current
from spikecal.workdir import Workdir

Work = Callable[[Ranks], Any]
SAVES = 4  # finished steps after which a rank is lost
LONG = {"pipeline": "pc", "T": [2, 4], "micro_batch": 4}
NAMESPACES = ("spikecal-a", "spikecal-b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
CLONE_NEWNET = 0x40000000


class Started:
    """Ranks of one group, each a child; what each of them found is in a file."""

    def __init__(
        self, folder: Path, count: int, work: Work, namespaces: tuple[str, ...] = (), victim: int | None = None
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.count, self.victim = folder, count, victim
        address = (ADDRESSES[0] if namespaces else "127.0.0.1"), free_port()
        self.children = [self._child(rank, work, address, namespaces) for rank in range(count)]

    def _child(self, rank: int, work: Work, address: tuple[str, int], namespaces: tuple[str, ...]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                if namespaces:
                    enter(namespaces[rank])
                    os.environ["GLOO_SOCKET_IFNAME"] = f"veth{rank}"
                where = f"tcp://{address[0]}:{address[1]}"
                dist.init_process_group("gloo", init_method=where, rank=rank, world_size=self.count)
                found = {"found": work(current())}
            except (ConfigError, RankError) as error:
                found = {"error": type(error).__name__, "told": str(error), "tells": getattr(error, "tell", True)}
            except BaseException:
                found = {"error": "another one", "told": traceback.format_exc()}
            found["ended"] = time.monotonic()  # the same clock in all processes
            (self.folder / f"{rank}.json").write_text(json.dumps(found))
            os._exit(0)
        return pid

    def end(self) -> list[dict[str, Any] | None]:
        """What every rank found, None where it was lost; one that hangs is killed when all others have ended."""
        for rank in sorted(range(self.count), key=lambda rank: rank == self.victim):
            if rank == self.victim:
                os.kill(self.children[rank], signal.SIGKILL)
            os.waitpid(self.children[rank], 0)
        files = [self.folder / f"{rank}.json" for rank in range(self.count)]
        return [json.loads(file.read_text()) if file.exists() else None for file in files]


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("", 0))
        return int(tried.getsockname()[1])


def enter(namespace: str) -> None:
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def networks_apart() -> str | None:
    """Two network namespaces connected by a virtual cable; skipped, with the reason, where not permitted."""
    if shutil.which("ip") is None:
        return "there is no command ip"
    first, second = NAMESPACES
    commands = [
        f"ip netns add {first}", f"ip netns add {second}",
        f"ip link add veth0 netns {first} type veth peer name veth1 netns {second}",
        *(f"ip -n {n} addr add {a}/24 dev veth{i}" for i, (n, a) in enumerate(zip(NAMESPACES, ADDRESSES, strict=True))),
        *(f"ip -n {n} link set {d} up" for i, n in enumerate(NAMESPACES) for d in ("lo", f"veth{i}")),
    ]  # fmt: skip
    for command in commands:
        made = subprocess.run(command.split(), capture_output=True, text=True)
        if made.returncode:
            return f"{command}: {made.stderr.strip()}"
    return None


def remove_networks() -> None:
    for name in NAMESPACES if shutil.which("ip") else ():
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def lost_by(rank: int, how: Callable[[], None], work: Path) -> Work:
    """A conversion in which one rank is lost when some steps are done."""

    def converting(ranks: Ranks) -> None:
        if ranks.rank == rank:
            save, calls = Workdir.save, iter(range(1, sys.maxsize))

            def saving(*arguments: Any) -> None:
                if next(calls) == SAVES:
                    (work.parent / "lost").write_text(str(time.monotonic()))
                    how()
                save(*arguments)

            Workdir.save = saving  # type: ignore[method-assign]
        spikecal.convert(residual(), images(24), workdir=work, **LONG)

    return converting


def all_of(folder: Path, resumed: Path) -> Work:
    """The work of all ranks of a group."""

    def working(ranks: Ranks) -> dict[str, Any]:
        found: dict[str, Any] = {"exact": cases.exact(folder), "learned": cases.learned(folder)}
        found["table"] = cases.reproduced(folder)
        found["refused"] = cases.refused(ranks, folder)
        found["resumed"] = resume(resumed, folder)
        found["at once"] = at_once(ranks, folder)
        found["fetched"] = fetched(ranks, folder)
        found["failed"] = failed(ranks)
        return found

    return working


def resume(work: Path, folder: Path) -> dict[str, Any]:
    before = {str(path): path.stat().st_mtime_ns for path in work.rglob("*.step")}
    made = cases.print_of(spikecal.convert(residual(), images(24), workdir=work, **LONG), folder)
    again = [path for path, written in before.items() if Path(path).stat().st_mtime_ns != written]
    return {"print": made, "before": len(before), "again": len(again)}


def at_once(ranks: Ranks, folder: Path) -> str | None:
    """Every rank by itself, with the same working directory at the same time."""
    ranks.wait()
    with apart():
        try:
            spikecal.convert(residual(), images(24), workdir=folder / "one", **LONG)
        except ConfigError as error:
            return str(error)
    return None


def fetched(ranks: Ranks, folder: Path) -> str:
    """What ranks do about a file that the first is still fetching from an address that does not answer."""
    target = folder / "weights.bin"
    if ranks.first:
        with target.with_name("weights.bin.part").open("wb") as file:
            assert lock(file)
            ranks.wait()
            time.sleep(1)
            file.write(b"all of it")
            file.flush()
            os.replace(file.name, target)
    else:
        ranks.wait()
        digest = hashlib.sha256(b"all of it").hexdigest()
        download(f"http://127.0.0.1:{free_port()}/weights.bin", target, Checksum("sha256", digest))
    return target.read_text()


class Unreadable(torch.utils.data.Dataset[torch.Tensor]):
    """Images on a disk that one rank has lost."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.ranks.rank == 1:
            raise OSError("the disk is gone")
        return images(1)[0]


def failed(ranks: Ranks) -> str:
    """An error of one rank alone, while the others wait for it. After that, nothing can be done together."""
    try:
        spikecal.convert(residual(), Unreadable(ranks), T=2, pipeline="lcp")
    except (RankError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    spikecal.ranks.watch.STUCK = 20.0  # seconds, less than half of what it is: tests have no time
    works = {name: folder / name / "work" for name in ("killed", "stopped", "asleep", "frozen")}
    ways = {
        "killed": (2, 1, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        "stopped": (3, 2, lambda: os.kill(os.getpid(), signal.SIGSTOP)),
        "asleep": (2, 0, lambda: time.sleep(600)),
        "frozen": (3, 0, lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    }
    lost = {
        name: Started(folder / name / "group", count, lost_by(rank, how, works[name]), victim=rank)
        for name, (count, rank, how) in ways.items()
    }
    report: dict[str, Any] = {}
    for count, name in ((3, "killed"), (2, "stopped")):  # a different number of ranks than before
        report[name] = lost[name].end()
        place = folder / f"group{count}"
        report[f"group{count}"] = Started(place, count, all_of(place, works[name])).end()
    report["asleep"], report["frozen"] = lost["asleep"].end(), lost["frozen"].end()
    report["lost"] = {name: float((folder / name / "lost").read_text()) for name in ways}
    report["apart"] = networks_apart()
    if report["apart"] is None:
        lcp = lambda ranks: cases.print_of(cases.converted(residual(), images(24), **cases.EXACT["lcp"]), folder)  # noqa: E731
        report["namespaces"] = Started(folder / "namespaces", 2, lcp, NAMESPACES).end()
    remove_networks()
    alone = folder / "alone"
    alone.mkdir()
    resumed = resume(works["asleep"], alone)
    report["alone"] = {"exact": cases.exact(alone), "learned": cases.learned(alone), "resumed": resumed}
    report["alone"]["table"] = cases.reproduced(alone)
    report["uninterrupted"] = cases.print_of(spikecal.convert(residual(), images(24), **LONG), alone)
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
