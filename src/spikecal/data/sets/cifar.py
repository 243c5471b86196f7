"""CIFAR's binary version, in its folder or its archive: records of label bytes and 3 × 32 × 32 pixels."""

import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from spikecal.data.download import Checksum, Report, download
from spikecal.data.images import Copy
from spikecal.errors import DataError

HOME = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32
LARGEST = 1 << 28  # bytes of one file of records


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One of the two datasets; the last of a record's `label_bytes` is its class."""

    name: str
    title: str
    folder: str
    archive: str
    checksum: Checksum
    files: Mapping[str, Mapping[str, Checksum]]  # split -> file -> checksum
    label_bytes: int
    classes: int
    pickled: tuple[str, ...]  # names of the Python version, which only unpickling could read
    home: str = HOME

    @property
    def url(self) -> str:
        return self.home + self.archive

    def load(self, root: Path, split: str) -> tuple[Tensor, Tensor] | None:
        """Images [N, 3, 32, 32] uint8 and labels [N]; None if neither folder nor archive is under `root`."""
        if (root / self.folder).is_dir():
            parts = [self._from_folder(root / self.folder / name) for name in self.files[split]]
        elif (root / self.archive).is_file():
            parts = self._from_archive(root / self.archive, split)
        else:
            return None
        return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])

    def find(self, root: Path) -> Copy | None:
        """The copy under `root`, if any."""
        folder, archive = root / self.folder, root / self.archive
        wanted = {folder / name: checksum for of in self.files.values() for name, checksum in of.items()}
        if any(path.is_file() for path in wanted):
            whole = all(path.is_file() and checksum.matches(path) for path, checksum in wanted.items())
            return Copy(where=folder, images=self._counts(folder), verified=whole)
        if archive.is_file():
            whole = self.checksum.matches(archive)
            return Copy(where=archive, images={"train": 50_000, "test": 10_000} if whole else None, verified=whole)
        return None

    def fetch(self, root: Path, report: Report | None) -> None:
        download(self.url, root / self.archive, self.checksum, report)

    def absent(self, root: Path, others: str = "") -> DataError:
        """The error if it is not under the root."""
        pickled = next((root / name for name in self.pickled if (root / name).exists()), None)
        way = f"run `spikecal datasets get {self.name}`, or put {self.archive}{others} there"
        if pickled is not None:
            return DataError(
                f"{pickled} is the Python version of {self.title}, a pickle, which is not opened as it could "
                f"run any program: {way}"
            )
        return DataError(f"{self.title} is not in {root}: {way}")

    def _counts(self, folder: Path) -> dict[str, int]:
        record = self.label_bytes + PIXELS
        return {
            split: sum((folder / name).stat().st_size // record for name in of if (folder / name).is_file())
            for split, of in self.files.items()
        }

    def _from_folder(self, path: Path) -> tuple[Tensor, Tensor]:
        if not path.is_file():
            raise DataError(f"{path} is missing: unpack {self.archive} again")
        with path.open("rb") as file:
            return self._records(file, str(path))

    def _from_archive(self, path: Path, split: str) -> list[tuple[Tensor, Tensor]]:
        try:
            with tarfile.open(path) as tar:
                return [self._records(member(tar, f"{self.folder}/{name}"), name) for name in self.files[split]]
        except (tarfile.TarError, zlib.error, EOFError, KeyError, OSError) as error:
            raise DataError(f"{path} is damaged ({error}): delete it and fetch it again") from error

    def _records(self, file: IO[bytes], name: str) -> tuple[Tensor, Tensor]:
        raw = np.frombuffer(file.read(LARGEST), dtype=np.uint8)
        record = self.label_bytes + PIXELS
        if raw.size == 0 or raw.size % record:
            raise DataError(f"{name} is damaged: {raw.size:,} bytes are not a multiple of {record:,}")
        records = raw.reshape(-1, record)
        labels = torch.from_numpy(records[:, self.label_bytes - 1].astype(np.int64))
        if int(labels.max()) >= self.classes:
            raise DataError(f"{name} is damaged: it has a label {int(labels.max())}, but {self.classes} classes")
        return torch.from_numpy(records[:, self.label_bytes :].reshape(-1, 3, 32, 32).copy()), labels


def member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """The file `name` of an archive, read in place."""
    found = tar.extractfile(name)
    if found is None:
        raise KeyError(f"{name} is not a file")
    return found
