"""Find sizes that a file leaves open, by running the network so far on tensors without data."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

BATCHES = (2, 3)  # a size that differs between them depends on the batch, and is open


class Sizes:
    """The known sizes of an fx graph's values while it grows; unknown if the inputs' are open."""

    def __init__(self, root: nn.Module, inputs: Mapping[fx.Node, Sequence[int | None]]) -> None:
        self._root, self._last = root, list(inputs)[-1]
        self._values: list[dict[fx.Node, Any]] = [{} for _ in BATCHES]
        for node, (_, *open_sizes) in inputs.items():
            sizes = [size for size in open_sizes if size is not None]
            for batch, values in zip(BATCHES, self._values, strict=True):
                if len(sizes) == len(open_sizes):
                    values[node] = torch.empty((batch, *sizes), device="meta")

    def of(self, node: fx.Node) -> list[int | None] | None:
        """The sizes of a value, with None for an open one; None if nothing is known."""
        self._follow()
        one, other = (values.get(node) for values in self._values)
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.ndim != other.ndim:
            return None
        return [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)]

    def _follow(self) -> None:
        """Run what has been added to the graph since the last time."""
        while (node := self._last.next).op != "root":
            for values in self._values:
                if all(source in values for source in node.all_input_nodes):
                    with suppress(Exception):  # operations that reject such tensors stay unknown
                        values[node] = self._run(node, values)
            self._last = node

    def _run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        args, named = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "call_function":
            return node.target(*args, **named)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **named)
        if node.op == "get_attr":
            return getattr(self._root, str(node.target)).to("meta")
        module = self._root.get_submodule(str(node.target))
        weights = {name: tensor.to("meta") for name, tensor in module.state_dict(keep_vars=True).items()}
        with torch.no_grad():
            return functional_call(module, weights, args, named)
