"""Sizes that depend on the input: the arithmetic behind `x.view(x.size(0), -1)`, as plain data.

An expression is an int, `("batch",)`, `("size", k, d)` (dimension d of the k-th given shape) or
`(operator, left, right)` with one of `+ - * // =`. Plain tuples: they go into JSON and come back.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spikecal.errors import DataError

Size = Any  # int | ("batch",) | ("size", int, int) | (operator, Size, Size): a recursive type, checked by `check_size`


def demanded(found: int, wanted: int) -> int:
    """The operator `=`: a size that must equal that at lowering."""
    if found != wanted:
        raise DataError(
            f"the network accepts only inputs of the size it was converted for, as its code computes with sizes: "
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
MAX_PARTS = 256  # of one expression
LARGEST_SIZE = 2**31
MOST_DIMS = 16


def evaluate_size(size: Size, batch: int, shapes: Sequence[Sequence[int]]) -> int:
    """The number that `size` stands for. `shapes` are whole shapes; `batch` is used instead of their dimension 0."""
    if isinstance(size, int):
        return size
    if size[0] == "batch":
        return batch
    if size[0] == "size":
        return int(shapes[size[1]][size[2]])
    return OPERATORS[size[0]](evaluate_size(size[1], batch, shapes), evaluate_size(size[2], batch, shapes))


def check_size(size: object, depth: int = 0) -> Size:
    """`size` with tuples for lists; ValueError if it is not an expression."""
    if depth > MAX_DEPTH:
        raise ValueError("a size expression is nested too deeply")
    if type(size) is int and abs(size) < LARGEST_SIZE:
        return size
    if isinstance(size, (list, tuple)) and size:
        head = size[0]
        if head == "batch" and len(size) == 1:
            return ("batch",)
        numbered = len(size) == 3 and all(type(i) is int for i in size[1:])
        if head == "size" and numbered and size[1] >= 0 and 1 <= size[2] < MOST_DIMS:
            return tuple(size)
        if isinstance(head, str) and head in OPERATORS and len(size) == 3:
            made = (head, check_size(size[1], depth + 1), check_size(size[2], depth + 1))
            if depth == 0 and _parts(made) > MAX_PARTS:
                raise ValueError("a size expression has too many parts")
            return made
    raise ValueError(f"{str(size)[:80]!r} is not a size expression")


def shapes_read(size: Size) -> Iterator[int]:
    """The numbers of the shapes that an expression reads."""
    if isinstance(size, tuple) and size[0] == "size":
        yield size[1]
    elif isinstance(size, tuple) and size[0] in OPERATORS:
        yield from shapes_read(size[1])
        yield from shapes_read(size[2])


def _parts(size: Size) -> int:
    return 1 + _parts(size[1]) + _parts(size[2]) if isinstance(size, tuple) and size[0] in OPERATORS else 1
