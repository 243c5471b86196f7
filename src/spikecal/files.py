"""Files that appear whole or not at all, and are used by one process at a time."""

import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from spikecal.errors import FileError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no such thing on Windows: there nobody looks after it
    fcntl = None


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside `path` and rename: whoever is killed leaves the old file or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error


def lock(file: IO[Any]) -> bool:
    """Keep `file` from other processes until it is closed; False where another one keeps it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
