"""Sizes that depend on the input: the arithmetic behind `x.view(x.size(0), -1)`, as plain data.

An expression is an int, `("batch",)`, `("size", k, d)` (dimension d of the k-th shape at hand) or
`(operator, left, right)` with one of `+ - * // =`. Plain tuples: they go into JSON and come back.
"""

from collections.abc import Callable, Sequence
from typing import Any

from spikecal.errors import DataError

Size = Any  # int | ("batch",) | ("size", int, int) | (operator, Size, Size): a recursive type, checked by `check_size`


def demanded(found: int, wanted: int) -> int:
    """The operator `=`: a size that must be what it was when the network was lowered."""
    if found != wanted:
        raise DataError(
            f"the network takes inputs of the one size it was converted for, because its code computes with sizes: "
            f"a dimension is {found}, not {wanted}"
        )
    return wanted


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "=": demanded,
}
MAX_DEPTH = 32


def evaluate_size(size: Size, batch: int, shapes: Sequence[Sequence[int]]) -> int:
    """The number `size` stands for. `shapes` are whole shapes; their dimension 0 is never read, `batch` is."""
    if isinstance(size, int):
        return size
    if size[0] == "batch":
        return batch
    if size[0] == "size":
        return int(shapes[size[1]][size[2]])
    return OPERATORS[size[0]](evaluate_size(size[1], batch, shapes), evaluate_size(size[2], batch, shapes))


def check_size(size: object, references: int, depth: int = 0) -> Size:
    """`size` with lists made tuples, or ValueError where it is no expression over `references` shapes."""
    if depth > MAX_DEPTH:
        raise ValueError("a size expression is nested too deeply")
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if isinstance(size, (list, tuple)) and size:
        head = size[0]
        if head == "batch" and len(size) == 1:
            return ("batch",)
        numbered = len(size) == 3 and all(type(i) is int for i in size[1:])
        if head == "size" and numbered and 0 <= size[1] < references and size[2] >= 1:
            return tuple(size)
        if isinstance(head, str) and head in OPERATORS and len(size) == 3:
            return (head, check_size(size[1], references, depth + 1), check_size(size[2], references, depth + 1))
    raise ValueError(f"{str(size)[:80]!r} is not a size expression")
