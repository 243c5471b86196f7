"""Files that are not the images, arrays, settings or checkpoints they claim to be: one line each, and no hangs."""

import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.calls import NETWORK, Run, fails
from PIL import Image
from torch import nn

import spikecal
from spikecal import DataError, FileError, Pipeline
from spikecal.data.arrays import load_npz
from spikecal.data.card import Card
from spikecal.data.folder import ImageFiles, load_folder
from spikecal.data.images import UnreadableImage
from spikecal.detection.labels import learned_classes
from spikecal.detection.sources import load_boxes
from spikecal.errors import ConfigError, SpikecalError
from spikecal.snn.origin import Timings
from spikecal.training.recipes import Recipe, resolve
from spikecal.zoo.weights import load_weights, read_weights


def one_line(error: pytest.ExceptionInfo[SpikecalError]) -> str:
    text = str(error.value)
    assert text and "\n" not in text
    return text


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Pipes without a writer: opening one to read waits forever."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return path

    return make


# -- what is no file ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_pipes_are_refused_at_once(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="pipe or a device"):
        ImageFiles([str(pipe("a.png"))])[0]
    with pytest.raises(DataError, match="pipe or a device"):
        load_npz("npz:a.npz", pipe("a.npz"), "train")
    with pytest.raises(ConfigError, match="pipe or a device"):
        Pipeline.from_toml(pipe("a.toml"))
    with pytest.raises(FileError, match="pipe or a device"):
        spikecal.load(pipe("a.snn"))
    with pytest.raises(FileError, match="no weights file"):
        read_weights(pipe("a.pt"))
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    pipe("voc/a.xml")
    shutil.copy(tmp_path / "b.png", tmp_path / "voc" / "a.png")
    with pytest.raises(DataError, match="pipe or a device"):
        load_boxes(f"voc:{tmp_path}/voc", "train")


def test_devices_are_refused_at_once(tmp_path: Path) -> None:
    for name, read in (
        ("zero.png", lambda path: ImageFiles([str(path)])[0]),
        ("zero.npz", lambda path: load_npz(f"npz:{path}", path, "train")),
        ("zero.toml", Pipeline.from_toml),
        ("zero.snn", spikecal.load),
        ("zero.pt", read_weights),
    ):
        link = tmp_path / name
        link.symlink_to("/dev/zero")
        with pytest.raises(SpikecalError) as caught:
            read(link)
        assert name in one_line(caught)


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    for name in ("a.toml", "a.png"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**31)  # takes no room on disk
    with pytest.raises(ConfigError, match="2,147,483,648 bytes"):
        Pipeline.from_toml(tmp_path / "a.toml")
    with pytest.raises(UnreadableImage, match="2,147,483,648 bytes"):
        ImageFiles([str(tmp_path / "a.png")])[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_pipes_beside_what_is_read_are_not_waited_for(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    pipe("net.snn.json")
    assert Timings.beside(tmp_path / "net.snn") == Timings()
    (tmp_path / "deep.snn.json").write_text("[" * 100_000)
    assert Timings.beside(tmp_path / "deep.snn") == Timings()
    pipe("w.safetensors.json")
    assert learned_classes("detector", tmp_path / "w.safetensors") == {}
    (tmp_path / "yolo" / "images" / "train").mkdir(parents=True)
    pipe("yolo/data.yaml")
    with pytest.raises(DataError, match="pipe or a device"):
        load_boxes(f"yolo:{tmp_path}/yolo", "train")


def test_files_with_holes_are_not_read_into_memory(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2**43], "data_offsets": [0, 2**45]}
    header = json.dumps({"__metadata__": {"spikecal": "0 {}"}, "w": entry}).encode()
    for name, start in (("a.pt", b""), ("a.snn", struct.pack("<Q", len(header)) + header)):
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(len(start) + 2**43)  # takes no room on disk
    for name, read in (("a.pt", read_weights), ("a.snn", spikecal.load)):
        with pytest.raises(FileError, match="8,796,093,022,208 bytes of memory") as caught:
            read(tmp_path / name)
        one_line(caught)


def test_links_in_a_circle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.snn").symlink_to("a.snn")
    fails(run("report", "a.snn", "-o", "page.html"), "a.snn")
    fails(run("export", "a.snn", "-o", "net.nir"), "a.snn")


# -- images ------------------------------------------------------------------------------------------------------------


def test_postscript_called_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    shutil.move(tmp_path / "a.eps", tmp_path / "a.png")
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UnreadableImage, match="not an image"):
        ImageFiles([str(tmp_path / "a.png")])[0]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("name", "form"), [("a.jpg", "MPO"), ("a.png", "BMP"), ("a.tif", "TIFF"), ("a.pgm", "PPM")])
def test_images_may_still_have_the_wrong_extension(tmp_path: Path, name: str, form: str) -> None:
    (tmp_path / "set").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "set" / name, form)
    assert load_folder("folder:x", tmp_path / "set", "train").images[0].shape == (3, 8, 8)


CARDS = {
    "more memory than there is": {"size": [2**20, 2**20]},
    "a tiny crop of a huge image": {"size": [64, 64], "crop": 1e-9},
    "words for a size": {"size": ["8", 8]},
    "a size of three": {"size": [8, 8, 8]},
    "one name for all classes": {"classes": "abc"},
    "a number for a class": {"classes": [1]},
    "words for a mean": {"mean": ["x"], "std": [1.0]},
    "a channel for everyone": {"mean": [0.0] * 10**4, "std": [1.0] * 10**4},
    "a number for data": {"data": 7},
    "a setting of its own": {"hook": 1},
}


@pytest.mark.parametrize("name", CARDS)
def test_cards_of_wrong_types_and_sizes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Card.from_dict({"name": "net", **CARDS[name]})
    assert len(one_line(caught)) < 200_000


# -- arrays ------------------------------------------------------------------------------------------------------------


def packed(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(path: Path, content: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("images.npy", content)
    return path


def patched(path: Path, change: Callable[[bytearray], None]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def encrypted(data: bytearray) -> None:
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(signature) + offset] |= 1


def unknown_compression(data: bytearray) -> None:
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.find(signature) + offset] = 97


def damaged(data: bytearray) -> None:
    data[200:230] = b"\xff" * 30


def shaped(shape: str) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\0" * 64


PIXELS = packed(np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8))
ARCHIVES: dict[str, Callable[[Path], Path]] = {
    "encrypted": lambda path: patched(archive(path, PIXELS), encrypted),
    "unknown compression": lambda path: patched(archive(path, PIXELS), unknown_compression),
    "empty": lambda path: archive(path, b""),
    "damaged": lambda path: patched(archive(path, PIXELS, zipfile.ZIP_DEFLATED), damaged),
    "damaged lzma": lambda path: patched(archive(path, PIXELS, zipfile.ZIP_LZMA), lambda d: d.__setitem__(60, 255)),
    "no array": lambda path: archive(path, b"not an array at all"),
    "a header of words": lambda path: archive(path, b"\x93NUMPY\x01\x00\x10\x00" + b"os.system('true')"),
    "a negative shape": lambda path: archive(path, shaped("(-1, -64)")),
    "a shape of 52 TB": lambda path: archive(path, shaped("(4503599627370496, 12)")),
    "pickled": lambda path: archive(path, packed(np.array([{}], object))),
    "a shape of 4,000 digits": lambda path: archive(path, shaped(f"({'9' * 4000},)")),
    "images of no pixels": lambda path: archive(path, packed(np.zeros((4, 3, 0, 8), np.uint8))),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_arrays_that_cannot_be_read_are_one_line(tmp_path: Path, name: str) -> None:
    path = ARCHIVES[name](tmp_path / "a.npz")
    with pytest.raises(DataError, match="a.npz") as caught:
        load_npz(f"npz:{path}", path, "train")
    assert len(one_line(caught)) < 500


# -- settings ----------------------------------------------------------------------------------------------------------

TOML = {
    "nested deeply": "a = " + "[" * 5000 + "]" * 5000,
    "nested tables": "[" + "a." * 5000 + "a]",
    "5,000 digits": f"seed = {'9' * 5000}",
    "5,000 hexadecimal digits": f"seed = 0x{'f' * 5000}",
    "a seed of 65 bits": "seed = 36893488147419103232",
    "not text": "\xff",
}


@pytest.mark.parametrize("name", TOML)
def test_nonsensical_settings_are_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(TOML[name].encode("latin-1"))
    for read in (Pipeline.from_toml, lambda path: Recipe.from_toml(path, resolve("quick"))):
        with pytest.raises(ConfigError, match="a.toml") as caught:
            read(path)
        assert len(one_line(caught)) < 500


def test_seeds_beyond_63_bits_are_refused_in_python_and_on_the_command_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed"):
        resolve("quick").changed(seed=2**63)
    (tmp_path / "net.py").write_text(NETWORK)
    fails(run("train", "net.py:make", "--data", "demo", "-o", "w.safetensors", "--seed", 2**64), "seed")


# -- annotations -------------------------------------------------------------------------------------------------------


def test_annotations_that_declare_entities_are_not_expanded(tmp_path: Path) -> None:
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 9))
    (tmp_path / "a.xml").write_text(f'<!DOCTYPE a [<!ENTITY l0 "ha">{laughs}]><annotation>&l8;</annotation>')
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="declares entities"):
        load_boxes(f"voc:{tmp_path}", "train")


# -- checkpoints -------------------------------------------------------------------------------------------------------


def recursive() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["model"] = found["state_dict"] = found
    return found


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)


CHECKPOINTS: dict[str, Callable[[], Any]] = {
    "names that are numbers": lambda: {1: torch.ones(2, 2), 2: torch.ones(2)},
    "names that are tuples": lambda: {("a", "b"): torch.ones(2, 2)},
    "no name": lambda: {None: torch.ones(2), "weight": torch.ones(2, 2)},
    "recursive": recursive,
    "sparse": lambda: {"weight": torch.eye(2).to_sparse(), "bias": torch.ones(2)},
    "sparse rows": lambda: {"weight": torch.eye(2).to_sparse_csr(), "bias": torch.ones(2)},
    "quantised": lambda: {"weight": quantised(), "bias": torch.ones(2)},
    "meta": lambda: {"weight": torch.empty(2, 2, device="meta"), "bias": torch.ones(2)},
    "complex": lambda: {"weight": torch.ones(2, 2, dtype=torch.complex64), "bias": torch.ones(2)},
    "a number": lambda: 7,
    "nothing": dict,
    "a list": lambda: [torch.ones(2)],
}


@pytest.mark.filterwarnings("ignore")  # of torch, about sparse and quantised tensors
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_other_things_are_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pt"
    torch.save(CHECKPOINTS[name](), path)
    with pytest.raises(FileError, match="a.pt") as caught:
        load_weights(nn.Linear(2, 2), path)
    one_line(caught)


def test_weights_that_make_infinite_activations_are_one_line() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    nn.init.constant_(model[0].weight, 3e38)
    with pytest.raises(DataError, match="infinite"):
        spikecal.convert(model, torch.rand(8, 4) + 0.5, T=2, pipeline="baseline")
