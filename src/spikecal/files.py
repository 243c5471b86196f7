"""Files that appear whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from spikecal.errors import FileError


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
