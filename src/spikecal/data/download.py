"""Download files over HTTP: resumable, verified, and in place whole or not at all."""

import hashlib
import http.client
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import spikecal
from spikecal.errors import DataError
from spikecal.files import lock

TIMEOUT = 15.0  # seconds without a byte
TRIES = 4  # attempts without progress after a broken connection
PAUSE = 1.0  # seconds before another attempt
CHUNK = 1 << 18

Report = Callable[[str, int, int | None], None]  # a file's name, its bytes so far, and its size if known

log = logging.getLogger(__name__)


class SourceError(DataError):
    """One source does not provide the file; another may."""


@dataclass(frozen=True)
class Checksum:
    """The hash that a file's content must have."""

    algorithm: str
    digest: str

    def matches(self, path: Path) -> bool:
        with path.open("rb") as file:
            return hashlib.file_digest(file, self.algorithm).hexdigest() == self.digest


def fetch_first(title: str, ways: Sequence[tuple[str, Callable[[], None]]], by_hand: str) -> None:
    """Use the first of the named `ways` that works; if none does, raise with what was tried and what is left to do."""
    tried = []
    for name, way in ways:
        try:
            way()
            return
        except SourceError as error:
            log.info("%s: %s: %s", title, name, error)
            tried.append(f"{name} ({error})")
    raise DataError(f"{title} cannot be fetched; tried {'; '.join(tried)}. By hand: {by_hand}")


def download(url: str, target: Path, checksum: Checksum, report: Report | None = None) -> None:
    """Download `url` to `target`: written beside it first, verified, then renamed.

    The part left by an earlier run is resumed. If the result does not match, it is fetched once more from the start.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as (file, waited):
            if waited and target.is_file() and checksum.matches(target):
                return
            resumed = _size(file) > 0
            _transfer(url, file, target.name, report)
            whole = checksum.matches(part)
            if resumed and not whole:
                log.info("%s: the resumed download does not match its checksum: starting again", target.name)
                file.truncate(0)
                _transfer(url, file, target.name, report)
                whole = checksum.matches(part)
            if not whole:
                part.unlink()
                raise SourceError(f"sent a different {target.name}: its {checksum.algorithm} is not {checksum.digest}")
            os.fsync(file.fileno())
            os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target.name} cannot be written to {target.parent}: {error.strerror or error}") from error


@contextmanager
def _locked(part: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """The unfinished file, locked for this process, and whether another rank of the same task had it before."""
    waited = False
    while True:
        with part.open("ab") as file:
            if not lock(file):
                _wait_for_another_rank(part)
                waited = True
            elif part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                try:
                    yield file, waited
                finally:
                    if _size(file) == 0:
                        part.unlink(missing_ok=True)
                return
        # Another process finished and renamed the file after we opened it and before we locked it.


def _wait_for_another_rank(part: Path) -> None:
    from spikecal.ranks import current  # torch takes seconds to import, and waiting is rare

    if current().count == 1:
        raise DataError(f"{part} is being written by another process: wait for it")
    current().beat()
    time.sleep(PAUSE / 4)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _transfer(url: str, file: IO[bytes], name: str, report: Report | None) -> None:
    """Append what `file` lacks, retrying if the connection breaks; a first request that fails is final."""
    furthest, failures = _size(file), 0
    answered = False
    while failures < TRIES:
        try:
            if _receive(url, file, name, report):
                return
            answered = True
        except SourceError:
            if not answered and _size(file) <= furthest:
                raise
            answered = True
        # A server without ranges starts over each time: only getting further than before counts as progress.
        failures = 0 if _size(file) > furthest else failures + 1
        furthest = max(furthest, _size(file))
        time.sleep(PAUSE if failures else 0)
    raise SourceError(f"broke the connection {failures} times at {furthest:,} bytes: rerun to resume")


def _receive(url: str, file: IO[bytes], name: str, report: Report | None) -> bool:
    """Request once what `file` lacks; returns whether the file then has its full length."""
    have = _size(file)
    headers = {"User-Agent": f"spikecal/{spikecal.__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return True  # nothing is missing
                file.truncate(0)  # a different file, or version of it
                return False
            raise SourceError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(_reason(error)) from error
    with response:
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if response.status == http.HTTPStatus.PARTIAL_CONTENT and (begins is None or int(begins[1]) != have):
            file.truncate(0)  # not the requested range: request everything
            return False
        if response.status != http.HTTPStatus.PARTIAL_CONTENT and have:
            file.truncate(0)  # a server without ranges: here comes the whole file
            have = 0
        total = None if response.length is None else have + response.length
        while chunk := _read(response):
            file.write(chunk)
            file.flush()
            have += len(chunk)
            if report is not None:
                report(name, have, total)
    return total is None or have == total


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)  # whatever has arrived, so that nothing is lost if killed
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(_reason(error)) from error


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return str(text)
