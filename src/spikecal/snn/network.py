"""The spiking network: an ordinary nn.Module, run layerwise (all steps of a stage at once) or stepwise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spikecal.errors import DataError
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import ChannelAffine, Conv, Joint, Spike, along, frozen
from spikecal.graph.passes import fold_affine, fold_scale_forward
from spikecal.graph.stages import Stage, partition, with_joints
from spikecal.snn.execute import Emission, Want, check_values, images_per_call, shapes_of, steps_per_call
from spikecal.snn.origin import Origin
from spikecal.snn.walk import Course
from spikecal.snn.windows import Windows, added_up, part
from spikecal.tensors import as_tensor, channels_last, one_image

# How an output that is itself an activation is read: as the activation of the mean current, or as mean spikes.
Readout = Literal["current", "spikes"]
READOUTS = get_args(Readout)


@dataclass
class Run:
    """`outputs`: the model's structure of running means `[T, N, ...]`; `spikes`: neuron layer -> counts `[N, ...]`."""

    outputs: Any
    spikes: dict[str, Tensor]


class SpikingNetwork(nn.Module):
    """A calibrated canonical graph for `T` steps. `snn(x)` is like `model(x)`: the mean over the steps.

    `waits` says which stages wait how many steps before they may fire; every value then has its T steps later.
    """

    def __init__(self, graph: Graph, T: int, waits: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.graph, self.T, self.stages = graph, T, partition(graph)
        self.windows = Windows(T, self.stages, waits or {})
        self.ops = nn.ModuleDict({_module_name(name): node.op for name, node in graph.nodes.items()})
        self.head = graph.head
        self.origin = Origin()
        self.readout: Readout = "current"
        self.warm_up = 0  # steps of each output that are not read, once there are others
        self._shapes: dict[tuple[torch.Size, ...], dict[str, torch.Size]] = {}
        weights_channels_last(graph)
        self.reset()

    # -- time --------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> Mapping[str, int]:
        """The stages that wait, and how many steps."""
        return self.windows.waits

    @property
    def latency(self) -> int:
        """Steps from the first of the input to the last of the output."""
        return self.T + self._latest_start

    @property
    def interval(self) -> int:
        """Steps between two images when they follow each other as closely as they can: no membrane holds two."""
        return self.windows.interval

    @property
    def _latest_start(self) -> int:
        return self.windows.latest(self.graph.outputs(), self.readout == "current")

    # -- layerwise ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, *inputs: Tensor, steps: int | None = None) -> Any:
        """Like the model: the mean over all T steps of the output, or over the first `steps` of them."""
        return self._finish(self.output_values(*inputs, steps=steps))

    @torch.no_grad()
    def output_values(self, *inputs: Tensor, steps: int | None = None) -> dict[str, Tensor]:
        """The outputs by name, before they get the model's structure and pass its analog head."""
        if steps is not None and not 1 <= steps <= self.T:
            raise DataError(f"a network for T={self.T} cannot be read after {steps} steps")
        steps = self.T if steps is None else steps
        end = steps + self._latest_start
        return _side_by_side([self._mean(batch, steps, end) for batch in self._batches(self._checked(inputs))])

    @torch.no_grad()
    def counted(self, *inputs: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """What `forward` gives, and the spike counts of every layer; it takes the memory of `forward`, not of `run`."""
        means, counts = [], []
        for batch in self._batches(self._checked(inputs)):
            counts.append(dict[str, Tensor]())
            means.append(self._mean(batch, self.T, self.windows.end, counts[-1]))
        return self._finish(_side_by_side(means)), _side_by_side(counts)

    @torch.no_grad()
    def run(self, *inputs: Tensor) -> Run:
        """All T steps, with the output after each of them and the spike counts of every layer."""
        counts: dict[str, list[Tensor]] = {}
        parts = [self._curves(batch, counts) for batch in self._batches(self._checked(inputs))]
        outputs = _side_by_side(parts, 1)
        spikes = {name: _joined(count) for name, count in counts.items()}
        if self.head is None:
            return Run(self.graph.finish(outputs.__getitem__), spikes)
        steps = [self._finish({name: value[t] for name, value in outputs.items()}) for t in range(self.T)]
        return Run(stack(steps), spikes)

    @torch.no_grad()
    def outputs_after(self, *inputs: Tensor, warm_ups: Sequence[int]) -> list[dict[str, Tensor]]:
        """The outputs by name as they would be with each of these `warm_ups`, from one run."""
        found: list[dict[str, list[Tensor]]] = [{} for _ in warm_ups]
        for batch in self._batches(self._checked(inputs)):
            for end, value in self._output_currents(batch):
                for warm_up, outputs in zip(warm_ups, found, strict=True):
                    mean = part(value, warm_up, self.T).mean(0)
                    outputs.setdefault(end.name, []).append(self._read(end, mean))
        return [{name: _joined(parts) for name, parts in outputs.items()} for outputs in found]

    def _output_currents(self, inputs: tuple[Tensor, ...]) -> Iterator[tuple[Node, Tensor]]:
        """What each output is read from, `[T or 1, N, ...]`."""
        values, wanted = self.input_values(inputs), set(self.graph.outputs())
        yield from ((self.graph.nodes[name], values[name]) for name in wanted & values.keys())
        for stage, emission in self.course(inputs).advance(values, self.windows.end, last=True):
            if stage.name in wanted:
                yield stage.end, self._of_output(stage, emission)[0]

    def course(self, inputs: tuple[Tensor, ...]) -> Course:
        """The network before its first step."""
        return Course(self.windows, self._shapes_for(inputs))

    def _curves(self, inputs: tuple[Tensor, ...], counts: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        """The outputs after every step, `[T, N, ...]`; spikes are added to the lists in `counts`."""
        values = self.input_values(inputs)
        wanted = set(self.graph.outputs())
        found = {name: self._running_mean(values[name]) for name in wanted & values.keys()}
        for stage, emission in self.course(inputs).advance(
            values, self.windows.end, last=True, want=Want.VALUE | Want.TOTAL
        ):
            if stage.name in wanted:
                found[stage.name] = self._read(stage.end, self._running_mean(self._of_output(stage, emission)[0]))
            if emission.spikes is not None:
                counts.setdefault(stage.name, []).append(emission.spikes.int())
        return found

    def _running_mean(self, value: Tensor) -> Tensor:
        return running_mean(value, self.T, self.warm_up)

    def _mean(
        self, inputs: tuple[Tensor, ...], steps: int, end: int, counts: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The outputs after `steps` of each, from a run until `end`; spikes are added to `counts` where given.

        Large images run a few steps at a time, which is all the memory they need.
        """
        course, sums = self.course(inputs), Sums(steps, self.warm_up)
        at_once = steps_per_call(course.shapes, len(inputs[0]))
        at_once = end if at_once >= self.T else at_once  # no value has more than T steps
        for done in range(0, end, at_once):
            self._advance(course, inputs, min(at_once, end - done), sums, counts, last=done + at_once >= end)
        return self._means(sums)

    def _advance(
        self,
        course: Course,
        inputs: tuple[Tensor, ...],
        steps: int,
        sums: "Sums",
        counts: dict[str, Tensor] | None = None,
        last: bool = False,
    ) -> None:
        """Go on for some steps; add what the outputs are read from to `sums`, and spikes to `counts` where given."""
        values = self.input_values(inputs)
        wanted = set(self.graph.outputs())
        for name in wanted & values.keys():
            sums.add(name, values[name], min(steps, self.T - course.now))
        want = Want.VALUE if counts is None else Want.VALUE | Want.TOTAL
        for stage, emission in course.advance(values, steps, last=last, want=want):
            if stage.name in wanted:
                sums.add(stage.name, *self._of_output(stage, emission))
            if counts is not None and emission.spikes is not None:
                more = emission.spikes.int()
                counts[stage.name] = counts[stage.name] + more if stage.name in counts else more

    def _of_output(self, stage: Stage, emission: Emission) -> tuple[Tensor, int]:
        """What an output is read from, and its steps: where it is itself an activation, its current or its spikes."""
        if stage.spiking and self.readout == "current":
            return emission.arriving, emission.arrived
        assert emission.value is not None
        return emission.value, emission.steps

    def _read(self, end: Node, mean: Tensor) -> Tensor:
        """An output in the ANN's units from the mean of what it is read from."""
        if self.readout == "spikes":
            return _scaled(end, mean)
        return end.op(mean) if isinstance(end.op, Spike) else mean

    def _means(self, sums: "Sums") -> dict[str, Tensor]:
        """Outputs from what has arrived so far."""
        return {name: self._read(self.graph.nodes[name], mean) for name, mean in sums.means().items()}

    def _finish(self, values: dict[str, Tensor]) -> Any:
        return self.graph.finish(values.__getitem__)

    # -- stepwise ----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all potentials: the next `step` is the first."""
        self._course: Course | None = None
        self._sums = Sums(self.T, self.warm_up)
        self._step_shapes: list[torch.Size] = []

    @torch.inference_mode(False)  # what is remembered must also be of use outside of it
    @torch.no_grad()
    def step(self, *inputs: Tensor) -> Any:
        """One step in constant memory; returns the output so far, the mean over its steps since `reset`.

        That is None until all outputs have started. The input is not looked at after its T steps.
        """
        inputs = self._checked(inputs)
        shapes_now = [x.shape for x in inputs]
        if self._course is None:
            self._course, self._step_shapes = self.course(inputs), shapes_now
        if self._step_shapes != shapes_now:
            raise DataError("a step's inputs have another shape than those before: call reset() first")
        if self._course.now == self.latency:
            raise DataError(f"all {self.latency} steps of this network have been run: call reset() first")
        self._advance(self._course, inputs, 1, self._sums)
        return self._finish(self._means(self._sums)) if self._course.now > self._latest_start else None

    # -- inputs ------------------------------------------------------------------------------------------------

    def input_values(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Inputs as values over time, the same at every step."""
        names = self.graph.inputs()
        return {name: channels_last(x.detach()).unsqueeze(0) for name, x in zip(names, inputs, strict=True)}

    def images_per_call(self, *inputs: Tensor) -> int:
        """How many images like these one call runs best; more are cut into such parts."""
        return images_per_call(self._shapes_for(inputs), self.T)

    def _batches(self, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        size = self.images_per_call(*inputs)
        return list(zip(*(x.split(size) for x in inputs), strict=True))

    def _shapes_for(self, inputs: tuple[Tensor, ...]) -> dict[str, torch.Size]:
        key = tuple(x.shape[1:] for x in inputs)
        if key not in self._shapes:
            check_values(self.graph, inputs)
            shapes = shapes_of(self.graph, inputs)
            for stage in self.stages:
                _check_channels(stage, shapes[stage.name], self.T)
            self._shapes[key] = shapes
        return self._shapes[key]

    def _checked(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The inputs in the network's precision, or an error that says what is wrong with them."""
        expected = len(self.graph.inputs())
        if len(inputs) != expected:
            raise DataError(f"the network takes {expected} inputs, not {len(inputs)}")
        inputs = tuple(map(as_tensor, inputs))
        if not all(isinstance(x, Tensor) and x.is_floating_point() for x in inputs):
            raise DataError("the network takes tensors of floats, normalised as in training")
        for x, shape in zip(inputs, self.origin.inputs, strict=False):  # none of a network from an old file
            if x.ndim == len(shape):
                raise one_image(x)
        if not all(bool(torch.isfinite(x).all()) for x in inputs):
            raise DataError("an input has NaN or infinite values")
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), inputs[0].dtype)
        return tuple(x.to(dtype) for x in inputs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As modules do. Networks of one conversion share memory where they are equal: the others keep theirs."""
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return super().load_state_dict(*args, **kwargs)

    def save(self, path: str | Path) -> None:
        """Write this network alone; `Result.save` writes all T of a conversion into one file."""
        from spikecal.snn.file import write  # file.py builds on this module

        write(path, {self.T: self}, self.origin, {})

    # -- other forms -------------------------------------------------------------------------------------------

    def normalized(self) -> "SpikingNetwork":
        """The same network with 0/1 spikes and all thresholds 1: `W <- W theta_in / theta_out`, `b <- b / theta`."""
        graph = self.graph.clone()
        outputs = set(graph.outputs())
        result = Graph(output=graph.output, head=graph.head)
        thetas: dict[str, Tensor] = {}
        for node in graph.nodes.values():
            for i, source in enumerate(node.inputs):
                if source in thetas:  # this reader gets 0/1 spikes: scale them for itself
                    scale, channel = ChannelAffine(scale=thetas[source]), graph.nodes[source].channel
                    scaled = result.add(Node(f"{node.name}.in{i}", scale, (source,), channel=channel))
                    node.inputs = (*node.inputs[:i], scaled, *node.inputs[i + 1 :])
            if isinstance(node.op, Spike):
                thetas[node.name] = _make_unit(result, node, node.name in outputs)
            result.add(node)
        fold_affine(result)
        fold_scale_forward(result)
        # a scale that could not be folded may now be read by several stages, through a cat
        network = SpikingNetwork(with_joints(result), self.T, self.waits)
        network.origin = self.origin
        network.readout, network.warm_up = self.readout, self.warm_up
        return network


class Sums:
    """What outputs are read from, added up over the first `most` steps of each; anew after `warm_up` steps."""

    def __init__(self, most: int, warm_up: int = 0) -> None:
        self._most, self._warm_up = most, warm_up
        self._found: dict[str, tuple[Tensor, int, int]] = {}  # sum, its first step, the step after its last

    def add(self, name: str, value: Tensor, steps: int) -> None:
        total, first, known = self._found.get(name, (None, 0, 0))
        end = min(known + steps, self._most)
        if end <= known:
            return
        if first < self._warm_up < end:  # the steps before are forgotten
            total, first = None, self._warm_up
        start = max(known, first)
        more = added_up(part(value, start - known, end - known), end - start)
        self._found[name] = (more if total is None else total + more, first, end)

    def means(self) -> dict[str, Tensor]:
        return {name: total / (end - first) for name, (total, first, end) in self._found.items()}


def _module_name(node: str) -> str:
    """A name without dots, which modules cannot have, and another one for every node.

    The slash in front keeps a layer called "values" apart from the dictionary's own attributes.
    """
    return "/" + node.replace("%", "%25").replace("/", "%2F").replace(".", "/")


def _check_channels(stage: Stage, shape: Sequence[int], T: int) -> None:
    """Raise if the neurons of a stage have other numbers of parameters than channels, as a damaged file may say."""
    op = stage.end.op
    assert isinstance(op, (Spike, Joint))
    if op.channel >= len(shape):
        raise DataError(f"{stage.name} has its channels at dimension {op.channel} of {len(shape)}")
    for kind, tensor in op.tensors().items():
        if tensor.ndim == 1 and len(tensor) not in (1, shape[op.channel]):
            raise DataError(f"{stage.name} has {shape[op.channel]} channels and {len(tensor)} numbers for {kind}")
        if kind == "step_bias" and tuple(tensor.shape) != (T, shape[op.channel]):
            raise DataError(f"{stage.name} has {T} steps and {shape[op.channel]} channels, but step biases "
                            f"{list(tensor.shape)}")  # fmt: skip


def _make_unit(graph: Graph, node: Node, is_output: bool) -> Tensor:
    """Give the neurons of `node` thresholds of 1 and their current in units of theta; returns theta, shaped."""
    op = node.op
    assert isinstance(op, Spike) and op.theta is not None
    theta = op.height(op.ndim)
    node.inputs = (graph.add(Node(f"{node.name}.unit", ChannelAffine(scale=1 / theta), node.inputs)),)
    if op.v_init is not None:
        op.v_init = frozen(op.v_init / (theta[0] if op.v_init.ndim > 1 else op.theta))
    if op.bias is not None:
        op.bias = frozen(op.bias / op.theta)
    if op.step_bias is not None:
        op.step_bias = frozen(op.step_bias / op.theta)
    if is_output:
        op.gain = frozen(op.theta)
    op.theta = frozen(torch.ones_like(op.theta))
    return theta


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    """The parts as one; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _side_by_side(parts: list[dict[str, Tensor]], dim: int = 0) -> dict[str, Tensor]:
    """Values of several parts of a batch as those of the whole."""
    return {name: _joined([part[name] for part in parts], dim) for name in parts[0]}


def _scaled(end: Node, spikes: Tensor) -> Tensor:
    """Mean spikes of a layer in the ANN's units, also where thresholds are 1."""
    op = end.op
    return spikes * along(op.gain, op.channel, op.ndim) if isinstance(op, Spike) and op.gain is not None else spikes


def weights_channels_last(graph: Graph) -> None:
    """Lay out convolutions for channels-last images; done before a graph is cloned, all clones share the memory."""
    for node in graph.nodes.values():
        if isinstance(node.op, Conv):
            node.op.weight.data = channels_last(node.op.weight.data)


def running_mean(current: Tensor, T: int, warm_up: int = 0) -> Tensor:
    """`[T or 1, N, ...]` currents to their means over the first 1, 2, ... T steps; anew after `warm_up` of them."""
    if current.shape[0] == 1:
        return current.expand(T, *current.shape[1:]).clone()
    if warm_up:
        return torch.cat([running_mean(current[:warm_up], warm_up), running_mean(current[warm_up:], T - warm_up)])
    steps = torch.arange(1, T + 1, device=current.device, dtype=current.dtype)
    return current.cumsum(0) / steps.reshape(-1, *(1,) * (current.ndim - 1))


def stack(steps: list[Any]) -> Any:
    """A list of equal structures as one structure of stacked tensors."""
    first = steps[0]
    if isinstance(first, dict):
        return {key: stack([s[key] for s in steps]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(stack(list(part)) for part in zip(*steps, strict=True))
    return torch.stack(steps)
