"""A folder from which a killed run resumes. Every file in it appears whole or not at all."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import IO, Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from spikecal.errors import ConfigError, FileError, visible
from spikecal.files import lock, write_whole
from spikecal.ranks import Ranks, Refused


class Workdir:
    """Finished steps of one run, each a safetensors file with a JSON record."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        what: str = "conversion",
        ranks: Ranks = Ranks(),  # noqa: B008
    ) -> None:
        """Open `folder` for the conversion (`what`) with this fingerprint; the folder of a different one is refused.

        The first of several `ranks` locks it and writes the steps; all of them must see it.
        """
        self.folder, self.what, self._ranks = folder, what, ranks
        self._marker = folder / f"{what}.json"
        self._file: IO[str] | None = None
        refused: str | None = None
        if ranks.first:
            try:
                self._open(fingerprint)
            except ConfigError as error:
                refused = str(error)
        refused = ranks.decided(refused)
        if refused is None and not all(seen for _, seen in ranks.gathered({}, self._marker.exists())):
            refused = f"{folder} does not exist on all ranks: choose one on a shared disk"
        if refused is not None:
            self.close()
            raise Refused(refused)

    def _open(self, fingerprint: str) -> None:
        folder, marker = self.folder, self._marker
        if visible(str(folder)) != str(folder):
            raise ConfigError(
                f"the working directory {folder} has a name that cannot be read back: choose a plain name"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            new = not marker.exists()
            self._file = marker.open("a+")
        except OSError as error:
            raise ConfigError(f"the working directory {folder} cannot be used: {error.strerror}") from error
        if not lock(self._file):
            raise ConfigError(f"{folder} is being used by another process: wait for it, or choose another one")
        # only now: of two started at once, one writes and the other is refused
        if marker.stat().st_size == 0 and (new or list(folder.iterdir()) == [marker]):
            self._file.write(json.dumps({"fingerprint": fingerprint}))
            self._file.flush()
        self._compare(self._file, fingerprint)
        for leftover in (*folder.glob("*.step.part"), *folder.glob("T*/**/*.part")):  # left by a killed process
            leftover.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder for other processes."""
        if self._file is not None:
            self._file.close()

    def _compare(self, file: IO[str], fingerprint: str) -> None:
        file.seek(0)
        try:
            known = json.load(file)["fingerprint"]
        except (ValueError, KeyError, TypeError):
            known = None
        if known != fingerprint:
            raise ConfigError(
                f"{self.folder} holds another {self.what} (network, images or settings differ): "
                f"choose another directory or delete it"
            )

    def within(self, name: str) -> "Workdir":
        """A folder inside this one, for a part of the run with the same steps as the whole."""
        inner = copy(self)
        inner.folder = self.folder / name
        return inner

    def of(self, ranks: Ranks) -> "Workdir":
        """The same folder for some of the ranks, which write to it on their own."""
        own = copy(self)
        own._ranks = ranks
        return own

    def save(self, key: str, tensors: dict[str, Tensor], record: Any) -> None:
        """Save a finished step; no rank continues before it is saved."""
        if self._ranks.first:
            self._save(key, tensors, record)
        self._ranks.wait()

    def _save(self, key: str, tensors: dict[str, Tensor], record: Any) -> None:
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"record": json.dumps(record), "sha256": _checksum(whole, record)}
        if not self._marker.exists():  # steps without it would pass for those of any run
            raise FileError(f"the working directory {self._marker.parent} was deleted meanwhile: run the command again")
        store(self._path(key), whole, metadata)

    def load(self, key: str) -> tuple[dict[str, Tensor], Any] | None:
        """What `save` was given, or None if that step is still to be done."""
        path = self._path(key)
        if not self._ranks.decided(path.exists()):
            return None
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                record = json.loads(metadata["record"])
                # copied to torch's own memory: matrix products round differently with another alignment
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if metadata["sha256"] != _checksum(tensors, record):
                raise ValueError("its checksum is wrong")
        except (SafetensorError, ValueError, KeyError, OSError) as error:
            raise ConfigError(f"{path} is damaged ({error}): delete {self.folder} and run again") from error
        return tensors, record

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.step"


def store(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file so that it appears whole or not at all; its folder need not exist yet."""
    with suppress(OSError):  # the next line says it better
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(tensors, metadata))


def _checksum(tensors: dict[str, Tensor], record: Any) -> str:
    names = sorted(tensors)
    return fingerprint([tensors[name] for name in names], [names, record])


def fingerprint(tensors: Iterable[Tensor], settings: Any) -> str:
    """A hash of everything a conversion depends on."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for tensor in tensors:
        data = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # bytes need contiguous memory
        digest.update(f"{data.dtype}{tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return digest.hexdigest()
