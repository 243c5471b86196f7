"""The closed set of operations a canonical graph is made of.

Each operation is a small module: plain configuration (`CONFIG`, goes into JSON) and tensors (`TENSORS`, go into
safetensors). `forward` works on one folded batch `[B, ...]`; `over_time` on `[steps or 1, N, ...]`, where a leading 1
means the same value at every step. All of them but MaxPool and Spike are affine, and act on each step alone.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal.errors import DataError
from spikecal.graph.sizes import Size, check_size, evaluate_size

State = dict[str, Tensor]  # what an operation remembers from one step to the next
Shapes = Sequence[Sequence[int]]  # shapes of the first input and of the node's shape references


class Op(nn.Module):
    """Base: configuration by keyword, validated here; tensors registered as frozen parameters (or None)."""

    CONFIG: ClassVar[dict[str, Any]] = {}  # name -> default; `...` means required
    TENSORS: ClassVar[tuple[str, ...]] = ()
    ARITY: ClassVar[int | None] = 1  # None: one or more inputs

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        for name in self.TENSORS:
            value = settings.pop(name, None)
            self.register_parameter(name, None if value is None else frozen(value))
        for name, default in self.CONFIG.items():
            value = settings.pop(name, default)
            if value is ...:
                raise ValueError(f"{type(self).__name__} needs {name}")
            setattr(self, name, _plain(value))
        if settings:
            raise ValueError(f"{type(self).__name__} has no setting {sorted(settings)[0]!r}")
        self.validate()

    def validate(self) -> None:
        """Raise ValueError where the configuration cannot be run."""

    def config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.CONFIG}

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.TENSORS if getattr(self, name) is not None}

    def clone(self) -> Self:
        """A module of its own over the same memory."""
        return type(self)(**self.config(), **self.tensors())

    def over_time(self, inputs: Sequence[Tensor], steps: int, shapes: Shapes, state: State | None) -> Tensor:
        """Apply to `[time, N, ...]` tensors by folding time into the batch."""
        time = max(x.shape[0] for x in inputs)
        folded = [x.expand(time, *x.shape[1:]).flatten(0, 1) for x in inputs]
        return self(*folded, shapes=shapes).unflatten(0, (time, -1))

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.config().items())


def frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach(), requires_grad=False)


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, (list, tuple)) else value


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _integers(value: Any, low: int, lengths: Sequence[int] | None = None) -> bool:
    return (
        isinstance(value, tuple)
        and all(type(v) is int and low <= v < 2**31 for v in value)
        and (lengths is None or len(value) in lengths)
    )


def _is_channel(value: Any) -> bool:
    return type(value) is int and (value >= 1 or value == -1)


class Input(Op):
    """The network's `index`-th input: an image, the same at every step."""

    CONFIG: ClassVar[dict[str, Any]] = {"index": 0}
    ARITY = 0
    index: int

    def validate(self) -> None:
        _require(type(self.index) is int and 0 <= self.index < 64, "an input's index must be 0 to 63")


class Conv(Op):
    """Convolution in 1, 2 or 3 dimensions, zero padding; other paddings are a Pad before it."""

    CONFIG: ClassVar[dict[str, Any]] = {"stride": ..., "padding": ..., "dilation": ..., "groups": 1}
    TENSORS = ("weight", "bias")
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def validate(self) -> None:
        _check_convolution(self)

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[self.weight.ndim - 3]
        stride = self.stride
        if torch.is_grad_enabled() and not any(self.padding) and set(self.weight.shape[2:]) == {1}:
            # Some builds of torch corrupt memory in the weight gradient of a strided 1x1 convolution, channels last.
            index = (slice(None), slice(None), *(slice(None, None, step) for step in stride))
            x, stride = x[index], (1,) * len(stride)
        return function(x, self.weight, self.bias, stride, self.padding, self.dilation, self.groups)


class ConvTranspose(Op):
    """Transposed convolution in 1, 2 or 3 dimensions."""

    CONFIG: ClassVar[dict[str, Any]] = {
        "stride": ...,
        "padding": ...,
        "output_padding": ...,
        "dilation": ...,
        "groups": 1,
    }
    TENSORS = ("weight", "bias")
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def validate(self) -> None:
        _check_convolution(self)
        dims = self.weight.ndim - 2
        _require(_integers(self.output_padding, 0, [dims]), "output_padding must not be negative")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.weight.ndim - 3]
        return function(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


def _check_convolution(op: Conv | ConvTranspose) -> None:
    dims = op.weight.ndim - 2 if op.weight is not None else 0
    _require(dims in (1, 2, 3), "a convolution's weight must have 3 to 5 dimensions")
    _require(_integers(op.stride, 1, [dims]), "a convolution's stride must be positive")
    _require(_integers(op.padding, 0, [dims]), "a convolution's padding must not be negative")
    _require(_integers(op.dilation, 1, [dims]), "a convolution's dilation must be positive")
    _require(type(op.groups) is int and op.groups >= 1, "a convolution's groups must be positive")


class Linear(Op):
    """`x W^T + b` on the last dimension."""

    TENSORS = ("weight", "bias")
    weight: nn.Parameter
    bias: nn.Parameter | None

    def validate(self) -> None:
        _require(self.weight is not None and self.weight.ndim == 2, "a linear layer's weight must have 2 dimensions")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ChannelAffine(Op):
    """`x * scale + shift`; both broadcast against x and have size 1 (or nothing) at the batch dimension."""

    TENSORS = ("scale", "shift")
    scale: nn.Parameter | None
    shift: nn.Parameter | None

    def validate(self) -> None:
        _require(self.scale is not None or self.shift is not None, "an affine map needs a scale or a shift")

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
        _require(
            isinstance(self.coefficients, tuple)
            and len(self.coefficients) >= 1
            and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in self.coefficients),
            "an addition's coefficients must be numbers",
        )

    def forward(self, *inputs: Tensor, shapes: Shapes = ()) -> Tensor:
        terms = [x if c == 1 else x * c for x, c in zip(inputs, self.coefficients, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def over_time(self, inputs: Sequence[Tensor], steps: int, shapes: Shapes, state: State | None) -> Tensor:
        ndim = max(x.ndim for x in inputs)  # broadcasting must not mix up time with the batch
        padded = [x.reshape(*x.shape[:2], *(1,) * (ndim - x.ndim), *x.shape[2:]) for x in inputs]
        return self(*padded)


class Cat(Op):
    """Concatenation along `dim` (of the folded batch: 1 is the channels)."""

    CONFIG: ClassVar[dict[str, Any]] = {"dim": 1}
    ARITY = None
    dim: int

    def validate(self) -> None:
        _require(type(self.dim) is int and self.dim >= 1, "a concatenation must not be along the batch")

    def forward(self, *inputs: Tensor, shapes: Shapes = ()) -> Tensor:
        return torch.cat(inputs, self.dim)


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
        _require(_integers(self.kernel, 1, [1, 2, 3]), "a pool's kernel must be positive")
        dims = [len(self.kernel)]
        _require(_integers(self.stride, 1, dims), "a pool's stride must be positive")
        _require(_integers(self.padding, 0, dims), "a pool's padding must not be negative")
        _require(self.divisor_override is None or (type(self.divisor_override) is int and self.divisor_override > 0),
                 "a pool's divisor must be positive")  # fmt: skip

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        if len(self.kernel) == 1:
            return F.avg_pool1d(x, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        function = F.avg_pool2d if len(self.kernel) == 2 else F.avg_pool3d
        return function(
            x, self.kernel, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        )


class AdaptiveAvgPool(Op):
    """Average pooling to a fixed output size; None keeps that dimension.

    `square` is for a model that averages with one side of the image as its kernel: on other images it does not.
    """

    CONFIG: ClassVar[dict[str, Any]] = {"size": ..., "square": False}
    size: tuple[int | None, ...]
    square: bool

    def validate(self) -> None:
        _require(isinstance(self.size, tuple) and len(self.size) in (1, 2, 3), "an output size has 1 to 3 dimensions")
        _require(_integers(tuple(s for s in self.size if s is not None), 1), "an output size must be positive")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        if self.square and len(set(x.shape[2:])) > 1:
            raise DataError(f"this network averages over square images only, and gets {list(x.shape[2:])} there")
        function: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(self.size) - 1]
        return function(x, [n if s is None else s for s, n in zip(self.size, x.shape[2:], strict=True)])


class Reduce(Op):
    """Mean or sum over dimensions other than the batch."""

    CONFIG: ClassVar[dict[str, Any]] = {"kind": "mean", "dims": ..., "keepdim": False}
    kind: str
    dims: tuple[int, ...]
    keepdim: bool

    def validate(self) -> None:
        _require(self.kind in ("mean", "sum"), "a reduction is a mean or a sum")
        _require(_integers(self.dims, 1) and len(self.dims) > 0, "a reduction must not be over the batch")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return getattr(x, self.kind)(self.dims, keepdim=bool(self.keepdim))


class MaxPool(Op):
    """Max-pooling of what has arrived so far: pool the running sum and emit its increments.

    The sum over T is then the pool of the sum. `of="spikes"` pools spike counts, whose increments are again one
    spike or none; `of="current"` pools the running sum of a current. The maximum of one step's spikes would fire
    whenever any neuron of the window does, which is far too often.
    """

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

    def validate(self) -> None:
        _require(_integers(self.kernel, 1, [1, 2, 3]), "a pool's kernel must be positive")
        dims = [len(self.kernel)]
        _require(_integers(self.stride, 1, dims), "a pool's stride must be positive")
        _require(_integers(self.padding, 0, dims), "a pool's padding must not be negative")
        _require(_integers(self.dilation, 1, dims), "a pool's dilation must be positive")
        _require(self.of in ("current", "spikes"), "a max-pool is of a current or of spikes")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(self.kernel) - 1]
        return function(x, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    def over_time(self, inputs: Sequence[Tensor], steps: int, shapes: Shapes, state: State | None) -> Tensor:
        (x,) = inputs
        if x.shape[0] == 1 and state is None:  # the same at every step, or the ANN: so is its pool
            return self(x[0]).unsqueeze(0)
        state = {} if state is None else state
        arriving = (x != 0).to(x.dtype) if self.of == "spikes" else x
        total = arriving.cumsum(0)
        if "sum" in state:
            total = total + state["sum"]
        pooled = super().over_time([total], steps, shapes, None)
        before = state.get("pooled", torch.zeros_like(pooled[0])).unsqueeze(0)
        state["sum"], state["pooled"] = total[-1], pooled[-1]
        increments = pooled - torch.cat([before, pooled[:-1]])
        if self.of == "spikes":
            # A channel's spikes all have one height. Where the pooled count grows, one of them is in x right now.
            increments = increments * x.amax([0, 1, *range(3, x.ndim)], keepdim=True)
        return increments


class Upsample(Op):
    """Interpolation by factors (`scale`) or to a size (`size`, expressions over the shapes at hand)."""

    CONFIG: ClassVar[dict[str, Any]] = {"mode": "nearest", "size": None, "scale": None, "align_corners": None}
    MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area")
    mode: str
    size: tuple[Size, ...] | None
    scale: tuple[float, ...] | None
    align_corners: bool | None

    def validate(self) -> None:
        _require(self.mode in self.MODES, f"interpolation is one of {', '.join(self.MODES)}")
        _require((self.size is None) != (self.scale is None), "interpolation needs a size or a scale, not both")
        if self.size is not None:
            self.size = tuple(check_size(s, 64) for s in self.size)
        else:
            _require(isinstance(self.scale, tuple) and all(isinstance(s, (int, float)) and 0 < s < 1024
                     for s in self.scale), "interpolation's scale must be positive numbers")  # fmt: skip

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        size = None
        if self.size is not None:
            size = [evaluate_size(s, x.shape[0], shapes) for s in self.size]
        scale = None if self.scale is None else [float(s) for s in self.scale]
        return F.interpolate(x, size=size, scale_factor=scale, mode=self.mode, align_corners=self.align_corners)


class Pad(Op):
    """torch's padding, last dimension first, by size expressions; constant padding is filled with `value`."""

    CONFIG: ClassVar[dict[str, Any]] = {"pad": ..., "mode": "constant", "value": 0.0}
    pad: tuple[Size, ...]
    mode: str
    value: float

    def validate(self) -> None:
        _require(isinstance(self.pad, tuple) and len(self.pad) % 2 == 0, "padding is an even number of sizes")
        self.pad = tuple(check_size(p, 64) for p in self.pad)
        _require(self.mode in ("constant", "reflect", "replicate", "circular"), f"there is no padding {self.mode!r}")
        _require(isinstance(self.value, (int, float)), "a padding's value must be a number")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        pad = [evaluate_size(p, x.shape[0], shapes) for p in self.pad]
        return F.pad(x, pad, self.mode, self.value if self.mode == "constant" else None)


class Slice(Op):
    """Basic indexing. An item is an int, None (a new dimension) or `("slice", start, stop, step)`."""

    CONFIG: ClassVar[dict[str, Any]] = {"index": ...}
    index: tuple[Any, ...]

    def validate(self) -> None:
        _require(isinstance(self.index, tuple) and len(self.index) <= 16, "an index is a tuple")
        items: list[Any] = []
        for item in self.index:
            if item is None or type(item) is int:
                items.append(item)
                continue
            _require(isinstance(item, tuple) and len(item) == 4 and item[0] == "slice", f"{item!r} is no index")
            items.append(("slice", *(None if s is None else check_size(s, 64) for s in item[1:])))
        self.index = tuple(items)
        whole = ("slice", None, None, None)
        _require(len(items) == 0 or items[0] == whole, "an index must leave the batch alone")

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
        _require(isinstance(self.shape, tuple) and 1 <= len(self.shape) <= 16, "a shape has 1 to 16 dimensions")
        self.shape = tuple(check_size(s, 64) for s in self.shape)
        _require(self.shape[0] in (("batch",), -1), "a reshape must leave the batch alone")

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
        _require(type(self.start) is int and self.start >= 1 and type(self.end) is int, "the batch stays apart")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.flatten(self.start, self.end)


class Permute(Op):
    CONFIG: ClassVar[dict[str, Any]] = {"dims": ...}
    dims: tuple[int, ...]

    def validate(self) -> None:
        _require(_integers(self.dims, 0) and sorted(self.dims) == list(range(len(self.dims))), "not a permutation")
        _require(self.dims[0] == 0, "a permutation must leave the batch first")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x.permute(self.dims)


class Spike(Op):
    """An activation: ReLU (clipped at `clip`) in the ANN, a layer of integrate-and-fire neurons in the SNN.

    `theta` [C] or [1] is the threshold, `v_init` the initial potential ([C], [1] or one per neuron), `bias` [C] or [1]
    enters at every step. Channels are at dimension `channel` of a batch of `ndim` dimensions. `gain`, where currents
    are in units of the threshold, takes them back to the ANN's for a network output that is an activation.
    """

    CONFIG: ClassVar[dict[str, Any]] = {"clip": None, "channel": 1, "ndim": 4}
    TENSORS = ("theta", "v_init", "bias", "gain")
    clip: float | None
    channel: int
    ndim: int
    theta: nn.Parameter | None
    v_init: nn.Parameter | None
    bias: nn.Parameter | None
    gain: nn.Parameter | None

    def validate(self) -> None:
        _require(_is_channel(self.channel), "channels are never the batch")
        _require(type(self.ndim) is int and 2 <= self.ndim <= 16, "a layer of neurons has 2 to 16 dimensions")
        _require(self.channel < self.ndim, "channels are one of a layer's dimensions")
        _require(self.clip is None or (isinstance(self.clip, (int, float)) and self.clip > 0), "a clip is positive")

    def height(self, ndim: int) -> Tensor:
        """The threshold, which is also the height of a spike, to broadcast against `ndim` dimensions."""
        if self.theta is None:
            raise ValueError("these neurons have no threshold yet")
        return along(self.theta, self.channel, ndim)

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        """The ANN's activation, also of a current `[T, N, ...]`."""
        if self.gain is not None:
            x = x * along(self.gain, self.channel, self.ndim)
        return F.relu(x) if self.clip is None else x.clamp(0, self.clip)


class Joint(Op):
    """The end of a stage that has no neuron: a network output, or a linear value that several stages read."""

    CONFIG: ClassVar[dict[str, Any]] = {"channel": 1}
    TENSORS = ("bias",)
    channel: int
    bias: nn.Parameter | None

    def validate(self) -> None:
        _require(_is_channel(self.channel), "channels are never the batch")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x if self.bias is None else x + along(self.bias, self.channel, x.ndim)


def along(values: Tensor, channel: int, ndim: int) -> Tensor:
    """`values` [C] shaped to broadcast along dimension `channel`; values per neuron `[C, H, W]` as they are."""
    if values.ndim > 1:
        return values
    return values.reshape([-1 if d == channel % ndim else 1 for d in range(ndim)])


OPS: dict[str, type[Op]] = {
    op.__name__: op
    for op in (
        Input, Conv, ConvTranspose, Linear, ChannelAffine, Add, Cat, AvgPool, AdaptiveAvgPool, Reduce, MaxPool,
        Upsample, Pad, Slice, Reshape, Flatten, Permute, Spike, Joint,
    )
}  # fmt: skip
