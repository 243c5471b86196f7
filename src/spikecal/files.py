"""Files that appear whole or not at all, are used by one process at a time, and run no code when read."""

import errno
import os
import pickle
import stat
import struct
import warnings
import zipfile
from collections.abc import Mapping, Sequence
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
except ImportError:  # not on Windows, where files are not locked
    fcntl = None


# What torch may raise for a file that it did not write, or that is truncated or damaged.
NO_TORCH_FILE = (
    pickle.UnpicklingError, OSError, RuntimeError, ValueError, EOFError, LookupError, AttributeError, TypeError,
    AssertionError, ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def load_torch(path: Path) -> Any:
    """The content of a torch file, read without running its code; raises one of `NO_TORCH_FILE` if it cannot."""
    import torch

    with warnings.catch_warnings(), open_regular(path) as file:
        _check_room(file)
        warnings.simplefilter("ignore")  # about unusual pickles; the content is checked anyway
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_room(file: BinaryIO) -> None:
    """Raise if the content of a torch file, uncompressed, exceeds the free memory."""
    needed = os.fstat(file.fileno()).st_size
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            needed = sum(entry.file_size for entry in archive.infolist())
    file.seek(0)
    if needed > (free := free_memory()):
        raise MemoryError(f"it needs {needed:,} bytes of memory, but {free:,} are free")


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, even if its name is not UTF-8, which the library cannot open."""
    from safetensors.torch import load, load_file

    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    return load_file(path)


def open_regular(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a file to read; OSError for pipes and devices, which may never end, and for files above `most` bytes."""
    # a plain `open` would block on a pipe without a writer
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(number)
    wrong: OSError | None = None
    if stat.S_ISDIR(found.st_mode):
        wrong = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    elif not stat.S_ISREG(found.st_mode):
        wrong = OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
    elif most is not None and found.st_size > most:
        wrong = OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and the limit is {most:,}", str(path))
    if wrong is not None:
        os.close(number)
        raise wrong
    return os.fdopen(number, "rb")


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a small file; OSError as from `open_regular`."""
    with open_regular(path, most) as file:
        return file.read(most) or b""


def check_output(file: Path, taken: Sequence[Path] = ()) -> None:
    """Check, before anything long, that `file` can be written and is none of those `taken`."""
    # realpath, as `resolve` raises on links that form a loop
    if os.path.realpath(file) in [os.path.realpath(other) for path in taken for other in (path, f"{path}.json")]:
        raise ConfigError(f"{file} is already used by the same command: give another name")
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
    """The same for a folder for files; it need not exist yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} cannot be used as a folder: it is a file")
    _check_writable(there, folder)


def _check_writable(folder: Path, what: Path) -> None:
    try:
        with TemporaryFile(dir=folder):  # nameless where the system allows it: leaves nothing behind
            pass
    except OSError as error:
        raise ConfigError(f"{what} cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside `path` and rename: a killed process leaves the old file or the new one, never half of one.

    Links are followed; anything but a file (/dev/null, a pipe) is written to, not replaced.
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


def write_together(contents: Mapping[Path, bytes | str]) -> None:
    """Write files of which the last needs the others: a killed process leaves no old one beside new ones, but none."""
    *_, last = contents
    target = Path(os.path.realpath(last))
    if target.is_file():
        with suppress(OSError):
            target.unlink()
    for path, content in contents.items():
        write_whole(path, content)


def is_special(path: Path) -> bool:
    """Whether it exists and is neither a file nor a folder, but a device or a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def lock(file: IO[Any]) -> bool:
    """Lock `file` until it is closed; False if another process has locked it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
