"""A command started by torchrun as several processes: the first prints and writes, the others are silent."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

from spikecal.errors import RankError, shown

VERBS = ("convert", "evaluate", "train", "distill", "reproduce")  # that several processes can share
SPEAKING = 5.0  # seconds in which the first rank hears of an error and reports it


def launched() -> bool:
    """Whether this process is one of several."""
    return os.environ.get("WORLD_SIZE", "1") not in ("0", "1") and "RANK" in os.environ


def is_first() -> bool:
    """Whether this process is the first, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def several() -> Iterator[None]:
    """Run this process as one rank of several; only the first one's output is kept."""
    rank, count = os.environ["RANK"], os.environ["WORLD_SIZE"]
    numbers = all(said.isascii() and said.isdigit() and len(said) < 9 for said in (rank, count))
    if not numbers or int(rank) >= int(count):
        raise RankError(f"RANK={shown(rank)} and WORLD_SIZE={shown(count)} do not describe a rank: torchrun sets both")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # we report a broken connection ourselves, in one line
    from spikecal.ranks import SCRATCH, process_group  # here, as torch takes seconds to import

    with process_group():
        if is_first():
            yield
            return
        with tempfile.TemporaryDirectory(prefix="spikecal-") as folder, open(os.devnull, "w") as nowhere:
            os.environ[SCRATCH] = folder
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield


def written(path: Path) -> Path:
    """Where this process writes what is to become `path`: all but the first write to a scratch folder."""
    folder = os.environ.get("SPIKECAL_SCRATCH")
    return path if folder is None else Path(folder) / path.name


def end(code: int) -> NoReturn:
    """Exit after an error without waiting for threads that wait for lost ranks.

    Launchers stop all ranks when one exits, so the others give the first time to report the error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if not is_first():
        time.sleep(SPEAKING)
    os._exit(code)
