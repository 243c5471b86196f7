"""Running a stage for some steps: the only place that walks nodes over time."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from spikecal.errors import DataError
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import Joint, Spike, along
from spikecal.graph.stages import Stage
from spikecal.snn.functional import fire

Shapes = Mapping[str, Sequence[int]]  # node -> shape of its value; dimension 0, the batch, means nothing
CALL_FLOATS = 1_600_000  # what an average value of one call may hold, all steps together
STEP_FLOATS = 1 << 26  # what the largest value of one call may hold, all steps together: 256 MB
Memory = dict[str, dict[str, Tensor]]  # node -> what it remembers between calls; stepwise running only


def current(
    stage: Stage,
    values: Mapping[str, Tensor],
    steps: int,
    shapes: Shapes,
    memory: Memory | None = None,
) -> Tensor:
    """What arrives at the end of a stage, `[steps or 1, N, ...]`; a leading 1 is the same at every step.

    `shapes` has the shape of every value of the network for images of this size.
    """
    local = {name: values[name] for name in stage.inputs}
    for node in stage.nodes[:-1]:
        state = None if memory is None else memory.setdefault(node.name, {})
        inputs = [local[name] for name in node.inputs]
        references = [inputs[0].shape[1:], *(shapes[name] for name in node.shape_refs)]
        local[node.name] = node.op.over_time(inputs, steps, references, state)
    return local[stage.end.inputs[0]]


def emit(end: Node, arriving: Tensor, steps: int, memory: Memory | None = None, counts: Tensor | None = None) -> Tensor:
    """What a stage passes on: the spikes of its neurons, added up in `counts`, or at a joint the current itself."""
    op = end.op
    if isinstance(op, Joint):
        return op.over_time([arriving], steps, [arriving.shape[1:]], None)
    assert isinstance(op, Spike)
    state = {} if memory is None else memory.setdefault(end.name, {})
    theta, bias, start = neurons(op, arriving[0])
    v = state.setdefault("v", start)
    return fire(arriving, theta, bias, v, steps, counts)


def neurons(op: Spike, like: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Threshold, bias and initial potential of the neurons that take a current like `like` `[N, ...]`."""
    bias = None if op.bias is None else along(op.bias, op.channel, like.ndim)
    return op.height(like.ndim), bias, initial_potential(op, like)


def initial_potential(op: Spike, like: Tensor) -> Tensor:
    """v(0) for every neuron, in the memory layout of `like` `[N, ...]`."""
    if op.v_init is None:
        return torch.zeros_like(like)
    v = along(op.v_init, op.channel, like.ndim)
    if op.v_init.ndim > 1 and v.shape != like.shape[1:]:
        raise DataError(
            f"the initial potential was calibrated per neuron for {list(v.shape)} and the input gives "
            f"{list(like.shape[1:])}: use images of the calibration's size, or calibrate potentials per channel"
        )
    return torch.empty_like(like).copy_(v.expand(like.shape))


def last_uses(stages: list[Stage], keep: Iterable[str] = ()) -> list[list[str]]:
    """For every stage the boundaries that nothing after it reads: liveness."""
    kept, freed = set(keep), [list[str]() for _ in stages]
    last = {name: i for i, stage in enumerate(stages) for name in (*stage.inputs, stage.name)}
    for name, i in last.items():
        if name not in kept:
            freed[i].append(name)
    return freed


@torch.no_grad()
def shapes_of(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, torch.Size]:
    """Shape of every value for inputs of these sizes, from a pass of the ANN over one image."""
    try:
        return {name: value.shape for name, value in graph.walk(*(x[:1] for x in inputs))}
    except (RuntimeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(list(x.shape)) for x in inputs)
        raise DataError(f"the network cannot run on inputs of shape {shapes}: {error}") from error


def largest_value(shapes: Shapes) -> int:
    """Numbers in the largest value of the network for one image and step."""
    return max(1, *(prod(shape[1:]) for shape in shapes.values()))


def steps_per_call(shapes: Shapes, images: int) -> int:
    """How many steps to run at once, for large images not all of them: the largest value must stay of bearable size."""
    return max(1, STEP_FLOATS // (images * largest_value(shapes)))


def images_per_call(shapes: Shapes, steps: int) -> int:
    """How many images to run at once: larger batches fall out of the processor's caches and are slower, not faster."""
    average = sum(prod(shape[1:]) for shape in shapes.values()) / len(shapes)
    fitting = max(1, int(CALL_FLOATS / (steps * max(1, average))))
    return min(1 << fitting.bit_length() - 1, 128)
