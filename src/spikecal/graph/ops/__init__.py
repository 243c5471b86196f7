"""The closed set of operations of canonical graphs.

Each operation is a small module: plain configuration (`CONFIG`, goes into JSON) and tensors (`TENSORS`, go into
safetensors). `forward` works on one folded batch `[B, ...]`; `over_time` on `[steps or 1, N, ...]`, where a leading 1
means a constant value. All of them except MaxPool and the two Spikes are affine, and act on each step alone.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal.graph.ops.base import (
    Op,
    Shapes,
    State,
    Unhooked,
    frozen,
    is_channel,
    is_integer,
    is_number,
    is_vector,
    require,
)
from spikecal.graph.ops.linear import Add, ChannelAffine, Conv, ConvTranspose, Linear
from spikecal.graph.ops.pooling import AdaptiveAvgPool, AvgPool, MaxPool, Reduce, Upsample
from spikecal.graph.ops.shape import Cat, Flatten, Pad, Permute, Reshape, Slice
from spikecal.graph.sizes import MOST_DIMS
from spikecal.neurons import NEURONS, Cells, IntegrateAndFire, Neuron, SignedIntegrateAndFire

__all__ = [
    "AdaptiveAvgPool",
    "Add",
    "along",
    "AvgPool",
    "Cat",
    "ChannelAffine",
    "Conv",
    "ConvTranspose",
    "Flatten",
    "frozen",
    "Input",
    "Joint",
    "Linear",
    "MaxPool",
    "Op",
    "OPS",
    "Pad",
    "Permute",
    "Reduce",
    "Reshape",
    "Shapes",
    "SignedSpike",
    "Slice",
    "Spike",
    "State",
    "Upsample",
]


class Input(Unhooked, Op):
    """The network's `index`-th input: an image, constant over time."""

    CONFIG: ClassVar[dict[str, Any]] = {"index": 0}
    ARITY = 0
    index: int

    def validate(self) -> None:
        require(is_integer(self.index, 0, 63), "an input's index must be 0 to 63")


class Spike(Unhooked, Op):
    """An activation: ReLU (clipped at `clip`) in the ANN, a layer of neurons in the SNN.

    `theta` [C] or [1] is the threshold, `v_init` the initial potential ([C], [1] or one per neuron), `bias` [C] or [1]
    is added at every step, and each row of `step_bias` [T, C] at its own. Channels are at dimension `channel` of a
    batch of `ndim` dimensions. `gain`, if currents are in units of the threshold, converts them back to the ANN's for a
    network output that is an activation.
    """

    CONFIG: ClassVar[dict[str, Any]] = {"clip": None, "channel": 1, "ndim": 4, "neuron": IntegrateAndFire()}
    TENSORS: ClassVar[tuple[str, ...]] = ("theta", "v_init", "bias", "step_bias", "gain")
    clip: float | None
    channel: int
    ndim: int
    neuron: Neuron
    theta: nn.Parameter | None
    v_init: nn.Parameter | None
    bias: nn.Parameter | None
    step_bias: nn.Parameter | None
    gain: nn.Parameter | None

    def validate(self) -> None:
        if isinstance(self.neuron, str):  # as in files
            require(self.neuron in NEURONS, f"there are no neurons called {self.neuron[:60]!r}")
            self.neuron = NEURONS[self.neuron]
        require(isinstance(self.neuron, Neuron), "a layer of neurons needs a kind of neuron")
        require(is_channel(self.channel), "channels must not be the batch")
        require(is_integer(self.ndim, 2, MOST_DIMS), "a layer of neurons must have 2 to 16 dimensions")
        require(self.channel < self.ndim, "channels must be one of a layer's dimensions")
        require(self.clip is None or (is_number(self.clip) and self.clip > 0), "a clip must be positive")
        self._validate_tensors()

    def _validate_tensors(self) -> None:
        """Check that every parameter has one number per layer or per channel, for the same channels."""
        for name in ("theta", "bias", "gain"):
            require(is_vector(getattr(self, name)), f"{name} must have one number per layer or per channel")
        each = self.step_bias
        require(each is None or (each.ndim == 2 and each.numel() > 0), "step_bias must have one row per step")
        potential = self.v_init
        require(potential is None or (potential.numel() > 0 and potential.ndim in (1, self.ndim - 1)),
                 "v_init must have one number per layer, per channel or per neuron")  # fmt: skip
        require(len(self._widths() - {1}) <= 1, "the parameters of a layer are for different numbers of channels")

    def _widths(self) -> set[int]:
        """How many channels its parameters are for."""
        vectors = {len(t) for t in (self.theta, self.bias, self.gain) if t is not None}
        steps = set() if self.step_bias is None else {self.step_bias.shape[1]}
        if self.v_init is None:
            return vectors | steps
        per_neuron = self.v_init.ndim > 1
        place = self.channel - 1 if per_neuron and self.channel > 0 else -1
        return vectors | steps | {self.v_init.shape[place]}

    def config(self) -> dict[str, Any]:
        return {**super().config(), "neuron": self.neuron.name}

    def clone(self) -> Self:
        return type(self)(**{**self.config(), "neuron": self.neuron}, **self.tensors())

    def cells(self, ndim: int) -> Cells:
        """The parameters of the layer, shaped to broadcast against a current of `ndim` dimensions."""
        bias, v_init = (None if t is None else along(t, self.channel, ndim) for t in (self.bias, self.v_init))
        each, reach = (
            None if rows is None else torch.stack([along(row, self.channel, ndim) for row in rows])
            for rows in (self.step_bias, getattr(self, "reach", None))
        )
        return Cells(self.height(ndim), bias, v_init, each, reach)

    def scaled(self, factor: Tensor) -> "Spike":
        """The same layer with its thresholds and other own parameters times `factor` `[C]` or `[1]`."""
        own = {name: tensor for name, tensor in self.tensors().items() if name not in ("gain", "reach")}
        if self.v_init is not None and self.v_init.ndim > 1:
            channel = self.channel - 1 if self.channel > 0 else -1
            own["v_init"] = self.v_init * along(factor, channel, self.v_init.ndim)
        scaled = {name: t if name == "v_init" and t.ndim > 1 else t * factor for name, t in own.items()}
        return type(self)(**{**self.config(), "neuron": self.neuron}, **{**self.tensors(), **scaled})

    def height(self, ndim: int) -> Tensor:
        """The threshold, which is also the height of a spike, shaped to broadcast against `ndim` dimensions."""
        if self.theta is None:
            raise ValueError("these neurons have no threshold yet")
        return along(self.theta, self.channel, ndim)

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        """The ANN's activation, also for a current `[T, N, ...]`."""
        if self.gain is not None:
            x = x * along(self.gain, self.channel, self.ndim)
        return F.relu(x) if self.clip is None else x.clamp(0, self.clip)


class SignedSpike(Spike):
    """A linear value that weights read: the identity in the ANN, a layer of signed neurons in the SNN.

    `reach` [T, 1] or [T, C] is the potential that fires at each step, of either sign, in units of theta; or 1/2.
    """

    CONFIG: ClassVar[dict[str, Any]] = {**Spike.CONFIG, "neuron": SignedIntegrateAndFire()}
    TENSORS = (*Spike.TENSORS, "reach")
    reach: nn.Parameter | None

    def validate(self) -> None:
        reach = self.reach
        require(reach is None or (reach.ndim == 2 and reach.numel() > 0), "reach must have one row per step")
        require(reach is None or bool((reach >= 0.5).all()), "a reach must be at least half a threshold")
        super().validate()
        require(self.neuron.alphabet[0] < 0, "a linear value needs neurons with negative levels")
        require(self.clip is None, "a linear value must not have a clip")

    def _widths(self) -> set[int]:
        return super()._widths() | (set() if self.reach is None else {self.reach.shape[1]})

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x if self.gain is None else x * along(self.gain, self.channel, self.ndim)


class Joint(Op):
    """The end of a stage without neurons: a network output, or a linear value that several stages read."""

    CONFIG: ClassVar[dict[str, Any]] = {"channel": 1}
    TENSORS = ("bias",)
    channel: int
    bias: nn.Parameter | None

    def validate(self) -> None:
        require(is_channel(self.channel), "channels must not be the batch")
        require(is_vector(self.bias), "a joint's bias must have one number per layer or per channel")

    def forward(self, x: Tensor, shapes: Shapes = ()) -> Tensor:
        return x if self.bias is None else x + along(self.bias, self.channel, x.ndim)


def channels_of(end: "Spike | Joint", shape: Sequence[int]) -> int:
    """The channels of a value `[N, ...]` at the end of a stage; one where it is a number for each image, `[N]`."""
    return shape[end.channel] if len(shape) > 1 else 1


def of_channels(value: Tensor, channel: int) -> Tensor:
    """`[C, images x positions]` of a value `[N, ...]`."""
    return value.unsqueeze(0) if value.ndim == 1 else value.movedim(channel, 0).flatten(1)


def along(values: Tensor, channel: int, ndim: int) -> Tensor:
    """`values` [C] shaped to broadcast along dimension `channel`; values per neuron `[C, H, W]` unchanged."""
    if values.ndim > 1:
        return values
    shape = [1] * ndim
    shape[channel % ndim] = -1
    return values.reshape(shape)


OPS: dict[str, type[Op]] = {
    op.__name__: op
    for op in (
        Input, Conv, ConvTranspose, Linear, ChannelAffine, Add, Cat, AvgPool, AdaptiveAvgPool, Reduce, MaxPool,
        Upsample, Pad, Slice, Reshape, Flatten, Permute, Spike, SignedSpike, Joint,
    )
}  # fmt: skip
