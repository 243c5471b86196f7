"""Calls of ONNX operators: their inputs and settings, and the table of functions that turn them into torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, fx, nn

Sizes = list[Any]  # of a shape, or a part of one: ints and traced sizes
Value = Any  # fx.Node (of a tensor), np.ndarray (a constant), Sizes or None (an omitted input)


MOST_CONSTANT = 2**26  # most numbers in a computed constant: files store large ones directly


class Unknown(Exception):
    """Something that cannot be read."""


class Target(Protocol):
    """The graph that calls are added to."""

    graph: fx.Graph
    shapes: dict[str, list[int | None]]
    batch: int | None

    def module(self, name: str, module: nn.Module, *inputs: Any) -> fx.Node: ...
    def constant(self, name: str, value: Tensor) -> fx.Node: ...


@dataclass
class Call:
    """One node of a file: its inputs, its attributes, and where its result goes."""

    target: Target
    kind: str
    name: str
    inputs: list[Value]
    attributes: dict[str, Any]
    names: list[str]  # of the inputs
    outputs: int

    @property
    def x(self) -> fx.Node:
        """The first input, which must be a value of the network."""
        return self.tensor(0)

    def tensor(self, index: int) -> fx.Node:
        value = self.inputs[index]
        if not isinstance(value, fx.Node):
            raise Unknown(f"the operator {self.kind} on a constant or a size")
        return value

    @property
    def is_constant(self) -> bool:
        """Whether the first input is constant: made of weights, or of sizes stated in the file."""
        value = self.inputs[0]
        return isinstance(value, np.ndarray) or (isinstance(value, list) and all(type(n) is int for n in value))

    def computed(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Value:
        """The result of numpy's function for the constant first input; sizes stay a list."""
        found = function(np.asarray(self.inputs[0]), *arguments, **named)
        return found.tolist() if isinstance(self.inputs[0], list) else found

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """An input that must be a constant; None if omitted."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, list) and all(isinstance(n, int) for n in value):
            value = np.array(value)
        if value is not None and not isinstance(value, np.ndarray):
            raise Unknown(f"the operator {self.kind} whose input {index} depends on the network's input")
        return value

    def weight(self, index: int) -> Tensor | None:
        value = self.constant(index)
        return None if value is None else torch.tensor(np.array(value, dtype=np.float32))

    def setting(self, name: str, index: int, default: Any = None) -> Any:
        """A setting that is an attribute in older versions and an input in newer ones."""
        if name in self.attributes:
            return self.attributes[name]
        if index < len(self.inputs) and isinstance(self.inputs[index], list):
            return self.inputs[index]
        value = self.constant(index)
        return default if value is None else value.tolist()

    def module(self, module: nn.Module, *inputs: Any) -> fx.Node:
        return self.target.module(self.name, module, *(inputs or (self.x,)))

    def operand(self, value: Value) -> Any:
        """A value of the network unchanged, a constant as a torch tensor."""
        if not isinstance(value, np.ndarray):
            return value
        if value.ndim == 0:
            return float(value)
        return self.target.constant(self.name, torch.tensor(value.astype(np.float32)))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Node:
        return self.target.graph.call_function(function, arguments, named)

    def rank(self, index: int = 0) -> int:
        shape = self.target.shapes.get(self.names[index])
        if not shape:
            raise Unknown(f"the operator {self.kind} on a value of unknown rank")
        return len(shape)


def check_constant(kind: str, numbers: int) -> None:
    """Raise before computing a constant that only a malicious file would have."""
    if numbers > MOST_CONSTANT:
        raise Unknown(f"the operator {kind} that makes a constant of {numbers:,} numbers")


Operator = Callable[[Call], Value]
OPERATORS: dict[str, Operator] = {}


def reads(*kinds: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(kinds, function))
        return function

    return register
