"""Fashion-MNIST: idx files as downloaded by torchvision or packaged by Debian."""

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from spikecal.data.download import Checksum, Report, SourceError, download, fetch_first
from spikecal.data.images import Copy
from spikecal.data.packages import apt_download, deb_files
from spikecal.errors import DataError

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
MIRROR = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
FOLDER = Path("FashionMNIST", "raw")  # where torchvision puts it
LARGEST = 1 << 28  # bytes of one unpacked file
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# Of the unpacked files, since Debian repacks them, and of the packed ones as published by the authors.
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
PACKED_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


def load_fashion_mnist(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 1, 28, 28] uint8 and labels [N] of `split` ("train" or "test")."""
    folder = _folder(root)
    if folder is None:
        raise DataError(
            f"Fashion-MNIST is not in {root}: run `spikecal datasets get fashion-mnist`, or put torchvision's folder "
            f"FashionMNIST there"
        )
    paths = [_file(folder, name) for name in FILES[split]]
    images, labels = (read_idx(path, ndim) for path, ndim in zip(paths, (3, 1), strict=True))
    if len(images) != len(labels) or int(labels.max(initial=0)) >= len(CLASSES):
        raise DataError(f"{folder} is damaged: {len(images):,} images and {len(labels):,} labels do not match")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))


def find_fashion_mnist(root: Path) -> Copy | None:
    """The copy under `root`, or the one installed by Debian's package."""
    folder = _folder(root)
    if folder is None:
        return None
    counts = {}
    whole = True
    try:
        for split, names in FILES.items():
            counts[split] = len(read_idx(_file(folder, names[1]), 1))
            whole = whole and all(_whole(_file(folder, name), name) for name in names)
    except DataError:
        return Copy(where=folder, images=None, verified=False)
    return Copy(where=folder, images=counts, verified=whole)


def fetch_fashion_mnist(root: Path, report: Report | None = None) -> None:
    """Put its four files (31 MB) into `root`, from a Debian archive there, their home, or Debian's mirrors."""
    by_hand = sorted(root.glob(f"{PACKAGE}_*.deb"))
    if by_hand:
        _unpack(by_hand[-1], root)
        return
    ways = (
        (MIRROR, lambda: _from_mirror(root, report)),
        (f"apt-get download {PACKAGE}", lambda: _from_debian(root)),
    )
    fetch_first(
        "Fashion-MNIST",
        ways,
        f"put the four files {FILES['train'][0]}.gz … into {root / FOLDER}, or Debian's {PACKAGE}_*.deb into {root} "
        f"and run the command again",
    )


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """A uint8 array of `ndim` dimensions in the idx format, gzip-packed or not."""
    try:
        with _open(path) as file:
            header = file.read(4 + 4 * ndim)
            if len(header) != 4 + 4 * ndim or header[:4] != bytes((0, 0, 8, ndim)):
                raise DataError(f"{path} is not an idx file of {ndim} dimension{'s' if ndim > 1 else ''} of bytes")
            shape = struct.unpack(f">{ndim}I", header[4:])
            count = int(np.prod(shape, dtype=object))
            if not 0 < count <= LARGEST:
                raise DataError(f"{path} is damaged: its shape is stated as {shape}")
            raw = file.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if len(raw) != count:
        raise DataError(
            f"{path} is damaged: its shape is {shape}, but it holds {'more' if len(raw) > count else 'less'}"
        )
    return np.frombuffer(bytearray(raw), dtype=np.uint8).reshape(shape)


def _folder(root: Path) -> Path | None:
    """The first place with all four files."""
    for folder in (root / FOLDER, root / "fashion-mnist", root, INSTALLED):
        if all(_file(folder, name).is_file() for names in FILES.values() for name in names):
            return folder
    return None


def _file(folder: Path, name: str) -> Path:
    """The unpacked file if it exists, else the packed one."""
    return folder / name if (folder / name).is_file() else folder / f"{name}.gz"


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _whole(path: Path, name: str) -> bool:
    """Whether the file at `path` unpacks to the right content for `name`."""
    digest = hashlib.sha256()
    try:
        with _open(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return False
    return digest.hexdigest() == SHA256[name]


def _names() -> Iterator[str]:
    for names in FILES.values():
        yield from names


def _from_mirror(root: Path, report: Report | None) -> None:
    for name in _names():
        target = root / FOLDER / f"{name}.gz"
        if not _whole(target, name):
            download(MIRROR + target.name, target, Checksum("md5", PACKED_MD5[name]), report)


def _from_debian(root: Path) -> None:
    with apt_download(PACKAGE, root) as archive:
        _unpack(archive, root)


def _unpack(archive: Path, root: Path) -> None:
    """Extract the four files from Debian's package, each verified before it is put in place."""
    found = deb_files(archive, [f"{name}.gz" for name in _names()])
    folder = root / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _names():
            part = folder / f"{name}.part.gz"
            part.write_bytes(found.get(f"{name}.gz", b""))
            if not _whole(part, name):
                part.unlink()
                raise SourceError(f"{archive.name} holds a different {name}.gz, or none")
            os.replace(part, folder / f"{name}.gz")
    except OSError as error:
        raise DataError(f"Fashion-MNIST cannot be written to {folder}: {error.strerror or error}") from error
