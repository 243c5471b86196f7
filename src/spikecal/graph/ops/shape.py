"""Operations that only move numbers: joining, padding, cutting, reshaping."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.graph.ops.base import Op, Shapes, integers, require
from spikecal.graph.sizes import Size, check_size, evaluate_size


class Cat(Op):
    """Concatenation along `dim` (of the folded batch: 1 is the channels)."""

    CONFIG: ClassVar[dict[str, Any]] = {"dim": 1}
    ARITY = None
    dim: int

    def validate(self) -> None:
        require(type(self.dim) is int and self.dim >= 1, "a concatenation must not be along the batch")

    def forward(self, *inputs: Tensor, shapes: Shapes = ()) -> Tensor:
        return torch.cat(inputs, self.dim)


class Pad(Op):
    """torch's padding, last dimension first, by size expressions; constant padding is filled with `value`."""

    CONFIG: ClassVar[dict[str, Any]] = {"pad": ..., "mode": "constant", "value": 0.0}
    pad: tuple[Size, ...]
    mode: str
    value: float

    def validate(self) -> None:
        require(isinstance(self.pad, tuple) and len(self.pad) % 2 == 0, "padding is an even number of sizes")
        self.pad = tuple(check_size(p, 64) for p in self.pad)
        require(self.mode in ("constant", "reflect", "replicate", "circular"), f"there is no padding {self.mode!r}")
        require(isinstance(self.value, (int, float)), "a padding's value must be a number")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        pad = [evaluate_size(p, x.shape[0], shapes) for p in self.pad]
        return F.pad(x, pad, self.mode, self.value if self.mode == "constant" else None)


WHOLE = ("slice", None, None, None)  # all of a dimension


class Slice(Op):
    """Basic indexing. An item is an int, None (a new dimension) or `("slice", start, stop, step)`."""

    CONFIG: ClassVar[dict[str, Any]] = {"index": ...}
    index: tuple[Any, ...]

    def validate(self) -> None:
        require(isinstance(self.index, tuple) and len(self.index) <= 16, "an index is a tuple")
        items: list[Any] = []
        for item in self.index:
            if item is None or type(item) is int:
                items.append(item)
                continue
            require(isinstance(item, tuple) and len(item) == 4 and item[0] == "slice", f"{item!r} is no index")
            items.append(("slice", *(None if s is None else check_size(s, 64) for s in item[1:])))
        self.index = tuple(items)
        require(len(items) == 0 or items[0] == WHOLE, "an index must leave the batch alone")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        index = tuple(
            slice(*(None if s is None else evaluate_size(s, x.shape[0], shapes) for s in item[1:]))
            if isinstance(item, tuple)
            else item
            for item in self.index
        )
        return x[index]


class Reshape(Op):
    """To a shape of expressions; dimension 0 is the batch before and after."""

    CONFIG: ClassVar[dict[str, Any]] = {"shape": ...}
    shape: tuple[Size, ...]

    def validate(self) -> None:
        require(isinstance(self.shape, tuple) and 1 <= len(self.shape) <= 16, "a shape has 1 to 16 dimensions")
        self.shape = tuple(check_size(s, 64) for s in self.shape)
        require(self.shape[0] in (("batch",), -1), "a reshape must leave the batch alone")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        y = x.reshape([evaluate_size(s, x.shape[0], shapes) for s in self.shape])
        if y.shape[0] != x.shape[0]:
            raise ValueError(f"a reshape from {list(x.shape)} to {list(y.shape)} mixes up images")
        return y


class Flatten(Op):
    CONFIG: ClassVar[dict[str, Any]] = {"start": 1, "end": -1}
    start: int
    end: int

    def validate(self) -> None:
        require(type(self.start) is int and self.start >= 1 and type(self.end) is int, "the batch stays apart")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.flatten(self.start, self.end)


class Permute(Op):
    CONFIG: ClassVar[dict[str, Any]] = {"dims": ...}
    dims: tuple[int, ...]

    def validate(self) -> None:
        require(integers(self.dims, 0) and sorted(self.dims) == list(range(len(self.dims))), "not a permutation")
        require(self.dims[0] == 0, "a permutation must leave the batch first")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.permute(self.dims)
