"""Run one stage: the only place that walks nodes over time. `walk` drives whole networks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from math import prod

import torch
from torch import Tensor

from spikecal.errors import DataError, first_line
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Add, Conv, ConvTranspose, Joint, Linear, Spike
from spikecal.graph.stages import Stage
from spikecal.memory import free_memory
from spikecal.neurons import Cells, Neuron, State
from spikecal.snn.windows import added_up, gathers, over_steps, part

Shapes = Mapping[str, Sequence[int]]  # node -> shape of its value; dimension 0, the batch, is arbitrary
CALL_FLOATS = 1_600_000  # most numbers in an average value of one call, over all steps
PROBES = 3  # images of a pass that computes only shapes: a number unlikely to equal other sizes
STEP_FLOATS = 1 << 23  # most numbers in the largest value of one call, over all steps: 32 MB


@dataclass
class Memory:
    """What a stage remembers between steps: the states of its nodes, and how its neurons wait.

    Neurons integrate for `wait` steps before they may fire; after the last step that arrives, they
    fire for as many more steps.
    """

    wait: int = 0
    nodes: dict[str, State] = field(default_factory=dict)
    arrived: int = 0  # steps
    emitted: int = 0  # likewise, of neurons
    charge: Tensor | None = None  # integrated while waiting
    silence: Tensor | None = None  # a current `[1, N, ...]` of neurons that wait

    def due(self, steps: int) -> int:
        """How many steps the neurons emit when `steps` more arrive."""
        return max(0, self.arrived + steps - self.wait) - max(0, self.arrived - self.wait)


@dataclass(frozen=True)
class Emission:
    """The output of a stage for some steps. A leading 1 in place of the steps means a constant value.

    `arriving` `[arrived or 1, N, ...]` reached its end; `value` `[steps or 1, N, ...]` is passed on. Neurons also have
    the `total` of their levels `[N, ...]` and, if wanted, the levels of each step as small integers and
    the potentials.
    Neurons that wait emit fewer steps than arrive at first, and more later.
    """

    arriving: Tensor
    arrived: int
    steps: int
    value: Tensor | None = None
    total: Tensor | None = None
    spikes: Tensor | None = None  # how many were sent: the magnitudes of levels
    levels: Tensor | None = None
    potentials: Tensor | None = None  # of the membranes after each step

    def summed(self) -> Tensor:
        """The output summed over the steps."""
        assert self.value is not None
        return added_up(self.value, self.steps)


class Want(Flag):
    """What an emission should contain besides what arrives; nothing else is computed."""

    VALUE = auto()
    TOTAL = auto()
    LEVELS = auto()
    POTENTIALS = auto()
    OVERWRITTEN = auto()  # what arrives is not read any more: the value may take its memory


Ending = Callable[[Stage, Tensor, int, Memory, Want, int], Emission]  # turns what arrives into levels, like `emit`


def advance(
    stage: Stage,
    values: Mapping[str, Tensor],
    steps: int,
    shapes: Shapes,
    memory: Memory,
    want: Want = Want.VALUE,
    flush: int = 0,
    ending: Ending | None = None,
) -> Emission:
    """Advance a stage by the steps of its inputs: the only way a spiking network runs.

    `flush` more steps are emitted without any arriving: those that the stage has waited. `memory` is updated in place.
    `ending` replaces `emit` at the end of a stage.
    """
    ending = ending or emit
    if steps == 0:
        assert memory.silence is not None, "a stage is flushed after its input"
        return ending(stage, memory.silence, 0, memory, want, flush)
    return ending(stage, charging_current(stage, values, steps, shapes, memory), steps, memory, want, flush)


def charging_current(stage: Stage, values: Mapping[str, Tensor], steps: int, shapes: Shapes, memory: Memory) -> Tensor:
    """`current`, with one pass in place of several for the steps that all enter before the neurons may fire.

    Neurons that wait are charged with the sum of these steps: their number times the current of their mean. The
    mean is exact where it is of 2, 4, 8, … steps; of others it would round spikes at a tie another way.
    """
    early = min(steps, memory.wait + 1 - memory.arrived)
    if early < 2 or early & early - 1 or not gathers(stage) or all(len(values[name]) == 1 for name in stage.inputs):
        return current(stage, values, steps, shapes, memory)
    means = {name: value if len(value) == 1 else _mean_first(value, early) for name, value in values.items()}
    found = current(stage, means, steps - early + 1, shapes, memory)
    if early == steps:
        return found
    return torch.cat([found[:1].expand(early, *found.shape[1:]), found[1:]])


def _mean_first(value: Tensor, early: int) -> Tensor:
    """`[steps, N, ...]` with the first `early` steps as one."""
    mean = value[:early].mean(0, keepdim=True)
    return mean if len(value) == early else torch.cat([mean, value[early:]])


def analog(stage: Stage, values: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """The ANN's value at the end of a stage, `[1, N, ...]` like its inputs."""
    return stage.end.op(current(stage, values, 1, shapes, None)[0]).unsqueeze(0)


def current(stage: Stage, values: Mapping[str, Tensor], steps: int, shapes: Shapes, memory: Memory | None) -> Tensor:
    """What arrives at the end of a stage, `[steps or 1, N, ...]`; in the ANN if there is no memory.

    `shapes` has the shape of every value of the network for images of this size.
    """
    local = {name: values[name] for name in stage.inputs}
    for node in stage.nodes[:-1]:
        state = None if memory is None else memory.nodes.setdefault(node.name, {})
        inputs = [local[name] for name in node.inputs]
        references = [inputs[0].shape[1:], *(shapes[name] for name in node.shape_refs)]
        local[node.name] = node.op.over_time(inputs, steps, references, state)
    return local[stage.end.inputs[0]]


def emit(
    stage: Stage, arriving: Tensor, steps: int, memory: Memory, want: Want = Want.VALUE, flush: int = 0
) -> Emission:
    """Turn what arrives at the end of a stage into its output: levels of neurons, or at a joint the current itself."""
    end, op = stage.end, stage.end.op
    if isinstance(op, Joint):
        return Emission(arriving, steps, steps, value=op.over_time([arriving], steps, [arriving.shape[1:]], {}))
    assert isinstance(op, Spike)
    neuron, cells, like = op.neuron, op.cells(arriving.ndim - 1), arriving[0]
    if end.name not in memory.nodes:
        memory.nodes[end.name] = neuron.start(cells, like)
        memory.silence = torch.zeros_like(arriving[:1]) if memory.wait else None
    emitted = memory.due(steps) + flush
    signed = neuron.alphabet[0] < 0
    counts_switches = neuron.switches and Want.TOTAL in want
    value = None
    if Want.VALUE in want or counts_switches:
        in_place = Want.OVERWRITTEN in want and not memory.wait and len(arriving) == emitted
        value = arriving if in_place and _is_fresh(stage, arriving) else over_steps(like, emitted)
    total = torch.zeros_like(like) if Want.TOTAL in want else None
    spikes = torch.zeros_like(like) if signed and Want.TOTAL in want else total
    levels = over_steps(like, emitted, whole_numbers(neuron)) if Want.LEVELS in want else None
    potentials = over_steps(like, emitted) if Want.POTENTIALS in want else None
    state, t = memory.nodes[end.name], 0
    for charge, charged, count in _charging(memory, arriving, steps, cells, flush):
        own = _reaching(charged, memory, count)
        passed_on, whole = (None if kept is None else kept[t : t + count] for kept in (value, levels))
        magnitudes = spikes if signed else None
        at_once = charge, state, own, count, total, passed_on, whole, magnitudes
        if potentials is None and neuron.advance_at_once(*at_once):
            t += count
            continue
        for passed, sent in enumerate(neuron.advance(charge, state, own, count), 1):
            if total is not None:
                total.add_(sent)
            if signed and spikes is not None:
                spikes.add_(sent.abs())
            if levels is not None:
                levels[t].copy_(sent)
            if value is not None:
                torch.mul(sent, cells.theta, out=value[t])
            if potentials is not None:
                potentials[t].copy_(neuron.potential(state, own, passed))
            t += 1
    if counts_switches and value is not None:
        spikes = switched(value, state["on"])
    return Emission(arriving, steps, emitted, value, total, spikes, levels, potentials)


def _is_fresh(stage: Stage, arriving: Tensor) -> bool:
    """Whether the stage computed what arrives in memory of its own, and every number has a place."""
    op = stage.nodes[-2].op if len(stage.nodes) > 1 else None
    computed = isinstance(op, (Conv, ConvTranspose, Linear)) or (isinstance(op, Add) and len(op.coefficients) > 1)
    whole = arriving.is_contiguous() or arriving.movedim(2, -1).is_contiguous()
    return computed and whole and not arriving.requires_grad


def switched(value: Tensor, on: Tensor) -> Tensor:
    """How often switches `[steps, N, ...]` are turned on and off `[N, ...]`; `on` is how they were, and is moved on."""
    count = torch.zeros_like(on)
    for now in value:
        level = (now != 0).to(on)
        count.add_((level - on).abs_())
        on.copy_(level)
    return count


def _charging(
    memory: Memory, arriving: Tensor, steps: int, cells: Cells, flush: int
) -> Iterator[tuple[Tensor, Cells, int]]:
    """The currents that drive neurons, each with the parameters and the number of steps it lasts.

    What arrives while they wait is added to the first, including bias; in flushed steps nothing arrives.
    """
    held = min(steps, max(0, memory.wait - memory.arrived))
    if cells.step_bias is not None and steps:
        arriving = arriving + cells.step_bias[memory.arrived : memory.arrived + steps]
    memory.arrived += steps
    if held:
        charge = added_up(part(arriving, 0, held), held)
        charge = charge if cells.bias is None else charge + held * cells.bias
        memory.charge = charge if memory.charge is None else memory.charge + charge
    if held < steps and memory.charge is not None:
        yield part(arriving, held, held + 1) + memory.charge, cells, 1
        memory.charge = None
        held += 1
    if held < steps:
        yield part(arriving, held, steps), cells, steps - held
    if flush:
        assert memory.silence is not None, "only a stage that waits is flushed"
        yield memory.silence, replace(cells, bias=None), flush


def _reaching(cells: Cells, memory: Memory, steps: int) -> Cells:
    """The parameters with the reach of the next emitted steps."""
    first, memory.emitted = memory.emitted, memory.emitted + steps
    return cells if cells.reach is None else replace(cells, reach=cells.reach[first : first + steps])


def whole_numbers(neuron: Neuron) -> torch.dtype:
    """The dtype that holds the levels of a neuron in one byte."""
    return torch.bool if neuron.alphabet == (0, 1) else torch.int8


@torch.no_grad()
def shapes_of(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, torch.Size]:
    """Shape of every value for inputs of these sizes, from a pass of the ANN over one image."""
    with _refusing(inputs):
        return {name: value.shape for name, value in graph.walk(*(x[:1] for x in inputs), hooks=False)}


@torch.no_grad()
def check_values(graph: Graph, inputs: Sequence[Tensor]) -> None:
    """Raise, before computing anything, if a value mixes images, is empty or does not fit into memory."""
    room = free_memory(inputs[0].device)
    shapes = Graph({node.name: replace(node, op=node.op.clone().to("meta")) for node in graph.nodes.values()})
    probes = [torch.empty(PROBES, *x.shape[1:], dtype=x.dtype, device="meta") for x in inputs]
    with _refusing(inputs):
        for name, value in shapes.walk(*probes):
            if value.ndim == 0 or value.shape[0] != PROBES:
                raise ValueError(f"{name} mixes images")
            if value.numel() == 0:
                raise ValueError(f"{name} is empty")
            needed = value.nbytes // PROBES
            if needed > room:
                raise ValueError(f"{name} needs {needed:,} bytes of memory for one image, but {room:,} are free")


@contextmanager
def _refusing(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Turn anything that operations raise for unsuitable inputs into one line."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, MemoryError) as error:
        shapes = ", ".join(str(list(x.shape)) for x in inputs)
        raise DataError(f"the network cannot run on inputs of shape {shapes}: {first_line(error)}") from error


def largest_value(shapes: Shapes) -> int:
    """Numbers in the largest value of the network for one image and step."""
    return max(1, *(prod(shape[1:]) for shape in shapes.values()))


def steps_per_call(shapes: Shapes, images: int) -> int:
    """How many steps to run at once; for large images not all, to limit the size of the largest value."""
    return max(1, STEP_FLOATS // (max(1, images) * largest_value(shapes)))


def images_per_call(shapes: Shapes, steps: int) -> int:
    """How many images to run at once: larger batches do not fit into the processor's caches and are slower."""
    average = sum(prod(shape[1:]) for shape in shapes.values()) / len(shapes)
    fitting = max(1, int(CALL_FLOATS / (steps * max(1, average))))
    return min(1 << fitting.bit_length() - 1, 128)
