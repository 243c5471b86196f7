"""Answers image by image, so that two networks can be compared on the same images."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def packed(answers: Iterable[object]) -> str:
    """Whether each answer is right, a bit per image, as hexadecimal digits after a 1."""
    return f"{int('1' + ''.join(str(int(bool(answer))) for answer in answers), 2):x}"


def unpacked(digits: str) -> Tensor:
    return torch.tensor([float(bit) for bit in f"{int(digits, 16):b}"[1:]], dtype=torch.float64)


def paired_error(one: Sequence[str], two: Sequence[str]) -> float | None:
    """The standard error of the difference of two shares of right answers, in points; None if images differ.

    Each holds one string of `packed` answers per seed. Images that both get right, or both wrong, say nothing
    about the difference: that is why it is known better than the two shares.
    """
    found = [torch.stack([unpacked(digits) for digits in some]).mean(0) if some else None for some in (one, two)]
    if found[0] is None or found[1] is None or len(found[0]) != len(found[1]) or len(found[0]) < 2:
        return None
    difference = found[0] - found[1]
    return 100 * float(difference.std()) / math.sqrt(len(difference))
