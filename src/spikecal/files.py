"""Files that appear whole or not at all, are used by one process at a time, and run nothing when they are read."""

import errno
import os
import pickle
import stat
import struct
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from spikecal.errors import ConfigError, FileError
from spikecal.memory import free_memory

if TYPE_CHECKING:
    from torch import Tensor

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no such thing on Windows: there nobody looks after it
    fcntl = None


# What torch may raise of a file that it did not write, or that is cut or damaged.
NO_TORCH_FILE = (
    pickle.UnpicklingError, OSError, RuntimeError, ValueError, EOFError, LookupError, AttributeError, TypeError,
    AssertionError, ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def load_torch(path: Path) -> Any:
    """What is in a torch file, without running anything from it; one of `NO_TORCH_FILE` where that cannot be."""
    import torch

    with warnings.catch_warnings(), open_regular(path) as file:
        _check_room(file)
        warnings.simplefilter("ignore")  # of odd ways to pickle; what comes of them is checked anyway
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_room(file: BinaryIO) -> None:
    """Raise where the content of a torch file, unpacked if it is packed, is more than there is memory for."""
    needed = os.fstat(file.fileno()).st_size
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            needed = sum(entry.file_size for entry in archive.infolist())
    file.seek(0)
    if needed > (free := free_memory()):
        raise MemoryError(f"it needs {needed:,} bytes of memory, and {free:,} are free")


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, also of one whose name is not UTF-8, which the library does not open."""
    from safetensors.torch import load, load_file

    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    return load_file(path)


def open_regular(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a file to read; OSError for pipes and devices, whose bytes may never end, and for more than `most` bytes."""
    # a pipe without a writer would keep a plain `open` waiting
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(number)
    wrong: OSError | None = None
    if stat.S_ISDIR(found.st_mode):
        wrong = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    elif not stat.S_ISREG(found.st_mode):
        wrong = OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
    elif most is not None and found.st_size > most:
        wrong = OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and more than {most:,} are not read", str(path))
    if wrong is not None:
        os.close(number)
        raise wrong
    return os.fdopen(number, "rb")


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a small file; OSError where `open_regular` has one."""
    with open_regular(path, most) as file:
        return file.read(most) or b""


def check_output(file: Path, taken: Sequence[Path] = ()) -> None:
    """Before anything long: there must be a place for what comes out of it, and nothing `taken` may be there."""
    # realpath, as `resolve` raises where links lead round in a circle
    if os.path.realpath(file) in [os.path.realpath(other) for path in taken for other in (path, f"{path}.json")]:
        raise ConfigError(f"{file} is written or read by the same command: give another name")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder: give the name of a file to write")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.absolute().parent} to write {file.name} to")
    target = Path(os.path.realpath(file))
    if is_special(target):
        if not os.access(target, os.W_OK):
            raise ConfigError(f"{file} cannot be written: {os.strerror(errno.EACCES)}")
        return
    _check_writable(target.parent, file)


def check_folder(folder: Path) -> None:
    """The same for a folder that files will be written to; it need not be there yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} cannot be used as a folder: it is a file")
    _check_writable(there, folder)


def _check_writable(folder: Path, what: Path) -> None:
    try:
        with TemporaryFile(dir=folder):  # of no name, where the system can do that: nothing is left of it
            pass
    except OSError as error:
        raise ConfigError(f"{what} cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside `path` and rename: whoever is killed leaves the old file or the new one, never half of one.

    Links are followed, and what is no file (/dev/null, a pipe) is written to and not replaced.
    """
    target = Path(os.path.realpath(path))
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    part = target.with_name(target.name + ".part")
    try:
        if is_special(target):
            target.write_bytes(data)
            return
        part.write_bytes(data)
        os.replace(part, target)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error


def is_special(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder: a device, a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def lock(file: IO[Any]) -> bool:
    """Keep `file` from other processes until it is closed; False where another one keeps it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
