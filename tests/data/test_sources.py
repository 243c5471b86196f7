"""Data from specifications: real files in, tensors or one clear line out."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spikecal.calibration.images import collect
from spikecal.data.images import drawn_last
from spikecal.data.sets import cifar10, cifar100
from spikecal.data.sources import Data, data_root, load_data, subset
from spikecal.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


class TestNpz:
    @pytest.mark.parametrize("names", [("images", "labels"), ("x", "y"), ("x_test", "y_test")])
    def test_names_and_values(self, tmp_path: Path, names: tuple[str, str]) -> None:
        pixels = RNG.integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)
        np.savez(tmp_path / "a.npz", **{names[0]: pixels, names[1]: np.array([[3], [0], [1], [2]], dtype=np.uint8)})
        data = load_data(f"npz:{tmp_path / 'a.npz'}", "test")
        assert data.labels is not None
        assert data.labels.tolist() == [3, 0, 1, 2]
        assert np.array_equal(torch.as_tensor(data.images).permute(0, 2, 3, 1).numpy(), pixels)

    @pytest.mark.parametrize(("shape", "expected"), [((4, 6, 8), (4, 1, 6, 8)), ((4, 3, 6, 8), (4, 3, 6, 8))])
    def test_layouts(self, tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        np.savez(tmp_path / "a.npz", images=np.zeros(shape, np.float32))
        data = load_data(f"npz:{tmp_path / 'a.npz'}", "train")
        assert torch.as_tensor(data.images).shape == expected
        assert data.labels is None

    @pytest.mark.parametrize(
        ("arrays", "reason"),
        [
            ({"pictures": np.zeros((1, 3, 4, 4), np.uint8)}, "pictures"),
            ({"images": np.zeros((2, 5, 4, 4), np.uint8)}, "channels"),
            ({"images": np.zeros((2, 3, 4, 4), np.int32)}, "int32"),
            ({"images": np.zeros((2, 4, 4, 4), np.uint8)}, "channels"),
            ({"images": np.full((2, 3, 4, 4), "a")}, "cannot be converted to numbers"),
            ({"images": np.zeros((2, 3, 4, 4), np.complex64)}, "complex64"),
            ({"images": np.zeros((2, 1, 3, 4, 4), np.uint8)}, "shape"),
            ({"images": np.full((1, 3, 2, 2), np.nan)}, "finite"),
            ({"images": np.zeros((0, 3, 4, 4), np.uint8)}, "no images"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.zeros(3, np.int64)}, "2 images"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.zeros(2)}, "give integers"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.array([-1, 0])}, "non-negative integers"),
            ({"images": np.array([{}, {}], dtype=object)}, "pickled objects, which are unsafe to open"),
        ],
    )
    def test_faults_are_reported(self, tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DataError, match=reason):
            load_data(f"npz:{tmp_path / 'a.npz'}", "train")

    def test_hostile_headers_are_refused_before_anything_is_allocated(self, tmp_path: Path) -> None:
        """The header declares a petabyte; numpy alone would try to allocate it."""
        buffer = io.BytesIO()
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 3, 32, 32)}
        np.lib.format.write_array_header_1_0(buffer, header)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("images.npy", buffer.getvalue() + bytes(3072))
        with pytest.raises(DataError, match="3,072 are there"):
            load_data(f"npz:{tmp_path / 'a.npz'}", "train")

    def test_more_than_there_is_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Zeros pack a thousandfold, so a small file may be a large array."""
        np.savez_compressed(tmp_path / "a.npz", images=np.zeros((100, 3, 64, 64), np.uint8))
        monkeypatch.setattr("spikecal.data.arrays.free_memory", lambda: 1_000_000)
        with pytest.raises(DataError, match="more than is free"):
            load_data(f"npz:{tmp_path / 'a.npz'}", "train")

    def test_damaged_files(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        np.savez_compressed(path, images=RNG.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8))
        whole = path.read_bytes()
        for damaged in (b"", b"nonsense", whole[:200], whole[:100] + b"????" + whole[104:]):
            path.write_bytes(damaged)
            with pytest.raises(DataError):
                load_data(f"npz:{path}", "train")
        path.unlink()
        with pytest.raises(DataError, match="there is no file"):
            load_data(f"npz:{path}", "train")
        with path.open("wb") as file:
            np.save(file, np.zeros((9, 3, 8, 8), np.uint8))
        with pytest.raises(DataError, match=r"holds a single array without a name: save it with numpy\.savez"):
            load_data(f"npz:{path}", "train")


class TestFactory:
    def write(self, folder: Path, body: str) -> str:
        (folder / "mine.py").write_text(f"import numpy as np\nimport torch\n{body}\n")
        return f"{folder / 'mine.py'}:make"

    def test_pair_with_the_split(self, tmp_path: Path) -> None:
        spec = self.write(tmp_path, "def make(split):\n    n = {'train': 5, 'test': 2}[split]\n"
                                    "    return torch.zeros(n, 3, 4, 4), list(range(n))")  # fmt: skip
        assert len(load_data(spec, "train")) == 5
        test = load_data(spec, "test")
        assert test.labels is not None
        assert test.labels.tolist() == [0, 1]

    def test_images_alone_and_lazy_images(self, tmp_path: Path) -> None:
        assert (
            len(load_data(self.write(tmp_path, "def make():\n    return np.zeros((3, 4, 4, 3), np.uint8)"), "test"))
            == 3
        )
        lazy = (
            "class Lazy:\n    def __len__(self): return 7\n"
            "    def __getitem__(self, i): return torch.full((3, 2, 2), i / 7)\n"
            "def make():\n    return Lazy(), torch.arange(7)"
        )
        data = subset(load_data(self.write(tmp_path, lazy), "test"), 3, seed=1)
        assert data.labels is not None
        assert [float(data.images[i][0, 0, 0]) for i in range(3)] == pytest.approx(
            [n / 7 for n in data.labels.tolist()]
        )

    @pytest.mark.parametrize(
        ("body", "error", "reason"),
        [
            ("make = 3", ConfigError, "not a function"),
            ("def other(): pass", ConfigError, "no function 'make'"),
            ("raise RuntimeError('boom')", ConfigError, "boom"),
            ("def make(): return 1 / 0", ConfigError, "ZeroDivisionError"),
            ("def make(): return 'text'", DataError, "returned a str"),
            ("def make(", ConfigError, "SyntaxError"),
        ],
    )
    def test_faults_are_reported(self, tmp_path: Path, body: str, error: type[Exception], reason: str) -> None:
        with pytest.raises(error, match=reason):
            load_data(self.write(tmp_path, body), "train")

    def test_module_in_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "spikecal_test_module.py").write_text("import torch\ndef make(): return torch.zeros(2, 3, 4, 4)\n")
        monkeypatch.chdir(tmp_path)
        assert len(load_data("spikecal_test_module:make", "train")) == 2
        with pytest.raises(ConfigError, match="spikecal_no_such_module"):
            load_data("spikecal_no_such_module:make", "train")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def pack(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


class TestCifar10:
    """The real formats, with few images in them."""

    def tarball(self, root: Path) -> dict[str, np.ndarray]:
        pixels = {f"data_batch_{i}": RNG.integers(0, 256, (3, 1024, 3), dtype=np.uint8) for i in range(1, 6)}
        pixels["test_batch"] = RNG.integers(0, 256, (2, 1024, 3), dtype=np.uint8)
        files = {f"package/{name}.png": png(rows) for name, rows in pixels.items()}
        files["package/train_lables.json"] = json.dumps([i % 10 for i in range(15)]).encode()
        files["package/test_lables.json"] = b"[9, 8]"
        pack(root / f"{cifar10.NPM_PACKAGE}-1.1.1.tgz", files)
        return pixels

    def test_npm_tarball(self, tmp_path: Path) -> None:
        pixels = self.tarball(tmp_path)
        train, test = (load_data("cifar10", split, tmp_path) for split in ("train", "test"))
        assert (len(train), len(test)) == (15, 2)
        assert np.array_equal(
            torch.as_tensor(test.images).permute(0, 2, 3, 1).numpy(), pixels["test_batch"].reshape(2, 32, 32, 3)
        )
        assert np.array_equal(train.images[14].permute(1, 2, 0).numpy(), pixels["data_batch_5"][2].reshape(32, 32, 3))
        assert test.labels is not None
        assert [test.classes[i] for i in test.labels.tolist()] == ["truck", "ship"]

    def test_damaged_tarball(self, tmp_path: Path) -> None:
        self.tarball(tmp_path)
        (path,) = tmp_path.glob("*.tgz")
        whole = path.read_bytes()
        for damaged in (b"", b"x" * 100, whole[: len(whole) // 2], whole[:500] + bytes(64) + whole[564:]):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="damaged"):
                load_data("cifar10", "train", tmp_path)

    def test_binary_version(self, tmp_path: Path) -> None:
        folder = tmp_path / cifar10.BINARY_FOLDER
        folder.mkdir()
        record = np.concatenate([[7], np.arange(3072) % 256]).astype(np.uint8)
        (folder / "test_batch.bin").write_bytes(record.tobytes() * 2)
        data = load_data("cifar10", "test", tmp_path)
        assert data.labels is not None
        assert data.labels.tolist() == [7, 7]
        assert int(data.images[1][2, 31, 31]) == 3071 % 256
        with pytest.raises(DataError, match=r"data_batch_1\.bin is missing"):
            load_data("cifar10", "train", tmp_path)
        (folder / "test_batch.bin").write_bytes(record.tobytes()[:-1])
        with pytest.raises(DataError, match="damaged"):
            load_data("cifar10", "test", tmp_path)

    def test_binary_archive_is_read_in_place(self, tmp_path: Path) -> None:
        record = np.concatenate([[7], np.arange(3072) % 256]).astype(np.uint8).tobytes()
        pack(tmp_path / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": record * 3})
        assert len(load_data("cifar10", "test", tmp_path)) == 3
        with pytest.raises(DataError, match=r"damaged .*data_batch_1\.bin"):
            load_data("cifar10", "train", tmp_path)

    def test_labels_beyond_the_classes(self, tmp_path: Path) -> None:
        (tmp_path / cifar10.BINARY_FOLDER).mkdir()
        (tmp_path / cifar10.BINARY_FOLDER / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
        with pytest.raises(DataError, match="a label 10"):
            load_data("cifar10", "test", tmp_path)

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="spikecal datasets get cifar10"):
            load_data("cifar10", "train", tmp_path)


class TestCifar100:
    def record(self, coarse: int, fine: int, first: int) -> bytes:
        return bytes([coarse, fine]) + bytes((first + i) % 256 for i in range(3072))

    def test_the_fine_label_is_the_class(self, tmp_path: Path) -> None:
        folder = tmp_path / "cifar-100-binary"
        folder.mkdir()
        (folder / "test.bin").write_bytes(self.record(11, 19, 5) + self.record(0, 99, 0))
        data = load_data("cifar100", "test", tmp_path)
        assert data.labels is not None
        assert [data.classes[i] for i in data.labels.tolist()] == ["cattle", "worm"]
        assert [int(data.images[0][c, 0, 0]) for c in range(3)] == [5, (5 + 1024) % 256, (5 + 2048) % 256]
        found = cifar100.BINARY.find(tmp_path)
        assert found is not None
        assert (found.images, found.verified) == ({"train": 0, "test": 2}, False)

    def test_archive(self, tmp_path: Path) -> None:
        pack(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": self.record(1, 2, 3) * 4})
        data = load_data("cifar100", "train", tmp_path)
        assert data.labels is not None
        assert data.labels.tolist() == [2] * 4

    def test_there_are_a_hundred_classes(self) -> None:
        assert len(set(cifar100.CLASSES)) == 100
        assert list(cifar100.CLASSES) == sorted(cifar100.CLASSES)

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="spikecal datasets get cifar100"):
            load_data("cifar100", "train", tmp_path)


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_pickles_are_named_and_not_opened(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir()
    trap = b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR."  # unpickled, it would make a folder
    for file in ("data_batch_1", "test_batch", "train", "test", "meta"):
        (tmp_path / folder / file).write_bytes(trap)
    with pytest.raises(DataError, match=f"a pickle, which is not opened .* `spikecal datasets get {name}`"):
        load_data(name, "train", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_unknown_specifications() -> None:
    for spec in ("cifar11", "folder:", "npz:", "", "a:b:c d"):
        with pytest.raises(DataError, match="unknown data"):
            load_data(spec, "train")
    with pytest.raises(DataError, match="split"):
        load_data("demo", "validation")


def test_data_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPIKECAL_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("SPIKECAL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "spikecal"


def test_images_drawn_last_are_not_those_of_a_conversion() -> None:
    pixels = torch.arange(100).reshape(100, 1, 1, 1).expand(-1, 3, 4, 4).to(torch.uint8)
    data = Data(name="numbers", images=pixels)
    converted = {int(image[0, 0, 0, 0]) for (image,) in collect(pixels.float(), 60, 1, seed=3)}
    last = {int(image[0, 0, 0]) for image in drawn_last(data, 40, 3).images}  # type: ignore[union-attr]
    assert converted == {int(image[0, 0, 0]) for image in subset(data, 60, 3).images}  # type: ignore[union-attr]
    assert len(last) == 40 and not last & converted
    assert drawn_last(data, 200, 3) is data


def test_subset_is_seeded_without_repeats_and_keeps_pairs() -> None:
    data = Data(name="n", images=torch.arange(100.0).view(-1, 1, 1, 1), labels=torch.arange(100))
    first, again, other = (subset(data, 30, seed) for seed in (1, 1, 2))
    assert first.labels is not None
    assert again.labels is not None
    assert other.labels is not None
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)
    assert len(set(first.labels.tolist())) == 30
    assert torch.equal(torch.as_tensor(first.images).flatten().long(), first.labels)
    assert subset(data, None, 0) is data
    with pytest.raises(DataError):
        subset(data, 0, 0)
