"""Values between stages, for all images: spikes at one bit per neuron and step, in memory or on disk."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spikecal.errors import ConfigError
from spikecal.kernels import loops
from spikecal.memory import return_freed_memory
from spikecal.tensors import channels_last
from spikecal.workdir import store

UNTIDY = 32  # a share of the budget: this much may lie in holes before freed memory is returned, which takes long


@dataclass(frozen=True)
class Train:
    """Levels `[T, N, ...]` of neurons as packed bits, channels last: one bit for two levels, two for up to four."""

    bits: Tensor  # one row per bit of a level, lowest first
    shape: tuple[int, ...]
    height: Tensor  # of a level; broadcasts against the levels
    lowest: int = 0  # level

    @classmethod
    def pack(cls, levels: Tensor, height: Tensor, alphabet: Sequence[int] = (0, 1)) -> "Train":
        """From integers `[T, N, ...]`, or booleans if the levels are 0 and 1."""
        flat = _channels_to_end(levels).flatten()
        lowest, planes = alphabet[0], level_bits(alphabet)
        if flat.dtype == torch.bool:
            rows = [packed(flat)]
        else:
            rows = [packed((flat - lowest) >> bit & 1) for bit in range(planes)]
        return cls(torch.stack(rows), tuple(levels.shape), height, lowest)

    @classmethod
    def join(cls, parts: list["Train"]) -> "Train":
        """Concatenate trains of the same neurons in time."""
        first, shape = parts[0], (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if all(prod(part.shape) % 8 == 0 for part in parts[:-1]):  # each fills its last byte
            bits = torch.cat([part.bits for part in parts], 1)
        else:
            whole = torch.cat([unpacked(part.bits, prod(part.shape)) for part in parts], 1)
            bits = torch.stack([packed(row) for row in whole])
        return cls(bits, shape, first.height, first.lowest)

    def unpack(self, start: int = 0, steps: int | None = None) -> Tensor:
        """What the neurons pass on at all steps, or at `steps` of them from `start` on."""
        shape = self.shape if steps is None else (steps, *self.shape[1:])
        count, before = prod(shape), start * prod(self.shape[1:])
        first, last = before // 8, -(-(before + count) // 8)
        found = loops.unpack(self.bits[:, first:last], self.lowest, before % 8, self.height, shape)
        if found is not None:
            return found
        planes = unpacked(self.bits[:, first:last], before % 8 + count)[:, before % 8 :]
        flat = planes[0].to(self.height)
        for bit, plane in enumerate(planes[1:], 1):
            flat.add_(plane.to(flat), alpha=2**bit)
        if self.lowest:
            flat.add_(self.lowest)
        if len(shape) == 5:
            levels = flat.reshape(*shape[:2], *shape[3:], shape[2]).permute(0, 1, 4, 2, 3)
        else:
            levels = flat.reshape(shape)
        return levels.mul_(self.height)


def level_bits(alphabet: Sequence[int]) -> int:
    """How many bits encode the levels of an alphabet."""
    return max(1, (len(alphabet) - 1).bit_length())


def packed(bits: Tensor) -> Tensor:
    """Zeros and ones `[n]` as bytes, highest bit first. Numpy works on CPUs only."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.packbits(bits.numpy()))
    return packed_in_place(bits)


def packed_in_place(bits: Tensor) -> Tensor:
    """The same on the tensor's own device."""
    rows = nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).reshape(-1, 8)
    return (rows << _places(bits.device)).sum(1, dtype=torch.uint8)


def unpacked(rows: Tensor, count: int) -> Tensor:
    """The inverse: the first `count` bits of each row of bytes."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(rows.numpy(), axis=1, count=count))
    return unpacked_in_place(rows, count)


def unpacked_in_place(rows: Tensor, count: int) -> Tensor:
    """The same on the tensor's own device."""
    return (rows[..., None] >> _places(rows.device) & 1).flatten(1)[:, :count]


def _places(device: torch.device) -> Tensor:
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=device)


Value = Train | Tensor
Key = tuple[str, int, str]  # boundary, micro-batch, and kind: "ann" [N, ...], "snn" or "current" [T or 1, N, ...]


class Cache:
    """Values by boundary and micro-batch. Whatever exceeds `budget` bytes goes to disk, with the same results.

    Currents can be recomputed: they are kept only if there is room. With `folder`, everything else is written
    there as well, for the next process to find.
    """

    def __init__(self, budget: int, device: torch.device, folder: Path | None = None) -> None:
        self.budget, self.device, self.folder = budget, device, folder
        self.used = 0
        self._untidy = 0  # bytes of currents since freed memory was last returned
        self._memory: dict[Key, Value] = {}
        self._pinned: dict[Key, Value] = {}
        self._temporary: Path | None = None

    def pin(self, key: Key, value: Value) -> None:
        """Add a value that stays and does not count: the images, which the caller holds anyway."""
        self._pinned[key] = value

    def put(self, key: Key, value: Value) -> None:
        self._drop(key)
        fits = self.used + _bytes(value) <= self.budget
        if not _again(key) and (self.folder is not None or not fits):
            _write(self._path(key), value)
        if fits:
            self._memory[key] = value
            self.used += _bytes(value)
            self._untidy += _bytes(value) if _again(key) else 0
        if 2 * self.used > self.budget and UNTIDY * self._untidy > self.budget:
            return_freed_memory()  # the allocator leaves holes the size of large values, which would double the use
            self._untidy = 0

    def make_room(self, needed: int) -> bool:
        """Move values from memory to disk until `needed` bytes of the budget are free; returns whether they are."""
        for key in sorted(self._memory, key=_again, reverse=True):
            if self.used + needed <= self.budget:
                break
            if not _again(key) and self.folder is None:
                _write(self._path(key), self._memory[key])
            self._drop(key)
        return self.used + needed <= self.budget

    def empty(self, images: int, like: Tensor, in_memory: bool) -> Tensor:
        """Room for `images` images such as those of `like` `[N, ...]`, channels last, in memory or on disk."""
        wide = like.ndim == 4
        shape = (images, *(like.permute(0, 2, 3, 1) if wide else like).shape[1:])
        if in_memory:
            flat = torch.empty(shape, dtype=like.dtype, device=like.device)
        else:
            path = self._directory() / f"samples-{uuid4().hex}"  # other ranks may have files there
            flat = torch.from_file(str(path), shared=True, size=prod(shape), dtype=like.dtype).view(shape)
            path.unlink()  # it exists as long as the tensor does
        return flat.permute(0, 3, 1, 2) if wide else flat

    def get(self, key: Key) -> Value:
        held = self._memory.get(key, self._pinned.get(key))
        return held if held is not None else _read(self._path(key), self.device)

    def find(self, key: Key) -> Value | None:
        """A current, if there was room to keep it."""
        return self._memory.get(key)

    def free(self, name: str, what: str = "*") -> None:
        """Release everything kept of a boundary, or one kind of it."""
        for key in [k for k in self._memory if k[0] == name and (what == "*" or k[2].startswith(what))]:
            self._drop(key)
        if self.folder or self._temporary:
            for path in self._directory().glob(f"{_file_name(name)}-*.{what}"):
                path.unlink(missing_ok=True)

    def forget_current(self, name: str, batch: int) -> None:
        """Let go of all parts of one current."""
        for key in [k for k in self._memory if k[:2] == (name, batch) and _again(k)]:
            self._drop(key)

    def close(self) -> None:
        self._memory.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _drop(self, key: Key) -> None:
        if key in self._memory:
            self.used -= _bytes(self._memory.pop(key))

    def _directory(self) -> Path:
        if self.folder is not None:
            return self.folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="spikecal-"))
        return self._temporary

    def _path(self, key: Key) -> Path:
        name, batch, what = key
        return self._directory() / f"{_file_name(name)}-{batch}.{what}"


def _again(key: Key) -> bool:
    """Whether a value can be recomputed."""
    return key[2].startswith("current")


def over_time(value: Value) -> Tensor:
    """`[T or 1, N, ...]` floats, however they were kept."""
    return value.unpack() if isinstance(value, Train) else value


def steps_of(value: Value, start: int, steps: int) -> Tensor:
    """Some steps of a value; a constant value stays `[1, N, ...]`."""
    if isinstance(value, Train):
        return value.unpack(start, steps)
    return value if value.shape[0] == 1 else value[start : start + steps]


def joined_in_time(parts: list[Value], steps: int) -> Value:
    """Parts of up to `steps` steps, one after the other; a constant value has a single part."""
    if len(parts) == 1:
        return parts[0]
    trains = [part for part in parts if isinstance(part, Train)]
    if trains:
        return Train.join(trains)
    values = [part for part in parts if isinstance(part, Tensor)]
    return values[0] if len(values[0]) < steps else torch.cat(values)


def standard(x: Tensor) -> Tensor:
    """`[T, N, ...]` in the one memory layout all boundaries have, so that a value read back runs the same kernels."""
    return channels_last(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _channels_to_end(x: Tensor) -> Tensor:
    return x.movedim(2, -1) if x.ndim == 5 else x


def _bytes(value: Value) -> int:
    return (value.bits if isinstance(value, Train) else value).nbytes


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"%{ord(c):x}." for c in name)


def _write(path: Path, value: Value) -> None:
    if isinstance(value, Train):
        shape, lowest = torch.tensor(value.shape), torch.tensor(value.lowest)
        tensors = {"bits": value.bits, "shape": shape, "height": value.height.contiguous(), "lowest": lowest}
    else:
        tensors = {"value": value.contiguous()}
    store(path, tensors)


def _read(path: Path, device: torch.device) -> Value:
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is missing or damaged ({error}): delete {path.parent} and run again") from error
    if "bits" in found:
        shape, lowest = tuple(found["shape"].tolist()), int(found["lowest"])
        return Train(found["bits"].to(device), shape, found["height"].to(device), lowest)
    value = found["value"].clone()  # into torch's own memory: matrix products round differently if aligned otherwise
    return (standard(value) if path.suffix != ".ann" else channels_last(value)).to(device)
