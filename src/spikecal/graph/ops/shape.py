"""Operations that only move numbers: joining, padding, cutting, reshaping."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.graph.ops.base import Op, Shapes, integers, is_integer, is_number, require
from spikecal.graph.sizes import LARGEST_SIZE, MOST_DIMS, Size, check_size, evaluate_size


class Cat(Op):
    """Concatenation along `dim` (of the folded batch: 1 is the channels)."""

    CONFIG: ClassVar[dict[str, Any]] = {"dim": 1}
    ARITY = None
    dim: int

    def validate(self) -> None:
        require(is_integer(self.dim, 1, MOST_DIMS - 1), "a concatenation must not be along the batch")

    def forward(self, *inputs: Tensor, shapes: Shapes = ()) -> Tensor:
        return torch.cat(inputs, self.dim)


class Pad(Op):
    """torch's padding, last dimension first, by size expressions; constant padding is filled with `value`."""

    CONFIG: ClassVar[dict[str, Any]] = {"pad": ..., "mode": "constant", "value": 0.0}
    pad: tuple[Size, ...]
    mode: str
    value: float

    def validate(self) -> None:
        require(isinstance(self.pad, tuple) and len(self.pad) % 2 == 0, "padding must be an even number of sizes")
        require(len(self.pad) < 2 * MOST_DIMS, "padding must be of existing dimensions")
        self.pad = tuple(check_size(p) for p in self.pad)
        require(self.mode in ("constant", "reflect", "replicate", "circular"), f"there is no padding {self.mode!r}")
        require(is_number(self.value), "a padding's value must be a number")

    def sizes(self) -> Sequence[Size]:
        return self.pad

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        pad = [evaluate_size(p, x.shape[0], shapes) for p in self.pad]
        return F.pad(x, pad, self.mode, self.value if self.mode == "constant" else None)


WHOLE = ("slice", None, None, None)  # all of a dimension


class Slice(Op):
    """Basic indexing. An item is an int, None (a new dimension) or `("slice", start, stop, step)`."""

    CONFIG: ClassVar[dict[str, Any]] = {"index": ...}
    index: tuple[Any, ...]

    def validate(self) -> None:
        require(isinstance(self.index, tuple) and len(self.index) <= MOST_DIMS, "an index must be a tuple")
        self.index = tuple(map(_item, self.index))
        require(len(self.index) == 0 or self.index[0] == WHOLE, "an index must leave the batch alone")

    def sizes(self) -> Sequence[Size]:
        return [size for item in self.index if isinstance(item, tuple) for size in item[1:]]

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        index = tuple(
            slice(*(None if s is None else evaluate_size(s, x.shape[0], shapes) for s in item[1:]))
            if isinstance(item, tuple)
            else item
            for item in self.index
        )
        return x[index]


def _item(item: Any) -> Any:
    if item is None or is_integer(item, -LARGEST_SIZE, LARGEST_SIZE):
        return item
    require(isinstance(item, tuple) and len(item) == 4 and item[0] == "slice", f"{str(item)[:60]} is not an index")
    start, stop, step = (None if s is None else check_size(s) for s in item[1:])
    require(type(step) is not int or step > 0, "a slice's step must be positive")
    return ("slice", start, stop, step)


class Reshape(Op):
    """To a shape of expressions; dimension 0 is the batch before and after."""

    CONFIG: ClassVar[dict[str, Any]] = {"shape": ...}
    shape: tuple[Size, ...]

    def validate(self) -> None:
        require(
            isinstance(self.shape, tuple) and 1 <= len(self.shape) <= MOST_DIMS, "a shape must have 1 to 16 dimensions"
        )
        self.shape = tuple(check_size(s) for s in self.shape)
        require(self.shape[0] in (("batch",), -1), "a reshape must leave the batch alone")
        numbers = [s for s in self.shape if type(s) is int]
        require(all(n > 0 or n == -1 for n in numbers) and numbers.count(-1) <= 1,
                 "a shape must have positive sizes, and -1 at most once")  # fmt: skip

    def sizes(self) -> Sequence[Size]:
        return self.shape

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        y = x.reshape([evaluate_size(s, x.shape[0], shapes) for s in self.shape])
        if y.shape[0] != x.shape[0]:
            raise ValueError(f"a reshape from {list(x.shape)} to {list(y.shape)} mixes images")
        return y


class Flatten(Op):
    CONFIG: ClassVar[dict[str, Any]] = {"start": 1, "end": -1}
    start: int
    end: int

    def validate(self) -> None:
        require(is_integer(self.start, 1, MOST_DIMS - 1), "flattening must leave the batch alone")
        require(is_integer(self.end, self.start, MOST_DIMS - 1) or is_integer(self.end, 1 - MOST_DIMS, -1),
                 "flattening must end at a dimension after its start")  # fmt: skip

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.flatten(self.start, self.end)


class Permute(Op):
    CONFIG: ClassVar[dict[str, Any]] = {"dims": ...}
    dims: tuple[int, ...]

    def validate(self) -> None:
        require(integers(self.dims, 0, range(1, MOST_DIMS + 1)), "a permutation must be of 1 to 16 dimensions")
        require(sorted(self.dims) == list(range(len(self.dims))), "not a permutation")
        require(self.dims[0] == 0, "a permutation must leave the batch first")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.permute(self.dims)
