"""The builder for handlers: it adds operations to a canonical graph and knows the form of their values."""

import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.graph.graph import Graph, Node
from spikecal.graph.lowering.layout import layout
from spikecal.graph.lowering.values import Dim, Ref, Refusal
from spikecal.graph.ops import ChannelAffine, Input, Op, Reshape, Spike
from spikecal.graph.sizes import Size

Handler = Callable[..., Any]

# The only registry of operations: torch function and method names, functions, module classes -> handler.
CALLS: dict[str | Callable[..., Any], Handler] = {}
MODULES: dict[type[nn.Module], Handler] = {}


def handles(*targets: Any) -> Callable[[Handler], Handler]:
    """Register a handler, called with the builder, the module if it is for modules, and the arguments."""

    def register(handler: Handler) -> Handler:
        for target in targets:
            (MODULES if isinstance(target, type) else CALLS)[target] = handler
        return handler

    return register


class Hole(Op):
    """Stands in for a value that no canonical operation computes: a kept part's, or a refused one."""

    ARITY = 0


class Builder:
    """Adds nodes to `graph`. `site` is the name of the place in the model being lowered."""

    def __init__(self, dtype: torch.dtype, device: torch.device, sized: bool = False) -> None:
        self.graph = Graph()
        self.reserved: frozenset[str] = frozenset()  # names of sites, which helper nodes must not use
        self.dtype, self.device = dtype, device
        self.sized = sized  # whether all sizes except the batch's are those of the example
        self.site = ""
        self.kept: set[str] = set()  # values that depend on a kept part
        self._refs: dict[str, Ref] = {}

    def emit(self, op: Op, *inputs: Ref, refs: Sequence[str] = (), part: str = "") -> Ref:
        """Add a node and return its value. `part` names a helper node of a site that needs several."""
        if not all(isinstance(x, Ref) for x in inputs):
            raise Refusal("a constant where a value of the network is expected")
        after_kept = not self.kept.isdisjoint([*(x.name for x in inputs), *refs])
        if isinstance(op, Spike) and after_kept:
            raise Refusal("an activation after a part that is kept analog")
        for name, tensor in op.tensors().items():
            if not torch.isfinite(tensor).all():
                raise Refusal(f"NaN or infinite values in its {name}", "repair the model's weights", analog=False)
        references = [self._refs[name] for name in refs]
        shape = self._shape_of(op, inputs, references)
        if shape[:1] != inputs[0].shape[:1]:
            raise Refusal("an operation that mixes the images of a batch")
        name = self.unique(f"{self.site}.{part}" if part else self.site)
        if after_kept:
            self.kept.add(name)
        node = Node(name, op, tuple(x.name for x in inputs), tuple(refs))
        return self._add(node, layout(name, op, inputs, references, shape))

    def input(self, index: int, shape: tuple[int, ...]) -> Ref:
        """The network's input; one that has to have this size goes through a reshape that checks it."""
        ref = self._source(Input(index=index), shape)
        if not self.sized:
            return ref
        checked = [("=", ("size", 0, d), n) for d, n in enumerate(shape[1:], start=1)]
        return self.emit(Reshape(shape=[("batch",), *checked]), ref, part="sized")

    def value(self, name: str) -> Ref:
        """The value of an existing node."""
        return self._refs[name]

    def hole(self, shape: tuple[int, ...], kept: bool) -> Ref:
        """A value of a given shape that no operation computes."""
        ref = self._source(Hole(), shape)
        if kept:
            self.kept.add(ref.name)
        return ref

    def _source(self, op: Op, shape: tuple[int, ...]) -> Ref:
        node = Node(self.unique(self.site), op)
        return self._add(node, layout(node.name, op, (), (), shape))

    def _add(self, node: Node, ref: Ref) -> Ref:
        if self.sized:
            ref = replace(ref, fixed=(None, *ref.shape[1:]))
        node.channel = ref.channel
        self.graph.add(node)
        self._refs[node.name] = ref
        return ref

    def unique(self, name: str) -> str:
        return unique(name, self.graph.nodes if name == self.site else self.graph.nodes.keys() | self.reserved)

    def sizes(self, x: Ref, sizes: Sequence[Any]) -> tuple[list[Size], list[str]]:
        """Sizes as expressions for a node that reads `x`, and the shape references the node then needs."""
        refs: list[str] = []

        def express(size: Size) -> Size:
            if isinstance(size, int):
                return size
            if size == ("batch",):
                raise Refusal("a size computed from the batch size", "compute it from the other dimensions")
            if size[0] != "of":
                return (size[0], express(size[1]), express(size[2]))
            if size in x.origin:
                return ("size", 0, x.origin.index(size))
            if size[1] not in refs:
                refs.append(size[1])
            return ("size", 1 + refs.index(size[1]), size[2])

        found = [express(s.expression if isinstance(s, Dim) else _integer(s)) for s in sizes]
        return found, refs

    def affine(self, x: Ref, scale: Any = None, shift: Any = None, part: str = "") -> Ref:
        """`x * scale + shift` with numbers or constant tensors; no node if that changes nothing."""
        scale = None if _is_number(scale) and scale == 1 else self._constant(x, scale)
        shift = None if _is_number(shift) and shift == 0 else self._constant(x, shift)
        if scale is None and shift is None:
            return x
        return self.emit(ChannelAffine(scale=scale, shift=shift), x, part=part)

    def tensor(self, value: Tensor) -> Tensor:
        """A copy in the graph's dtype that shares no memory."""
        if not isinstance(value, Tensor):
            raise Refusal("weights that depend on the input of the network")
        return value.detach().to(self.dtype).clone(memory_format=torch.contiguous_format)

    def _constant(self, x: Ref, value: Any) -> Tensor | None:
        if value is None:
            return None
        if _is_number(value):
            return torch.tensor(value, dtype=self.dtype, device=self.device)
        if isinstance(value, Dim):
            raise Refusal("a value scaled or shifted by a size that depends on the input")
        if not isinstance(value, Tensor):
            raise Refusal(f"arithmetic with a {type(value).__name__}")
        if value.ndim > x.ndim or (value.ndim == x.ndim and value.shape[0] != 1):
            raise Refusal(f"a constant of shape {list(value.shape)} that differs between the images of a batch")
        return self.tensor(value)

    def _shape_of(self, op: Op, inputs: Sequence[Ref], references: Sequence[Ref]) -> tuple[int, ...]:
        tensors = {name: tensor.to("meta") for name, tensor in op.tensors().items()}
        values = tuple(torch.empty(x.shape, dtype=self.dtype, device="meta") for x in inputs)
        shapes = [inputs[0].shape, *(ref.shape for ref in references)]
        return tuple(torch.func.functional_call(op, tensors, values, {"shapes": shapes}).shape)


def unique(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken: relu, relu_2, relu_3."""
    number = 1
    while (candidate := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return candidate


def numbers(value: Any, dims: int) -> tuple[int, ...]:
    """An integer for each of `dims` dimensions, from one or a sequence."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims
    if len(values) == 1:
        values = values * dims
    return tuple(_integer(v) for v in values)


def _integer(value: Any) -> int:
    if isinstance(value, Dim):
        raise Refusal("a setting computed from the size of the input", "give it as a number")
    try:
        return operator.index(value)
    except TypeError:
        raise Refusal(f"{value!r} where an integer is expected") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
