"""What a calibrator may change of a stage, checked before it is applied; every error names the stage."""

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from spikecal.errors import CalibrationError
from spikecal.graph.ops import channels_of
from spikecal.graph.stages import Stage


@dataclass(frozen=True)
class Update:
    """Changes to one stage: added to its biases and initial potential; new tensors for some of its nodes.

    `bias` is `[C]` or `[1]`, `step_bias` `[T, C]`, `v_init` `[C]`, `[1]` or one per neuron. `scale` `[C]` or `[1]`
    multiplies the thresholds and the neurons' own parameters, before the rest is added. `weights` are by the
    names of nodes.
    """

    bias: Tensor | None = None
    step_bias: Tensor | None = None
    v_init: Tensor | None = None
    scale: Tensor | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> list[Tensor]:
        """All parts that are not None."""
        own = self.bias, self.step_bias, self.v_init, self.scale
        return [*(tensor for tensor in own if tensor is not None), *self.weights.values()]


NEURONS_OWN = ("step_bias", "v_init", "scale")  # which joints lack


@dataclass(frozen=True)
class Allowed:
    """What an update of one stage may contain: `shape` `[N, ...]` is that of its value, `like` one of its values."""

    stage: Stage
    part: str  # calibrator that the update comes from
    learns: bool
    T: int
    shape: tuple[int, ...]
    like: Tensor
    one_size: bool  # of all images

    def checked(self, update: Any) -> Update:
        """The update in the stage's precision and on its device, or a CalibrationError."""
        if not isinstance(update, Update):
            self._refuse(f"returned {_kind(update)}, not an Update")
        channels = channels_of(self.stage.end.op, self.shape)  # type: ignore[arg-type]
        per_channel: list[tuple[int, ...]] = [(channels,), (1,)]
        per_neuron = [tuple(self.shape[1:])] if self.one_size else []
        shapes: dict[str, list[tuple[int, ...]]] = {
            "bias": per_channel,
            "step_bias": [(self.T, channels)],
            "v_init": per_channel + per_neuron,
            "scale": per_channel,
        }
        found = {name: self._tensor(name, getattr(update, name), wanted) for name, wanted in shapes.items()}
        if found["scale"] is not None and not bool((found["scale"] > 0).all()):
            self._refuse("scales thresholds by factors that are not positive")
        return replace(update, **found, weights=self._weights(update.weights))

    def _tensor(self, name: str, value: Any, shapes: list[tuple[int, ...]]) -> Tensor | None:
        if value is None:
            return None
        if name in NEURONS_OWN and not self.stage.spiking:
            self._refuse(f"gives a {name} to a joint, which has no neurons: applies(stage) should be stage.spiking")
        return self._finite(name, value, shapes)

    def _weights(self, weights: Any) -> dict[str, Tensor]:
        if not isinstance(weights, dict):
            self._refuse(f"gives weights that are {_kind(weights)}, not a dict of node names")
        known = {node.name: node.op.tensors()["weight"] for node in self.stage.weighted()}
        for name in weights:
            if name not in known:
                there = f"it has {', '.join(known)}" if known else "it has none"
                self._refuse(f"gives weights to {name!r}, which is no node with weights of this stage; {there}")
        if weights and not self.learns:
            self._refuse("changes weights: its class must set `learns = True`")
        return {name: self._finite(f"weight of {name}", w, [tuple(known[name].shape)]) for name, w in weights.items()}

    def _finite(self, name: str, value: Any, shapes: list[tuple[int, ...]]) -> Tensor:
        if not isinstance(value, Tensor):
            self._refuse(f"gives a {name} that is {_kind(value)}, not a tensor")
        if tuple(value.shape) not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
            self._refuse(f"gives a {name} of shape {list(value.shape)}, not {wanted}")
        if not bool(torch.isfinite(value).all()):
            self._refuse(f"gives a {name} with NaN or infinite values")
        return value.detach().to(self.like)

    def _refuse(self, found: str) -> NoReturn:
        raise CalibrationError(self.stage.name, self.part, found)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
