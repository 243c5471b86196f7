"""The spiking network: an ordinary nn.Module, run layerwise (all steps of a stage at once) or stepwise."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from spikecal.devices import whatever_the_default
from spikecal.errors import DataError
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import ChannelAffine, Conv, Joint, Spike, along, channels_of, frozen
from spikecal.graph.passes import fold_affine, fold_scale_forward
from spikecal.graph.stages import Stage, partition, with_joints
from spikecal.ranks import writes
from spikecal.snn.execute import Emission, Ending, Want, check_values, images_per_call, shapes_of, steps_per_call
from spikecal.snn.origin import Origin
from spikecal.snn.outputs import Parts, Sums, joined, running_mean, side_by_side, stack
from spikecal.snn.recording import Recorder, Run, layers
from spikecal.snn.walk import Course
from spikecal.snn.windows import Windows, part
from spikecal.tensors import as_tensor, channels_last, one_image

if TYPE_CHECKING:
    from spikecal.snn.trainable import Surrogate, Trainable

Frames = tuple[Tensor, ...]  # of each input, `[T, N, ...]`, or `[1, N, ...]` if constant

# How to read an output that is itself an activation: as the activation of the mean current, or as mean spikes.
Readout = Literal["current", "spikes"]
READOUTS = get_args(Readout)
EXPORT = "spikecal.export.export"  # builds on this module, so it is imported late


class SpikingNetwork(nn.Module):
    """A calibrated canonical graph for `T` steps. `snn(x)` is like `model(x)`: the mean over the steps.

    `waits` is how many steps stages wait before they may fire; later values then have their T steps later.
    """

    def __init__(self, graph: Graph, T: int, waits: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.graph, self.T, self.stages = graph, T, partition(graph)
        self.windows = Windows(T, self.stages, waits or {})
        self.ops = nn.ModuleDict({_module_name(name): node.op for name, node in graph.nodes.items()})
        self.head = graph.head
        self.origin = Origin()
        self.readout: Readout = "current"
        self.warm_up = 0  # first steps of each output to ignore once there are more
        self._shapes: dict[tuple[torch.Size, ...], dict[str, torch.Size]] = {}
        weights_channels_last(graph)
        self.reset()

    # -- time --------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> Mapping[str, int]:
        """The stages that wait, with their numbers of steps."""
        return self.windows.waits

    @property
    def latency(self) -> int:
        """Steps from the first of the input to the last of the output."""
        return self.T + self._latest_start

    @property
    def interval(self) -> int:
        """Steps between two images that follow each other as closely as possible: no membrane may hold two."""
        return self.windows.interval

    @property
    def _latest_start(self) -> int:
        return self.windows.latest(self.graph.outputs(), self.readout == "current")

    # -- layerwise ---------------------------------------------------------------------------------------------

    @whatever_the_default
    @torch.no_grad()
    def forward(self, *inputs: Tensor, steps: int | None = None, over_time: bool = False) -> Any:
        """Like the model: the mean over all T steps of the output, or over the first `steps` of them.

        With `over_time`, inputs are `[T, N, ...]`, one frame per step.
        """
        return self._finish(self.output_values(*inputs, steps=steps, over_time=over_time))

    @whatever_the_default
    @torch.no_grad()
    def output_values(self, *inputs: Tensor, steps: int | None = None, over_time: bool = False) -> dict[str, Tensor]:
        """The outputs by name, before the model's structure and analog head are applied."""
        if steps is not None and not 1 <= steps <= self.T:
            raise DataError(f"a network for T={self.T} cannot be read after {steps} steps: give 1 to {self.T}")
        return self.mean_outputs(self.checked(inputs, over_time), self.T if steps is None else steps)

    @whatever_the_default
    @torch.no_grad()
    def counted(self, *inputs: Tensor, steps: int | None = None) -> tuple[Any, dict[str, Tensor]]:
        """What `forward` gives, and the spike counts of every layer until then; it takes the memory of `forward`."""
        frames, recorder = self.checked(inputs), Recorder()
        end = self.windows.end if steps is None else steps + self._latest_start
        means = [self._mean(batch, steps or self.T, end, recorder) for batch in self._batches(frames)]
        return self._finish(side_by_side(means)), recorder.spikes()

    @whatever_the_default
    @torch.no_grad()
    def run(
        self, *inputs: Tensor, record: Sequence[str] = (), potentials: bool = False, over_time: bool = False
    ) -> Run:
        """All T steps, with the output after each of them and the spike counts of every layer.

        `record` names layers of neurons whose spike trains are kept, and with `potentials` also their membranes. With
        `over_time`, inputs are `[T, N, ...]`, one frame per step: the same as calling `step` with each of them.
        """
        frames = self.checked(inputs, over_time)
        recorder = Recorder(layers(record, self.stages), potentials)
        recorder.allocate(self.T, frames[0][0], self._shapes_of(frames))
        outputs = side_by_side([self._curves(batch, recorder) for batch in self._batches(frames)], 1)
        kept = recorder.spikes(), recorder.trains, recorder.potentials
        if self.head is None:
            return Run(self.graph.finish(outputs.__getitem__), *kept)
        steps = [self._finish({name: value[t] for name, value in outputs.items()}) for t in range(self.T)]
        return Run(stack(steps), *kept)

    @whatever_the_default
    @torch.no_grad()
    def outputs_after(self, *inputs: Tensor, warm_ups: Sequence[int]) -> list[dict[str, Tensor]]:
        """The outputs by name for each of these `warm_ups`, from a single run."""
        found: list[dict[str, list[Tensor]]] = [{} for _ in warm_ups]
        for batch in self._batches(self.checked(inputs)):
            for name, value in self._output_currents(batch).items():
                for warm_up, outputs in zip(warm_ups, found, strict=True):
                    mean = part(value, warm_up, self.T).mean(0)
                    outputs.setdefault(name, []).append(self._read(self.graph.nodes[name], mean))
        return [{name: joined(parts) for name, parts in outputs.items()} for outputs in found]

    def mean_outputs(self, frames: Frames, steps: int, ending: Ending | None = None) -> dict[str, Tensor]:
        """The outputs by name after `steps`; `ending` replaces `emit` at the ends of stages."""
        end = steps + self._latest_start
        return side_by_side([self._mean(batch, steps, end, ending=ending) for batch in self._batches(frames)])

    def course(self, inputs: tuple[Tensor, ...]) -> Course:
        """The network before its first step."""
        return Course(self.windows, self._shapes_for(inputs))

    def _curves(self, frames: Frames, recorder: Recorder) -> dict[str, Tensor]:
        """The outputs after every step, `[T, N, ...]`."""
        means = {
            name: running_mean(value, self.T, self.warm_up)
            for name, value in self._output_currents(frames, recorder).items()
        }
        return {name: self._read(self.graph.nodes[name], mean) for name, mean in means.items()}

    def _output_currents(self, frames: Frames, recorder: Recorder | None = None) -> dict[str, Tensor]:
        """What each output is read from, `[T or 1, N, ...]`."""
        found = Parts()
        self._go(Course(self.windows, self._shapes_of(frames)), frames, self.windows.end, found, recorder)
        return found.values()

    def _mean(
        self, frames: Frames, steps: int, end: int, recorder: Recorder | None = None, ending: Ending | None = None
    ) -> dict[str, Tensor]:
        """The outputs after `steps` of each, from a run until `end`."""
        sums = Sums(steps, self.warm_up)
        self._go(Course(self.windows, self._shapes_of(frames), ending), frames, end, sums, recorder)
        return self._means(sums)

    def _go(self, course: Course, frames: Frames, end: int, outputs: Sums | Parts, recorder: Recorder | None) -> None:
        """Run all steps until `end`. Large images run a few steps at a time, to save memory."""
        at_once = steps_per_call(course.shapes, frames[0].shape[1])
        at_once = end if at_once >= self.T or course.ending is not None else at_once  # no value has more than T steps
        if recorder is not None:
            recorder.begin(frames[0].shape[1])
        whole = self._over_time(frames)
        for done in range(0, end, at_once):
            steps = min(at_once, end - done)
            values = {name: part(x, done, done + steps) for name, x in whole.items()}
            self._advance(course, values, steps, outputs, recorder, last=done + steps >= end)

    def _advance(
        self,
        course: Course,
        values: dict[str, Tensor],
        steps: int,
        outputs: Sums | Parts,
        recorder: Recorder | None = None,
        last: bool = False,
    ) -> None:
        """Run some more steps, and add up what outputs are read from; the recorder sees everything emitted."""
        wanted = set(self.graph.outputs())
        for name in wanted & values.keys():
            outputs.add(name, values[name], min(steps, self.T - course.now))
        want, extra = (Want.VALUE, {}) if recorder is None else (Want.VALUE | Want.TOTAL, recorder.extra)
        for stage, emission in course.advance(values, steps, last=last, want=want, extra=extra, kept=wanted):
            if stage.name in wanted:
                outputs.add(stage.name, *self._of_output(stage, emission))
            if recorder is not None:
                recorder.add(stage.name, emission)

    def _of_output(self, stage: Stage, emission: Emission) -> tuple[Tensor, int]:
        """What an output is read from, and its steps: its current or its spikes if it is itself an activation."""
        if stage.spiking and self.readout == "current":
            return emission.arriving, emission.arrived
        assert emission.value is not None
        return emission.value, emission.steps

    def _read(self, end: Node, mean: Tensor) -> Tensor:
        """An output in the ANN's units from the mean of what it is read from."""
        if self.readout == "spikes":
            return _scaled(end, mean)
        return end.op(mean) if isinstance(end.op, Spike) else mean

    def _means(self, sums: Sums) -> dict[str, Tensor]:
        """The outputs so far."""
        return {name: self._read(self.graph.nodes[name], mean) for name, mean in sums.means().items()}

    def _finish(self, values: dict[str, Tensor]) -> Any:
        return self.graph.finish(values.__getitem__)

    # -- stepwise ----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all potentials: the next `step` is the first."""
        self._course: Course | None = None
        self._sums = Sums(self.T, self.warm_up)
        self._step_shapes: list[torch.Size] = []

    @whatever_the_default
    @torch.inference_mode(False)  # what is remembered must be usable outside of inference mode
    @torch.no_grad()
    def step(self, *inputs: Tensor) -> Any:
        """Run one step in constant memory; returns the output so far, the mean over its steps since `reset`.

        That is None until all outputs have started. The input is ignored after its T steps.
        """
        frames = self.checked(inputs)
        shapes_now = [x.shape for x in frames]
        if self._course is None:
            self._course, self._step_shapes = Course(self.windows, self._shapes_of(frames)), shapes_now
        if self._step_shapes != shapes_now:
            raise DataError("the inputs of this step have a different shape from those before: call reset() first")
        if self._course.now == self.latency:
            raise DataError(f"all {self.latency} steps of this network have been run: call reset() first")
        self._advance(self._course, self._over_time(frames), 1, self._sums)
        return self._finish(self._means(self._sums)) if self._course.now > self._latest_start else None

    # -- inputs ------------------------------------------------------------------------------------------------

    def input_values(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Inputs as values that are constant over time."""
        return self._over_time(tuple(x.unsqueeze(0) for x in inputs))

    def _over_time(self, frames: Frames) -> dict[str, Tensor]:
        """Frames by the names of inputs, images in the layout in which convolutions are fastest."""
        laid = (channels_last(x.flatten(0, 1)).unflatten(0, x.shape[:2]) for x in frames)
        return dict(zip(self.graph.inputs(), laid, strict=True))

    def images_per_call(self, *inputs: Tensor) -> int:
        """How many images like these to run in one call; larger batches are split accordingly."""
        return images_per_call(self._shapes_for(inputs), self.T)

    def _batches(self, frames: Frames) -> list[Frames]:
        size = images_per_call(self._shapes_of(frames), self.T)
        return list(zip(*(x.split(size, 1) for x in frames), strict=True))

    def _shapes_of(self, frames: Frames) -> dict[str, torch.Size]:
        return self._shapes_for(tuple(x[0] for x in frames))

    def _shapes_for(self, inputs: tuple[Tensor, ...]) -> dict[str, torch.Size]:
        key = tuple(x.shape[1:] for x in inputs)
        if key not in self._shapes:
            check_values(self.graph, inputs)
            shapes = shapes_of(self.graph, inputs)
            for stage in self.stages:
                _check_channels(stage, shapes[stage.name], self.T)
            self._shapes[key] = shapes
        return self._shapes[key]

    def checked(self, inputs: tuple[Any, ...], over_time: bool = False) -> Frames:
        """The inputs as frames in the network's precision; raises if they are invalid."""
        expected = len(self.graph.inputs())
        if len(inputs) != expected:
            raise DataError(f"the network takes {expected} inputs, not {len(inputs)}")
        tensors = tuple(map(as_tensor, inputs))
        if not all(isinstance(x, Tensor) and x.is_floating_point() for x in tensors):
            raise DataError("the network takes tensors of floats, normalised as in training")
        if over_time:
            tensors = tuple(self._frames(x) for x in tensors)
        for x, shape in zip(tensors, self.origin.inputs, strict=False):  # unknown for a network from an old file
            if x.ndim - over_time == len(shape):
                raise one_image(x[0] if over_time else x)
            if not over_time and x.ndim == len(shape) + 2 > 3:
                raise DataError(f"an input of shape {list(x.shape)} has a dimension too many: for frames over time, "
                                f"[T, N, ...], give over_time=True")  # fmt: skip
        if not all(bool(torch.isfinite(x).all()) for x in tensors):
            raise DataError("an input has NaN or infinite values")
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), tensors[0].dtype)
        return tuple(x.to(dtype) if over_time else x.to(dtype).unsqueeze(0) for x in tensors)

    def _frames(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or len(x) != self.T:
            raise DataError(f"inputs over time must be {self.T} frames [T, N, ...], one per step, not {list(x.shape)}")
        return x

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Like a module. Networks of one conversion share memory if equal, so this one gets its own."""
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return super().load_state_dict(*args, **kwargs)

    @whatever_the_default
    def save(self, path: str | Path) -> None:
        """Write this network alone; `Result.save` writes all T of a conversion into one file. Of several ranks, one."""
        from spikecal.snn.file import write  # file.py builds on this module

        if writes():
            write(path, {self.T: self}, self.origin, {})

    # -- other programs ----------------------------------------------------------------------------------------

    def export(self, path: str | Path, images: Tensor | None = None, **settings: Any) -> Any:
        """Write this network for another simulator; `to` is nir, onnx or spikingjelly, by default by the suffix.

        `images` are like those it will run on: their size matters. With `bits` its values are integers, with one scale
        `per` channel or layer, and biases are calibrated on `images`. With `exact` its values are rounded so that
        every sum is exact in float32. Returns what can be verified in other simulators.
        """
        return import_module(EXPORT).export(self, path, images, **settings)

    def export_inputs(self, images: Tensor) -> Tensor:
        """The input of the exported network at each step, `[latency, N, C + planes, ...]`."""
        frames: Tensor = import_module(EXPORT).export_inputs(self, images)
        return frames

    def export_outputs(self, outputs: Tensor) -> Tensor:
        """The answers, from the outputs of the exported network at each step, `[latency, N, ...]`."""
        answers: Tensor = import_module(EXPORT).export_outputs(self, outputs)
        return answers

    # -- other forms -------------------------------------------------------------------------------------------

    def trainable(self, surrogate: "Surrogate | None" = None) -> "Trainable":
        """A copy as a module whose outputs have gradients, for your own training loop.

        `surrogate` is the slope used for that of a spike: a function of the distance of the potential from the
        threshold, in units of it. By default it is `max(0, 1 - |d|)`.
        """
        from spikecal.snn.trainable import Trainable, triangle  # trainable.py builds on this module

        return Trainable(self, surrogate or triangle)

    @whatever_the_default
    def normalized(self) -> "SpikingNetwork":
        """The same network with 0/1 spikes and all thresholds 1: `W <- W theta_in / theta_out`, `b <- b / theta`."""
        graph = self.graph.clone()
        outputs = set(graph.outputs())
        result = Graph(output=graph.output, head=graph.head)
        thetas: dict[str, Tensor] = {}
        for node in graph.nodes.values():
            for i, source in enumerate(node.inputs):
                if source in thetas:  # this reader gets 0/1 spikes and must scale them itself
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


def _module_name(node: str) -> str:
    """A unique name without dots, which names of modules cannot contain.

    The slash in front keeps a layer called "values" apart from the dictionary's own attributes.
    """
    return "/" + node.replace("%", "%25").replace("/", "%2F").replace(".", "/")


def _check_channels(stage: Stage, shape: Sequence[int], T: int) -> None:
    """Raise if the neurons of a stage do not have one parameter per channel, as in a damaged file."""
    op = stage.end.op
    assert isinstance(op, (Spike, Joint))
    if op.channel >= len(shape) and (len(shape) > 1 or isinstance(op, Spike)):
        raise DataError(f"{stage.name} has its channels at dimension {op.channel} of {len(shape)}")
    channels = channels_of(op, shape)
    for kind, tensor in op.tensors().items():
        if tensor.ndim == 1 and len(tensor) not in (1, channels):
            raise DataError(f"{stage.name} has {channels} channels, but {len(tensor)} numbers for {kind}")
        widths = {"step_bias": (channels,), "reach": (1, channels)}.get(kind)
        if widths is not None and tuple(tensor.shape) not in [(T, width) for width in widths]:
            raise DataError(f"{stage.name} has {T} steps and {channels} channels, but its {kind} is "
                            f"{list(tensor.shape)}")  # fmt: skip


def _make_unit(graph: Graph, node: Node, is_output: bool) -> Tensor:
    """Give the neurons of `node` thresholds of 1 and currents in units of theta; returns theta, shaped to broadcast."""
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


def _scaled(end: Node, spikes: Tensor) -> Tensor:
    """Mean spikes of a layer in the ANN's units, even if thresholds are 1."""
    op = end.op
    return spikes * along(op.gain, op.channel, op.ndim) if isinstance(op, Spike) and op.gain is not None else spikes


def weights_channels_last(graph: Graph) -> None:
    """Lay out convolutions for channels-last images; if done before cloning a graph, all clones share the memory."""
    for node in graph.nodes.values():
        if isinstance(node.op, Conv):
            node.op.weight.data = channels_last(node.op.weight.data)
