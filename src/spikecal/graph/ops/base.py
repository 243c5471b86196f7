"""Operations of a canonical graph: plain configuration, tensors, and their action over time."""

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, Self

from torch import Tensor, nn

from spikecal.errors import ConfigError
from spikecal.graph.sizes import MOST_DIMS, Size, shapes_read

LARGEST = 2**16  # no real network has a larger kernel, stride or padding
LARGEST_NUMBER = 2.0**100  # of coefficients and the like: finite in every dtype of parameters

State = dict[str, Tensor]  # what an operation remembers between steps
Shapes = Sequence[Sequence[int]]  # shapes of the first input and of the node's shape references


class Unhooked(nn.Module):
    """A module that is not called when a spiking network runs: hooks on it would never run, so they are refused."""

    def _refuse(self, *hook: Any, **settings: Any) -> NoReturn:
        raise ConfigError(
            f"a hook on {type(self).__name__} would never be called, as neurons run all steps in one loop: "
            "use snn.run(x, record=[...]) for their spikes, or a hook on a layer with weights"
        )

    register_forward_hook = register_forward_pre_hook = _refuse
    register_full_backward_hook = register_full_backward_pre_hook = register_backward_hook = _refuse


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
            setattr(self, name, plain(value))
        if settings:
            raise ValueError(f"{type(self).__name__} has no setting {sorted(settings)[0]!r}")
        self.validate()

    def validate(self) -> None:
        """Raise ValueError if the configuration cannot run."""

    def validate_reads(self, inputs: int, shapes: int) -> None:
        """Raise ValueError if it cannot read `inputs` values, or its sizes refer to more than `shapes` shapes."""
        require(inputs == self.ARITY or (self.ARITY is None and inputs > 0), "it has the wrong number of inputs")
        require(all(read < shapes for size in self.sizes() for read in shapes_read(size)), "it reads a missing shape")

    def sizes(self) -> Sequence[Size]:
        """The size expressions among its settings."""
        return ()

    def config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.CONFIG}

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.TENSORS if getattr(self, name) is not None}

    def clone(self) -> Self:
        """A separate module that shares the memory."""
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


def plain(value: Any) -> Any:
    return tuple(plain(v) for v in value) if isinstance(value, (list, tuple)) else value


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def integers(value: Any, low: int, lengths: Sequence[int]) -> bool:
    return isinstance(value, tuple) and all(is_integer(v, low, LARGEST) for v in value) and len(value) in lengths


def is_integer(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER  # NaN is not below it, either


def is_channel(value: Any) -> bool:
    return is_integer(value, 1, MOST_DIMS - 1) or (type(value) is int and value == -1)


def is_vector(value: Tensor | None, lengths: Sequence[int] | None = None) -> bool:
    """Whether a parameter, if given, is a vector of an allowed length."""
    return value is None or (value.ndim == 1 and len(value) > 0 and (lengths is None or len(value) in lengths))
