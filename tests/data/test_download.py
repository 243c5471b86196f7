"""Downloads from a real server on this machine: cut, resumed, altered, killed."""

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Site, serve

from spikecal.data import download as module
from spikecal.data.download import Checksum, SourceError, download, fetch_first
from spikecal.errors import DataError

CONTENT = bytes(os.urandom(1000)) * 2000  # 2 MB: several chunks
CHECKSUM = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())
HALF = len(CONTENT) // 2


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    with serve(Site({"/set.bin": CONTENT})) as found:
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "root" / "set.bin"


def part(target: Path, content: bytes) -> Path:
    target.parent.mkdir()
    path = target.with_name("set.bin.part")
    path.write_bytes(content)
    return path


def whole(target: Path) -> bool:
    """Whether the file is there, right and alone."""
    return target.read_bytes() == CONTENT and [p.name for p in target.parent.iterdir()] == [target.name]


def test_arrives_whole_and_reports_progress(site: Site, target: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    download(site.url + "set.bin", target, CHECKSUM, lambda *now: told.append(now))
    assert whole(target)
    assert told[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [have for _, have, _ in told] == sorted(have for _, have, _ in told)
    assert site.asked == [("/set.bin", None)]


def test_resumes_where_an_earlier_run_stopped(site: Site, target: Path) -> None:
    part(target, CONTENT[:HALF])
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert site.asked == [("/set.bin", f"bytes={HALF}-")]


def test_resumes_after_a_broken_connection(site: Site, target: Path) -> None:
    site.cuts = [HALF, 1000, 0]
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert [asked for _, asked in site.asked] == [None, f"bytes={HALF}-", *[f"bytes={HALF + 1000}-"] * 2]


def test_starts_over_without_ranges(site: Site, target: Path) -> None:
    site.ranges = False
    part(target, CONTENT[:HALF])
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert len(site.asked) == 1


def test_a_line_that_is_always_cut_is_an_error_and_what_came_is_kept(site: Site, target: Path) -> None:
    site.ranges, site.cuts = False, [HALF] * 50
    with pytest.raises(SourceError, match=f"at {HALF:,} bytes"):
        download(site.url + "set.bin", target, CHECKSUM)
    assert len(site.asked) == module.TRIES + 1
    site.ranges, site.cuts = True, []
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert site.asked[-1] == ("/set.bin", f"bytes={HALF}-")


@pytest.mark.parametrize("left", [b"x" * HALF, CONTENT + b"more", b"x" * len(CONTENT)])
def test_a_mismatch_is_fetched_again_once(site: Site, target: Path, left: bytes) -> None:
    part(target, left)
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert site.asked[-1] == ("/set.bin", None)


def test_nothing_is_asked_for_when_nothing_is_missing(site: Site, target: Path) -> None:
    part(target, CONTENT)
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert len(site.asked) == 1


def test_another_range_than_asked_for(site: Site, target: Path) -> None:
    site.wrong_range = True
    part(target, CONTENT[:HALF])
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)


@pytest.mark.parametrize("left", [b"", CONTENT[:HALF]])
def test_altered_content_is_never_kept(site: Site, target: Path, left: bytes) -> None:
    site.files["/set.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    part(target, left)
    target.write_bytes(b"what was there before")
    with pytest.raises(SourceError, match="its sha256 is not"):
        download(site.url + "set.bin", target, CHECKSUM)
    assert target.read_bytes() == b"what was there before"
    assert [p.name for p in target.parent.iterdir()] == ["set.bin"]


def test_errors_of_the_source_leave_no_empty_files(site: Site, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="HTTP 404"):
        download(site.url + "other.bin", target, CHECKSUM)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(SourceError, match="refused"):
            download(f"http://127.0.0.1:{closed.getsockname()[1]}/x", target, CHECKSUM)
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(SourceError, match="timed out"):
        download(f"http://127.0.0.1:{silent.getsockname()[1]}/x", target, CHECKSUM)
    assert list(target.parent.iterdir()) == []


def test_an_unwritable_folder_is_not_blamed_on_the_source(site: Site, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(DataError, match="cannot be written to") as caught:
        download(site.url + "set.bin", tmp_path / "root" / "set.bin", CHECKSUM)
    assert not isinstance(caught.value, SourceError)


def test_two_at_once(site: Site, target: Path) -> None:
    left = part(target, CONTENT[:HALF])
    with left.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            download(site.url + "set.bin", target, CHECKSUM)
    assert left.read_bytes() == CONTENT[:HALF]


def test_a_killed_download_is_resumed(site: Site, target: Path) -> None:
    site.hold = threading.Event()
    program = (
        "import sys; from pathlib import Path; from spikecal.data.download import *\n"
        "download(sys.argv[1], Path(sys.argv[2]), Checksum('sha256', sys.argv[3]))"
    )
    child = subprocess.Popen([sys.executable, "-c", program, f"{site.url}set.bin", str(target), CHECKSUM.digest])
    left = target.with_name("set.bin.part")
    deadline = time.monotonic() + 20
    while not (left.exists() and left.stat().st_size == HALF) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert left.stat().st_size == HALF
    assert not target.exists()
    site.hold.set()
    download(site.url + "set.bin", target, CHECKSUM)
    assert whole(target)
    assert site.asked == [("/set.bin", None), ("/set.bin", f"bytes={HALF}-")]


def test_sources_are_tried_in_order_and_all_named() -> None:
    went = []

    def fails() -> None:
        went.append("first")
        raise SourceError("no such host")

    fetch_first("A set", [("one", fails), ("two", lambda: went.append("second")), ("three", fails)], "put it there")
    assert went == ["first", "second"]
    with pytest.raises(DataError, match=r"A set .* tried one \(no such host\); two \(no such host\)\. By hand: put it"):
        fetch_first("A set", [("one", fails), ("two", fails)], "put it there")
