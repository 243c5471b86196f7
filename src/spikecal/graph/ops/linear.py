"""Operations with weights, and sums."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal.graph.ops.base import Op, Shapes, State, integers, is_integer, is_number, is_vector, require


class _Convolution(Op):
    """What both kinds of convolution share."""

    TENSORS = ("weight", "bias")
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def validate(self) -> None:
        dims = self.weight.ndim - 2 if self.weight is not None else 0
        require(dims in (1, 2, 3), "a convolution's weight must have 3 to 5 dimensions")
        require(self.weight.numel() > 0, "a convolution's weight must not be empty")
        require(integers(self.stride, 1, [dims]), "a convolution's stride must be positive")
        require(integers(self.padding, 0, [dims]), "a convolution's padding must not be negative")
        require(integers(self.dilation, 1, [dims]), "a convolution's dilation must be positive")
        channels = self.weight.shape[0]  # groups must divide these
        require(is_integer(self.groups, 1, channels) and channels % self.groups == 0,
                 "a convolution's groups must divide its channels")  # fmt: skip
        require(is_vector(self.bias, [self.out_channels]), "a convolution's bias must have one number per channel")

    @property
    def out_channels(self) -> int:
        raise NotImplementedError

    @property
    def in_channels(self) -> int:
        raise NotImplementedError


class Conv(_Convolution):
    """Convolution in 1, 2 or 3 dimensions, zero padding; other paddings are a Pad before it."""

    CONFIG: ClassVar[dict[str, Any]] = {"stride": ..., "padding": ..., "dilation": ..., "groups": 1}

    @property
    def out_channels(self) -> int:
        return self.weight.shape[0]

    @property
    def in_channels(self) -> int:
        return self.weight.shape[1] * self.groups

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[self.weight.ndim - 3]
        stride = self.stride
        if torch.is_grad_enabled() and not any(self.padding) and set(self.weight.shape[2:]) == {1}:
            # Some builds of torch corrupt memory in the weight gradient of a strided 1x1 convolution, channels last.
            index = (slice(None), slice(None), *(slice(None, None, step) for step in stride))
            x, stride = x[index], (1,) * len(stride)
        return function(x, self.weight, self.bias, stride, self.padding, self.dilation, self.groups)


class ConvTranspose(_Convolution):
    """Transposed convolution in 1, 2 or 3 dimensions."""

    CONFIG: ClassVar[dict[str, Any]] = {
        "stride": ...,
        "padding": ...,
        "output_padding": ...,
        "dilation": ...,
        "groups": 1,
    }
    output_padding: tuple[int, ...]

    def validate(self) -> None:
        super().validate()
        dims = self.weight.ndim - 2
        require(integers(self.output_padding, 0, [dims]), "output_padding must not be negative")
        steps = zip(self.output_padding, self.stride, self.dilation, strict=True)
        require(all(padding < max(others) for padding, *others in steps),
                 "output_padding must be smaller than the stride or the dilation")  # fmt: skip

    @property
    def out_channels(self) -> int:
        return self.weight.shape[1] * self.groups

    @property
    def in_channels(self) -> int:
        return self.weight.shape[0]

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.weight.ndim - 3]
        return function(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class Linear(Op):
    """`x W^T + b` on the last dimension."""

    TENSORS = ("weight", "bias")
    weight: nn.Parameter
    bias: nn.Parameter | None

    def validate(self) -> None:
        require(self.weight is not None and self.weight.ndim == 2, "a linear layer's weight must have 2 dimensions")
        require(self.weight.numel() > 0, "a linear layer's weight must not be empty")
        require(is_vector(self.bias, [self.out_channels]), "a linear layer's bias must have one number per output")

    @property
    def out_channels(self) -> int:
        return self.weight.shape[0]

    @property
    def in_channels(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ChannelAffine(Op):
    """`x * scale + shift`; both broadcast against x and have size 1 (or none) at the batch dimension."""

    TENSORS = ("scale", "shift")
    scale: nn.Parameter | None
    shift: nn.Parameter | None

    def validate(self) -> None:
        require(self.scale is not None or self.shift is not None, "an affine map needs a scale or a shift")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        if self.scale is not None:
            x = x * self.scale
        return x if self.shift is None else x + self.shift


class Add(Op):
    """`sum_i coefficients[i] * x_i`, broadcasting; subtraction has a coefficient of -1."""

    CONFIG: ClassVar[dict[str, Any]] = {"coefficients": ...}
    ARITY = None
    coefficients: tuple[float, ...]

    def validate(self) -> None:
        require(
            isinstance(self.coefficients, tuple)
            and len(self.coefficients) >= 1
            and all(is_number(c) for c in self.coefficients),
            "an addition's coefficients must be numbers",
        )

    def validate_reads(self, inputs: int, shapes: int) -> None:
        super().validate_reads(inputs, shapes)
        require(inputs == len(self.coefficients), "an addition needs one coefficient per input")

    def forward(self, *inputs: Tensor, shapes: Shapes = ()) -> Tensor:
        terms = [x if c == 1 else x * c for x, c in zip(inputs, self.coefficients, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def over_time(self, inputs: Sequence[Tensor], steps: int, shapes: Shapes, state: State | None) -> Tensor:
        ndim = max(x.ndim for x in inputs)  # broadcasting must not confuse time with the batch
        padded = [x.reshape(*x.shape[:2], *(1,) * (ndim - x.ndim), *x.shape[2:]) for x in inputs]
        return self(*padded)
