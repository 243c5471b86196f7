"""What the tests of this folder share: a comparison of the lowered graph with the model at several sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from threads import one_thread  # noqa: F401
from torch import nn

from spikecal.graph.graph import Graph, map_leaves, same_structure
from spikecal.graph.lowering.lower import lower


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Statistics, weights and biases that would show any that is lost or swapped."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            values = values + 0.5 if "var" in name or tensor.ndim == 1 else values - 0.5
            tensor.data.copy_(values)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return map_leaves(lambda x: x, value)


def difference(found: Any, expected: Any) -> float:
    """The largest error relative to the largest output; structures must be the same."""
    worst = [0.0]

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        if a.shape != b.shape:
            return False
        worst[0] = max(worst[0], float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)))
        return True

    assert same_structure(found, plain(expected), close), "outputs have different structures or shapes"
    return worst[0]


@pytest.fixture
def agree() -> Callable[..., Graph]:
    """`agree(model, shape, *more_shapes)`: lower at the first shape, compare there and at the others.

    A shape is `(C, H, W)`, or a tuple of those for a model with several inputs.
    """

    def check(model: nn.Module, *shapes: Any, keep: tuple[str, ...] = (), seed: int = 0) -> Graph:
        randomise(model, seed)
        model.eval()
        generator = torch.Generator().manual_seed(seed + 1)
        graph = None
        for shape in shapes:
            several = shape if isinstance(shape[0], tuple) else (shape,)
            for batch in (2, 5):
                inputs = tuple(torch.randn(batch, *s, generator=generator) for s in several)
                if graph is None:
                    graph = lower(model, inputs, keep)
                with torch.no_grad():
                    error = difference(graph.run(*(x.clone() for x in inputs)), model(*(x.clone() for x in inputs)))
                assert error < 2e-5, f"differs by {error:.2g} at {shape}, batch {batch}"
        assert graph is not None
        return graph

    return check
