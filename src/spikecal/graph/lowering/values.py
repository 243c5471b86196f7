"""Values of the traced program during lowering.

A `Ref` is a tensor computed by a canonical node, a `Dim` a size known only when the network runs. Everything else
is a constant, and tuples, lists and dicts nest all of these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spikecal.graph.sizes import OPERATORS, Size


class Refusal(Exception):
    """Something that cannot be lowered; `hint` is the way out, if there is a better one than the usual.

    `analog`: whether it could be part of the analog end of a network.
    """

    def __init__(self, found: str, hint: str | None = None, is_reported: bool = False, analog: bool = True) -> None:
        super().__init__(found)
        self.found, self.hint, self.is_reported, self.analog = found, hint, is_reported, analog


@dataclass(frozen=True)
class Ref:
    """The value of a canonical node: its shape on the example and the dimension of its channels.

    For each dimension, `fixed` is its size if that is the same for every input, and `origin` where the size comes
    from: ("of", node, dimension) of the first node that has it, so that sizes which are always equal are equal here.
    """

    name: str
    shape: tuple[int, ...]
    channel: int
    fixed: tuple[int | None, ...]
    origin: tuple[Size, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dims(self) -> tuple[Any, ...]:
        """The shape with the sizes that depend on the input left open."""
        parts = zip(self.origin, self.shape, self.fixed, strict=True)
        return tuple(Dim(origin, n) if fixed is None else fixed for origin, n, fixed in parts)

    def dim(self, d: int) -> int:
        """A dimension's number, counted from the front."""
        if not -self.ndim <= d < self.ndim:
            raise Refusal(f"dimension {d} of a value with {self.ndim}")
        return d % self.ndim


@dataclass(frozen=True)
class Dim:
    """A size: an expression over ("batch",) and ("of", node, dimension), and its value on the example."""

    expression: Size
    value: int

    def __add__(self, other: Any) -> Any:
        return combine("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return combine("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return combine("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return combine("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return combine("*", self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return combine("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return combine("//", other, self)

    def __neg__(self) -> Any:
        return combine("-", 0, self)

    @property
    def is_batch(self) -> bool:
        return bool(self.expression == ("batch",))


@dataclass(frozen=True)
class Lost:
    """An unknown value; reading it is an error, unless it `is_reported` already."""

    found: str
    hint: str | None = None
    is_reported: bool = False


def combine(operator: str, a: Any, b: Any) -> Any:
    if not all(isinstance(v, Dim) or type(v) is int for v in (a, b)):
        return NotImplemented
    left, right = (v.expression if isinstance(v, Dim) else v for v in (a, b))
    return Dim((operator, left, right), OPERATORS[operator](example_size(a), example_size(b)))


def example_size(size: Any) -> int:
    """The value of a size on the example."""
    return size.value if isinstance(size, Dim) else int(size)


def find(kind: type | tuple[type, ...], value: Any) -> list[Any]:
    """All elements of a kind in nested tuples, lists, dicts and slices."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    if isinstance(value, (tuple, list)):
        return [found for part in value for found in find(kind, part)]
    return []


def replace(value: Any, kind: type | tuple[type, ...], function: Callable[[Any], Any]) -> Any:
    """The same structure with `function` applied to all elements of a kind."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {k: replace(v, kind, function) for k, v in value.items()}
    if isinstance(value, list):
        return [replace(v, kind, function) for v in value]
    if isinstance(value, tuple):
        return tuple(replace(v, kind, function) for v in value)
    if isinstance(value, slice):
        return slice(*(replace(v, kind, function) for v in (value.start, value.stop, value.step)))
    return value
