"""Pools, means and interpolation: operations on neighbouring positions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal.errors import DataError
from spikecal.graph.ops.base import (
    LARGEST,
    Op,
    Shapes,
    State,
    integers,
    is_integer,
    is_vector,
    require,
)
from spikecal.graph.sizes import MOST_DIMS, Size, check_size, evaluate_size


def _check_window(op: "AvgPool | MaxPool") -> None:
    """What the two kinds of pools share."""
    require(integers(op.kernel, 1, [1, 2, 3]), "a pool's kernel must be positive")
    dims = [len(op.kernel)]
    require(integers(op.stride, 1, dims), "a pool's stride must be positive")
    require(integers(op.padding, 0, dims), "a pool's padding must not be negative")
    halves = zip(op.padding, op.kernel, strict=True)
    require(
        all(2 * padding <= kernel for padding, kernel in halves), "a pool's padding must be at most half its kernel"
    )
    require(type(op.ceil_mode) is bool, "a pool's ceil_mode must be true or false")


class AvgPool(Op):
    CONFIG: ClassVar[dict[str, Any]] = {
        "kernel": ..., "stride": ..., "padding": ..., "ceil_mode": False, "count_include_pad": True,
        "divisor_override": None,
    }  # fmt: skip
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None

    def validate(self) -> None:
        _check_window(self)
        require(type(self.count_include_pad) is bool, "a pool's count_include_pad must be true or false")
        require(self.divisor_override is None or is_integer(self.divisor_override, 1, LARGEST**2),
                 "a pool's divisor must be positive")  # fmt: skip
        require(self.divisor_override is None or len(self.kernel) > 1, "a pool in one dimension has no divisor")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        if len(self.kernel) == 1:
            return F.avg_pool1d(x, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        function = F.avg_pool2d if len(self.kernel) == 2 else F.avg_pool3d
        return function(
            x, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        )


class AdaptiveAvgPool(Op):
    """Average pooling to a fixed output size; None keeps that dimension.

    `square` is for a model that averages with one side of the image as its kernel, which works only on square images.
    """

    CONFIG: ClassVar[dict[str, Any]] = {"size": ..., "square": False}
    size: tuple[int | None, ...]
    square: bool

    def validate(self) -> None:
        require(
            isinstance(self.size, tuple) and len(self.size) in (1, 2, 3), "an output size must have 1 to 3 dimensions"
        )
        require(all(s is None or is_integer(s, 1, LARGEST) for s in self.size), "an output size must be positive")
        require(type(self.square) is bool, "square must be true or false")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        if self.square and len(set(x.shape[2:])) > 1:
            raise DataError(f"this network averages only over square images, but gets {list(x.shape[2:])} there")
        function: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(self.size) - 1]
        return function(x, [n if s is None else s for s, n in zip(self.size, x.shape[2:], strict=True)])


class Reduce(Op):
    """Mean or sum over dimensions other than the batch."""

    CONFIG: ClassVar[dict[str, Any]] = {"kind": "mean", "dims": ..., "keepdim": False}
    kind: str
    dims: tuple[int, ...]
    keepdim: bool

    def validate(self) -> None:
        require(self.kind in ("mean", "sum"), "a reduction must be a mean or a sum")
        require(integers(self.dims, 1, range(1, MOST_DIMS)) and max(self.dims) < MOST_DIMS,
                 "a reduction must be over dimensions other than the batch")  # fmt: skip
        require(len(set(self.dims)) == len(self.dims), "a reduction must name each dimension only once")
        require(type(self.keepdim) is bool, "keepdim must be true or false")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return getattr(x, self.kind)(self.dims, keepdim=self.keepdim)


class MaxPool(Op):
    """Max-pooling over time: pool the running sum of what has arrived and emit its increments.

    The sum over T is then the pool of the sum. `of="spikes"` pools sums of levels, whose increments are again levels;
    `of="current"` pools the running sum of a current. The maximum of one step's spikes would fire whenever any neuron
    of the window does, which is far too often. `unit` [C] is the height of level 1; without it levels are 0 and 1.
    """

    TENSORS = ("unit",)

    CONFIG: ClassVar[dict[str, Any]] = {
        "kernel": ...,
        "stride": ...,
        "padding": ...,
        "dilation": ...,
        "ceil_mode": False,
        "of": "current",
    }
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    of: str
    unit: nn.Parameter | None

    def validate(self) -> None:
        _check_window(self)
        require(integers(self.dilation, 1, [len(self.kernel)]), "a pool's dilation must be positive")
        require(self.of in ("current", "spikes"), "a max-pool must be of a current or of spikes")
        require(is_vector(self.unit), "a max-pool's unit must have one number per channel")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(self.kernel) - 1]
        return function(x, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    def over_time(self, inputs: Sequence[Tensor], steps: int, shapes: Shapes, state: State | None) -> Tensor:
        (x,) = inputs
        if x.shape[0] == 1 and (state is None or steps > 1):  # constant in time, or the ANN: so is its pool
            return self(x[0]).unsqueeze(0)
        state = {} if state is None else state
        arriving = self._levels(x) if self.of == "spikes" else x
        total = arriving.cumsum(0)
        if "sum" in state:
            total = total + state["sum"]
        pooled = super().over_time([total], steps, shapes, None)
        before = state.get("pooled", torch.zeros_like(pooled[0])).unsqueeze(0)
        state["sum"], state["pooled"] = total[-1], pooled[-1]
        increments = pooled - torch.cat([before, pooled[:-1]])
        return increments * self._height(x) if self.of == "spikes" else increments

    def _levels(self, x: Tensor) -> Tensor:
        levels = (x != 0).to(x.dtype) if self.unit is None else (x / self._height(x)).round()
        if not x.requires_grad:
            return levels
        # adds nothing, but gives a level the slope of what it was read from
        return levels.detach() + (x - x.detach()) / self._height(x).clamp(min=torch.finfo(x.dtype).tiny)

    def _height(self, x: Tensor) -> Tensor:
        """The height of level 1, by channel; if a pooled count of spikes grows, one of them is in `x` right now."""
        if self.unit is None:
            return x.detach().amax([0, 1, *range(3, x.ndim)], keepdim=True)
        return self.unit.reshape(-1, *(1,) * (x.ndim - 3))


class Upsample(Op):
    """Interpolation by factors (`scale`) or to a size (`size`, expressions over the shapes at hand)."""

    CONFIG: ClassVar[dict[str, Any]] = {"mode": "nearest", "size": None, "scale": None, "align_corners": None}
    DIMS = (1, 2, 3)
    MODES: ClassVar[dict[str, tuple[int, ...]]] = {  # and how many dimensions they are for
        "nearest": DIMS, "nearest-exact": DIMS, "area": DIMS,
        "linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,),
    }  # fmt: skip
    mode: str
    size: tuple[Size, ...] | None
    scale: tuple[float, ...] | None
    align_corners: bool | None

    def validate(self) -> None:
        require(isinstance(self.mode, str) and self.mode in self.MODES,
                 f"interpolation must be one of {', '.join(self.MODES)}")  # fmt: skip
        require((self.size is None) != (self.scale is None), "interpolation needs a size or a scale, not both")
        given = self.scale if self.size is None else self.size
        require(isinstance(given, tuple) and len(given) in self.MODES[self.mode],
                 f"interpolation by {self.mode} is for a different number of dimensions")  # fmt: skip
        if self.size is not None:
            self.size = tuple(check_size(s) for s in self.size)
            require(all(s > 0 for s in self.size if type(s) is int), "interpolation's size must be positive")
        else:
            require(all(type(s) in (int, float) and 0 < s < 1024 for s in self.scale or ()),
                     "interpolation's scale must be positive numbers")  # fmt: skip
        require(self.align_corners is None or type(self.align_corners) is bool,
                 "align_corners must be true, false or absent")  # fmt: skip
        require(self.align_corners is None or self.mode.endswith(("linear", "cubic")),
                 f"interpolation by {self.mode} has no corners to align")  # fmt: skip

    def sizes(self) -> Sequence[Size]:
        return self.size or ()

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        size = None
        if self.size is not None:
            size = [evaluate_size(s, x.shape[0], shapes) for s in self.size]
        scale = None if self.scale is None else [float(s) for s in self.scale]
        return F.interpolate(x, size=size, scale_factor=scale, mode=self.mode, align_corners=self.align_corners)
