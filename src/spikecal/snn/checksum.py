"""The checksum that detects altered files."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def digest(value: Tensor) -> bytes:
    """A hash of the dtype, the shape and every byte of a contiguous tensor."""
    found = hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode())
    found.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return found.digest()


def checksum(description: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of the description and every tensor with its name."""
    found = hashlib.sha256(description.encode())
    for name, value in sorted(tensors, key=lambda item: item[0]):
        found.update(name.encode())
        found.update(digest(value))
    return found.hexdigest()
