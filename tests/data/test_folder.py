"""Folders of image files: every kind of pixel and every kind of damage."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spikecal.data import folder as folder_module
from spikecal.data.card import Card
from spikecal.data.folder import ImageFiles
from spikecal.data.images import Data, FileImages, UnreadableImage, readable, subset
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import load_data
from spikecal.errors import DataError
from spikecal.vision import vision

RNG = np.random.default_rng(0)
CARD = Card(name="net", size=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.5), crop=0.875)


def picture(path: Path, height: int = 5, width: int = 7) -> np.ndarray:
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def pixels_of(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


class TestLayout:
    def test_class_folders_are_labels_in_alphabetical_order(self, tmp_path: Path) -> None:
        dog = picture(tmp_path / "dog" / "a.png")
        cat = picture(tmp_path / "cat" / "b.png")
        data = load_data(f"folder:{tmp_path}", "test")
        assert data.classes == ("cat", "dog")
        assert data.labels is not None
        assert data.labels.tolist() == [0, 1]
        assert np.array_equal(pixels_of(data.images[0]), cat)
        assert np.array_equal(pixels_of(data.images[1]), dog)

    def test_split_folders(self, tmp_path: Path) -> None:
        picture(tmp_path / "train" / "x" / "a.png")
        picture(tmp_path / "train" / "x" / "b.PNG")
        picture(tmp_path / "val" / "x" / "c.png")
        assert len(load_data(f"folder:{tmp_path}", "train")) == 2
        assert len(load_data(f"folder:{tmp_path}", "test")) == 1

    def test_train_numbers_the_classes_of_every_split(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("train/a", "train/b", "train/c", "val/b", "val/c", "val/z"):
            picture(tmp_path / name / "1.png")
        train, test = (load_data(f"folder:{tmp_path}", split) for split in ("train", "test"))
        assert train.labels is not None and test.labels is not None
        assert train.labels.tolist() == [0, 1, 2] and train.classes == test.classes == ("a", "b", "c")
        assert test.labels.tolist() == [1, 2]
        assert "classes of train without a folder in val: a" in caplog.text
        assert "left out of val, as train has no such class: z" in caplog.text

    def test_splits_without_a_common_class(self, tmp_path: Path) -> None:
        picture(tmp_path / "train" / "cat" / "1.png")
        picture(tmp_path / "test" / "cats" / "1.png")
        with pytest.raises(DataError, match="no class in common"):
            load_data(f"folder:{tmp_path}", "test")

    def test_a_missing_split_is_reported(self, tmp_path: Path) -> None:
        picture(tmp_path / "train" / "x" / "a.png")
        with pytest.raises(DataError, match="no folder test or val"):
            load_data(f"folder:{tmp_path}", "test")

    def test_images_without_classes_have_no_labels(self, tmp_path: Path) -> None:
        picture(tmp_path / "a.png")
        assert load_data(f"folder:{tmp_path}", "train").labels is None

    @pytest.mark.parametrize("make", [lambda p: None, lambda p: (p / "empty").mkdir()])
    def test_nothing_inside(self, tmp_path: Path, make: object) -> None:
        make(tmp_path)  # type: ignore[operator]
        with pytest.raises(DataError, match="hold"):
            load_data(f"folder:{tmp_path}", "train")

    def test_an_empty_class_keeps_its_number_and_is_mentioned(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        picture(tmp_path / "a" / "1.png")
        (tmp_path / "b").mkdir()
        picture(tmp_path / "c" / "1.png")
        data = load_data(f"folder:{tmp_path}", "train")
        assert data.labels is not None
        assert (data.labels.tolist(), data.classes) == ([0, 2], ("a", "b", "c"))
        assert "no images in class folder: b" in caplog.text

    def test_one_class_is_mentioned(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        picture(tmp_path / "images" / "cat" / "1.png")
        data = load_data(f"folder:{tmp_path}", "train")
        assert data.labels is not None
        assert data.labels.tolist() == [0]
        assert "one folder, images" in caplog.text

    def test_hidden_files_are_skipped_and_others_mentioned(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        picture(tmp_path / "a" / "1.png")
        picture(tmp_path / "a" / "._1.png")
        picture(tmp_path / ".cache" / "1.png")
        picture(tmp_path / "stray.png")
        for i in range(5):
            (tmp_path / "a" / f"notes{i}.txt").touch()
        assert len(load_data(f"folder:{tmp_path}", "train")) == 1
        assert "skipped" in caplog.text
        assert "stray.png" in caplog.text
        assert "and 3 more" in caplog.text
        assert "._1" not in caplog.text

    def test_links_are_followed_once(self, tmp_path: Path) -> None:
        picture(tmp_path / "store" / "1.png")
        root = tmp_path / "root"
        picture(root / "b" / "1.png")
        (root / "a").symlink_to(tmp_path / "store")
        (tmp_path / "store" / "again").symlink_to(tmp_path / "store")  # a loop
        (root / "b" / "up").symlink_to(root)  # and another: everything below it is found once more, and ends
        data = load_data(f"folder:{root}", "train")
        assert data.labels is not None
        assert data.labels.tolist() == [0, 1, 1]
        assert isinstance(data.images, ImageFiles)
        assert [os.path.relpath(p, root) for p in data.images.paths] == ["a/1.png", "b/1.png", "b/up/a/1.png"]

    def test_a_folder_that_cannot_be_listed_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        picture(tmp_path / "a" / "1.png")
        real = os.scandir

        def scandir(path: str) -> object:
            if str(path).endswith("/a"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)  # root, who runs some tests, may list anything
        with pytest.raises(DataError, match="a cannot be listed: Permission denied"):
            load_data(f"folder:{tmp_path}", "train")


class TestPixels:
    def read(self, path: Path, card: Card | None = None) -> torch.Tensor:
        return ImageFiles([str(path)]).fitted(0, card or Card(name="any"))

    def test_grey_palette_and_bits_become_rgb(self, tmp_path: Path) -> None:
        grey = RNG.integers(0, 256, (4, 4), dtype=np.uint8)
        Image.fromarray(grey).save(tmp_path / "grey.png")
        assert np.array_equal(pixels_of(self.read(tmp_path / "grey.png")), np.repeat(grey[..., None], 3, 2))
        Image.fromarray(grey > 127).save(tmp_path / "bits.png")
        assert np.array_equal(self.read(tmp_path / "bits.png")[0].numpy(), (grey > 127) * np.uint8(255))
        colours = Image.fromarray(RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)).quantize(16)
        colours.save(tmp_path / "palette.png")
        assert np.array_equal(pixels_of(self.read(tmp_path / "palette.png")), np.asarray(colours.convert("RGB")))

    @pytest.mark.parametrize("suffix", ["png", "tif"])
    def test_sixteen_bits_keep_their_brightness(self, tmp_path: Path, suffix: str) -> None:
        Image.fromarray(np.array([[0, 257, 32896, 65535]], np.uint16)).save(tmp_path / f"a.{suffix}")
        assert self.read(tmp_path / f"a.{suffix}")[0].tolist() == [[0, 1, 128, 255]]

    def test_floats_are_refused(self, tmp_path: Path) -> None:
        Image.fromarray(np.array([[0.5, 700.0]], np.float32)).save(tmp_path / "a.tif")
        with pytest.raises(UnreadableImage, match="mode F"):
            self.read(tmp_path / "a.tif")

    def test_transparency_is_on_white(self, tmp_path: Path) -> None:
        pixels = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        assert pixels_of(self.read(tmp_path / "a.png")).tolist() == [[[255, 0, 0], [255, 255, 255], [204, 204, 204]]]
        grey = np.array([[[10, 255], [10, 0]]], np.uint8)
        Image.fromarray(grey).save(tmp_path / "la.png")
        assert self.read(tmp_path / "la.png")[0].tolist() == [[10, 255]]

    def test_cmyk(self, tmp_path: Path) -> None:
        Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
        red = self.read(tmp_path / "a.jpg").float().mean((1, 2))
        assert red[0] > 240
        assert red[1:].max() < 15

    def test_exif_turns_the_image_upright(self, tmp_path: Path) -> None:
        pixels = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6  # stored lying on its side: turn clockwise to see it
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        assert np.array_equal(pixels_of(self.read(tmp_path / "a.png")), np.rot90(pixels, -1))

    @pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow says it, and reads on
    def test_damaged_exif_data_harm_no_pixels(self, tmp_path: Path) -> None:
        image = Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        image.save(tmp_path / "a.jpg", quality=90)
        image.save(tmp_path / "b.jpg", quality=90, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\xff")
        assert torch.equal(self.read(tmp_path / "a.jpg"), self.read(tmp_path / "b.jpg"))

    def test_grey_networks_get_grey(self, tmp_path: Path) -> None:
        pixels = picture(tmp_path / "a.png", 8, 8)
        grey = self.read(tmp_path / "a.png", Card(name="grey", mean=(0.5,), std=(1.0,)))
        assert grey.shape == (1, 8, 8)
        luma = pixels @ np.array([0.299, 0.587, 0.114])
        assert np.abs(grey[0].numpy() - luma).max() <= 1


class TestFit:
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    @pytest.mark.parametrize("resize", [64, 58])
    def test_is_torchvisions_evaluation(self, tmp_path: Path, interpolation: str, resize: int) -> None:
        """The oracle is the transform that comes with torchvision's trained weights."""
        presets, modes = vision("torchvision.transforms._presets"), vision("torchvision.transforms.functional")
        oracle = presets.ImageClassification(
            crop_size=56, resize_size=resize, interpolation=modes.InterpolationMode(interpolation)
        )
        card = Card(
            name="net",
            size=(56, 56),
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            crop=56 / resize,
            interpolation=interpolation,  # type: ignore[arg-type]
        )
        sizes = [(75, 100), (101, 67), (64, 64), (33, 57), (200, 59), (60, 61), (30, 400)]
        for i, (height, width) in enumerate(sizes):
            picture(tmp_path / f"{i}.png", height, width)
        data = load_data(f"folder:{tmp_path}", "test")
        (batch, _), *_ = Prepared(data, card).batches(len(sizes))
        for i in range(len(sizes)):
            with Image.open(tmp_path / f"{i}.png") as image:
                torch.testing.assert_close(batch[i], oracle(image), atol=1e-6, rtol=0)

    def test_files_and_arrays_agree(self, tmp_path: Path) -> None:
        pixels = picture(tmp_path / "a.png", 40, 30)
        from_file = Prepared(load_data(f"folder:{tmp_path}", "test"), CARD)[0]
        np.savez(tmp_path / "a.npz", images=pixels[None])
        from_array = Prepared(load_data(f"npz:{tmp_path / 'a.npz'}", "test"), CARD)[0]
        std = torch.tensor(CARD.std).view(3, 1, 1)
        assert float(((from_file - from_array) * std).abs().max()) <= 1.01 / 255  # one rounding to 8 bits

    def test_extreme_shapes_take_bounded_memory(self, tmp_path: Path) -> None:
        Image.fromarray(np.zeros((1, 60_000, 3), np.uint8)).save(tmp_path / "a.png")  # otherwise 160 GB
        card = Card(name="net", size=(224, 224), crop=0.875)
        assert ImageFiles([str(tmp_path / "a.png")]).fitted(0, card).shape == (3, 224, 224)

    def test_fashion_mnist_for_a_network_in_colour(self) -> None:
        grey = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
        card = Card(name="net", size=(32, 32), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        ((batch, _),) = Prepared(Data(name="d", images=grey), card).batches(3)
        assert batch.shape == (3, 3, 32, 32)
        assert torch.equal(batch[:, 0], batch[:, 2])


class TestReading:
    def damage(self, root: Path) -> list[str]:
        """Twelve images of which four cannot be read."""
        for i in range(12):
            picture(root / f"c{i % 3}" / f"{i:02}.png", 9 + i, 12)
        whole = (root / "c0" / "00.png").read_bytes()
        (root / "c0" / "00.png").write_bytes(whole[: len(whole) // 2])
        (root / "c1" / "04.png").write_bytes(b"")
        (root / "c2" / "02.png").write_text("<html>not found</html>")
        (root / "c2" / "11.png").unlink()
        (root / "c2" / "11.png").symlink_to(root / "nowhere")
        return ["00.png", "02.png", "04.png", "11.png"]

    def test_the_loader_skips_and_reports(self, tmp_path: Path) -> None:
        bad = self.damage(tmp_path)
        data = load_data(f"folder:{tmp_path}", "test")
        assert data.labels is not None
        assert isinstance(data.images, ImageFiles)
        loader = Loader(data, CARD, 5)
        for _ in range(2):  # reported once, however often it is read
            batches = list(loader)
            assert sum(len(x) for x, _ in batches) == 8
            assert sorted(Path(p).name for p in loader.unreadable) == bad
        good = [i for i, p in enumerate(data.images.paths) if Path(p).name not in bad]
        assert torch.cat([y for _, y in batches]).tolist() == data.labels[good].tolist()
        images = torch.cat([x for x, _ in batches])
        assert all(torch.equal(images[n], Prepared(data, CARD)[i]) for n, i in enumerate(good))
        reasons = {Path(p).name: reason for p, reason in loader.unreadable.items()}
        assert reasons["04.png"] == reasons["02.png"] == "not an image"
        assert "truncated" in reasons["00.png"]
        assert reasons["11.png"] == "No such file or directory"

    def test_strict(self, tmp_path: Path) -> None:
        self.damage(tmp_path)
        with pytest.raises(UnreadableImage, match=r"00\.png is not a readable image"):
            list(Loader(load_data(f"folder:{tmp_path}", "test"), CARD, 5, strict=True))

    def test_readable_draws_others_for_those_that_cannot_be_read(self, tmp_path: Path) -> None:
        bad = self.damage(tmp_path)
        data = load_data(f"folder:{tmp_path}", "test")
        chosen, unreadable = readable(data, 6, seed=3)
        again, _ = readable(data, 6, seed=3)
        assert len(chosen) == 6
        assert isinstance(chosen.images, FileImages)
        assert all(torch.equal(chosen.images[i], again.images[i]) for i in range(6))
        assert chosen.labels is not None
        assert {Path(p).name for p in unreadable} <= set(bad)
        everything, unreadable = readable(data, 100, seed=3)
        assert len(everything) == 8
        assert sorted(Path(p).name for p in unreadable) == bad
        part = subset(everything, 4, seed=0)
        assert Prepared(part, CARD)[3].shape == (3, 8, 8)

    def test_sets_in_memory_are_left_alone(self) -> None:
        data = load_data("demo", "test")
        assert readable(data, 10, 0) == (data, {})

    def test_order_is_that_of_the_files_whatever_the_threads_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first image of each batch waits for the last to have been read."""
        values = list(range(0, 240, 10))
        for i, value in enumerate(values):
            Image.new("RGB", (6, 6), (value, value, value)).save(tmp_path / f"{i:02}.png")
        last_read = threading.Event()
        real = folder_module.decode

        def decode(image: Image.Image, mode: str) -> Image.Image:
            result = real(image, mode)
            level = result.getpixel((0, 0))[0]  # type: ignore[index]
            if level == values[0]:
                assert last_read.wait(20)
            if level == values[3]:
                last_read.set()
            return result

        monkeypatch.setattr(folder_module, "decode", decode)
        monkeypatch.setattr("spikecal.data.prepare.READERS", 4)
        data = load_data(f"folder:{tmp_path}", "test")
        read = torch.cat([batch for batch, _ in Prepared(data, Card(name="any")).batches(5)])
        assert (read[:, 0, 0, 0] * 255).round().int().tolist() == values

    def test_a_batch_is_all_that_is_held(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = []
        for i in range(12):
            picture(tmp_path / f"{i:02}.png", 4, 4)
        real = folder_module.decode
        monkeypatch.setattr(folder_module, "decode", lambda *a: opened.append(1) or real(*a))
        batches = Prepared(load_data(f"folder:{tmp_path}", "test"), CARD).batches(4)
        assert opened == []
        next(batches)
        assert len(opened) == 4
