"""ONNX: one step of the network with its state going in and out, and all steps as one graph.

Both take any number of images. Values are named after their node, with `@t` at step t in the graph of all steps; names
with a leading slash belong to no node.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.errors import ConversionError
from spikecal.export.netlist import (
    Clock,
    Conv,
    Delay,
    Flatten,
    Image,
    Linear,
    MaxPool,
    Netlist,
    Neurons,
    Node,
    Output,
    SumPool,
)
from spikecal.export.packages import package
from spikecal.export.refusals import refusal
from spikecal.files import write_together
from spikecal.neurons import IntegrateAndFire, SignedIntegrateAndFire

OPSET = 17
IR_VERSION = 8  # that of the opset, so that runtimes of its time accept the file
BATCH = "N"


def write_onnx(path: Path, netlist: Netlist) -> None:
    """All steps in `path`, one step beside it, both checked by onnx's own checker."""
    models = {step_path(path): step_model(netlist), path: whole_model(netlist)}
    write_together({place: model.SerializeToString() for place, model in models.items()})


def step_path(path: Path) -> Path:
    """The path of the model of one step."""
    return path.with_name(f"{path.stem}.step{path.suffix}")


def states(netlist: Netlist) -> dict[str, tuple[int, ...]]:
    """The state of one step: name -> shape for one image; all 0 before step 0."""
    found: dict[str, tuple[int, ...]] = {}
    for node in netlist.nodes.values():
        if isinstance(node, Neurons):
            found[f"{node.name}.v"] = node.shape
        elif isinstance(node, MaxPool):
            found[f"{node.name}.sum"] = netlist.nodes[node.inputs[0]].shape
            found[f"{node.name}.pooled"] = node.shape
        elif isinstance(node, Delay):
            found |= dict.fromkeys(_line(node), node.shape)
    return found


def _reach_clock(node: Neurons, sign: int) -> Clock:
    """The reach for one sign at each step, as a clock that no node reads."""
    assert node.reach is not None
    name = f"{node.name}.reach{'+' if sign > 0 else '-'}"
    return Clock(name=name, inputs=(), shape=node.shape, own=sign * node.reach, gate=torch.zeros_like(node.reach))


def _line(node: Delay) -> list[str]:
    """The contents of a delay line, by name, the next output first."""
    return [f"{node.name}.line{place}" for place in range(node.steps)]


def step_model(netlist: Netlist) -> Any:
    """`(image, step, states…) -> (current, step, states…)`; the step is present if something depends on it."""
    taken = next((name for name in ("step", "current") if name in netlist.nodes), None)
    if taken is not None:
        raise ConversionError(taken, f"a layer has the same name as ONNX's {taken}", "rename it in the model")
    graph = _Graph(netlist)
    inputs, outputs = [graph.tensor("image", netlist.image.shape)], [graph.tensor("current", netlist.output.shape)]
    image = graph.rounded()
    if netlist.timed:
        inputs.append(graph.counter("step"))
        outputs.append(graph.counter("step.next"))
        graph.node("Add", ["step", graph.constant("/one", np.ones(1, dtype=np.int64))], "step.next")
    if netlist.latency > netlist.T:
        image = graph.shown(image, netlist.T)
    known = {name: name for name in states(netlist)}
    current = graph.step(image, known, "", graph.gathered, graph.opened)
    graph.node("Identity", [current], "current")
    for name, shape in states(netlist).items():
        graph.node("Identity", [known[name]], f"{name}.next")
        inputs.append(graph.tensor(name, shape))
        outputs.append(graph.tensor(f"{name}.next", shape))
    return graph.model("step", inputs, outputs)


def whole_model(netlist: Netlist) -> Any:
    """`image -> output`: the mean output, after all steps."""
    graph = _Graph(netlist)
    graph.node("Mul", ["image", graph.constant("/zero", np.zeros((), dtype=np.float32))], "/silence")
    shown, known = graph.rounded(), dict[str, str]()
    currents = []
    for t in range(netlist.latency):
        image = shown if t < netlist.T else "/silence"
        tick, gate = partial(graph.ticked, t=t), partial(graph.opened_at, t=t)
        currents.append(graph.step(image, known, f"@{t}", tick, gate))
    read = currents[netlist.first :]
    graph.node("Sum", read, "/total")
    graph.node("Div", ["/total", graph.constant("/steps", np.array(len(read), dtype=np.float32))], "output")
    inputs = [graph.tensor("image", netlist.image.shape)]
    return graph.model("whole", inputs, [graph.tensor("output", netlist.output.shape)])


class _Graph:
    """An ONNX graph under construction. Weights are added once, however many steps use them."""

    def __init__(self, netlist: Netlist) -> None:
        self.netlist, self._onnx = netlist, package("onnx")
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._made: dict[tuple[str, str], str] = {}  # a node of a value: its name

    # -- one step ------------------------------------------------------------------------------------------------

    def step(
        self, image: str, states: dict[str, str], at: str, tick: Callable[[Clock], str], gate: Callable[[Neurons], str]
    ) -> str:
        """Add one step; updates `states` and returns the output. A missing state is 0.

        `tick` gives a clock at this step; `gate` is 1 if masked neurons may fire, else 0.
        """
        values: dict[str, str] = {}
        for node in self.netlist.nodes.values():
            if isinstance(node, Image):
                values[node.name] = image
            elif isinstance(node, Clock):
                values[node.name] = tick(node)
            else:
                x = self._added([values[name] for name in node.inputs], f"{node.name}.in{at}")
                values[node.name] = self._value(node, x, states, at, tick, gate)
        return values[self.netlist.output.name]

    def _value(
        self,
        node: Node,
        x: str,
        states: dict[str, str],
        at: str,
        tick: Callable[[Clock], str],
        gate: Callable[[Neurons], str],
    ) -> str:
        if isinstance(node, Neurons):
            return self._fired(node, x, states, at, tick, gate)
        if isinstance(node, Delay):
            return self._delayed(node, x, states)
        if isinstance(node, MaxPool):
            return self._pooled(node, x, states, at)
        if isinstance(node, Output):
            return x
        if (node.name, x) not in self._made:  # what depends only on the image is computed once
            self._made[node.name, x] = self._linear(node, x, f"{node.name}{at}")
        return self._made[node.name, x]

    def _fired(
        self,
        node: Neurons,
        x: str,
        states: dict[str, str],
        at: str,
        tick: Callable[[Clock], str],
        gate: Callable[[Neurons], str],
    ) -> str:
        """`v <- v + I`; a spike where `v` reaches the threshold; `v <- v - 1` there."""
        state, fired = f"{node.name}.v", f"{node.name}.levels{at}" if node.masked else f"{node.name}{at}"
        reached = self._added([states[state], x] if state in states else [x], f"{state}.reached{at}")
        if node.neuron == IntegrateAndFire():
            self._where("GreaterOrEqual", reached, self._number(1), fired)
        elif node.neuron == SignedIntegrateAndFire():
            up, down = (
                self._number(sign / 2) if node.reach is None else tick(_reach_clock(node, sign)) for sign in (1, -1)
            )
            above = self._where("GreaterOrEqual", reached, up, f"{fired}.above")
            self.node("Sub", [above, self._where("Less", reached, down, f"{fired}.below")], fired)
        else:
            raise refusal(node, "this export to ONNX")
        if node.masked:
            self.node("Mul", [fired, gate(node)], f"{node.name}{at}")
        self.node("Sub", [reached, f"{node.name}{at}"], f"{state}.left{at}")
        states[state] = f"{state}.left{at}"
        return f"{node.name}{at}"

    def _number(self, level: float) -> str:
        return self.constant(f"/level{level:g}", np.array(level, dtype=np.float32))

    def _where(self, comparison: str, value: str, level: str, made: str) -> str:
        """1 where a comparison with a value holds, and 0 elsewhere."""
        self.node(comparison, [value, level], f"{made}.is")
        return self.node("Cast", [f"{made}.is"], made, to=self._onnx.TensorProto.FLOAT)

    def _delayed(self, node: Delay, x: str, states: dict[str, str]) -> str:
        """The oldest entry leaves the line. A line that is not yet full gives zeros."""
        line = _line(node)
        out = states.get(line[0]) or self._nothing(node, x)
        for place, after in pairwise(line):
            if after in states:
                states[place] = states[after]
        states[line[-1]] = x
        return out

    def _nothing(self, node: Delay, x: str) -> str:
        """Zeros like `x`, once for all steps."""
        name = f"{node.name}/nothing"
        if name not in self._made.values():
            self._made[node.name, "/nothing"] = name
            self.node("Mul", [x, self.constant("/zero", np.zeros((), dtype=np.float32))], name)
        return name

    def _pooled(self, node: MaxPool, x: str, states: dict[str, str], at: str) -> str:
        """The increments of the pooled running sum."""
        total, before = f"{node.name}.sum", states.get(f"{node.name}.pooled")
        states[total] = self._added([states[total], x] if total in states else [x], f"{total}.now{at}")
        pooled = f"{node.name}.pooled.now{at}"
        self.node(
            "MaxPool", [states[total]], pooled, kernel_shape=node.kernel, strides=node.stride,
            pads=[*node.padding, *node.padding], dilations=node.dilation, ceil_mode=int(node.ceil_mode),
        )  # fmt: skip
        states[f"{node.name}.pooled"] = pooled
        if before is None:
            return pooled
        return self.node("Sub", [pooled, before], f"{node.name}{at}")

    def _linear(self, node: Node, x: str, made: str) -> str:
        if isinstance(node, Flatten):
            return self.node("Flatten", [x], made, axis=1)
        if isinstance(node, SumPool):
            ones = np.ones((node.shape[0], 1, *node.kernel), dtype=np.float32)
            weight = self.constant(f"{node.name}.ones", ones)
            return self.node("Conv", [x, weight], made, strides=node.stride, group=node.shape[0])
        assert isinstance(node, Conv | Linear)
        weights = [self.constant(f"{node.name}.weight", _array(node.weight))]
        if node.bias is not None:
            weights.append(self.constant(f"{node.name}.bias", _array(node.bias)))
        if isinstance(node, Linear):
            return self.node("Gemm", [x, *weights], made, transB=1)
        return self.node(
            "Conv", [x, *weights], made, strides=node.stride, pads=[*node.padding, *node.padding],
            dilations=node.dilation, group=node.groups,
        )  # fmt: skip

    def _added(self, names: Sequence[str], made: str) -> str:
        """The sum of values, in order; a single one is returned itself."""
        total = names[0]
        for i, name in enumerate(names[1:], 1):
            total = self.node("Add", [total, name], made if i == len(names) - 1 else f"{made}.{i}")
        return total

    # -- time ----------------------------------------------------------------------------------------------------

    def gathered(self, clock: Clock) -> str:
        """A clock at the input step."""
        schedule = self.constant(f"{clock.name}.schedule", self._schedule(clock))
        return self.node("Gather", [schedule, "step"], clock.name, axis=0)

    def ticked(self, clock: Clock, t: int) -> str:
        """A clock at step t."""
        return self.constant(f"{clock.name}@{t}", self._schedule(clock)[t : t + 1])

    def opened(self, node: Neurons) -> str:
        """Whether masked neurons may fire at the input step: 1 or 0."""
        netlist = self.netlist
        when = np.array([netlist.open(node, t) for t in range(netlist.latency)], dtype=np.float32)
        return self.node("Gather", [self.constant(f"{node.name}.open", when), "step"], f"{node.name}.now", axis=0)

    def opened_at(self, node: Neurons, t: int) -> str:
        """The same at step t."""
        may = int(self.netlist.open(node, t))
        return self.constant(f"/may{may}", np.array(may, dtype=np.float32))

    def _schedule(self, clock: Clock) -> np.ndarray:
        """`[latency, C, ...]`; with all positions if weights read it, as borders matter to them."""
        schedule = clock.own + clock.gate
        shape = (len(schedule), clock.shape[0], *(1,) * (len(clock.shape) - 1))
        found = _array(schedule.reshape(shape))
        readers = (self.netlist.nodes[name] for name in self.netlist.readers().get(clock.name, ()))
        if all(isinstance(reader, Neurons) for reader in readers):
            return found
        return np.ascontiguousarray(np.broadcast_to(found, (len(schedule), *clock.shape)))

    def rounded(self) -> str:
        """The image, on its grid if it has one."""
        pixel = self.netlist.image.pixel
        if pixel is None:
            return "image"
        size = self.constant("/pixel", np.array(pixel, dtype=np.float32))
        self.node("Div", ["image", size], "/image.in_pixels")
        self.node("Round", ["/image.in_pixels"], "/image.whole")
        return self.node("Mul", ["/image.whole", size], "/image.rounded")

    def shown(self, image: str, T: int) -> str:
        """The image, which is 0 after its T steps."""
        self.node("Less", ["step", self.constant("/T", np.array([T], dtype=np.int64))], "/is_shown")
        self.node("Cast", ["/is_shown"], "/shown", to=self._onnx.TensorProto.FLOAT)
        return self.node("Mul", [image, "/shown"], "/image")

    # -- parts ---------------------------------------------------------------------------------------------------

    def node(self, kind: str, inputs: Sequence[str], output: str, **settings: Any) -> str:
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [output], name=output, **settings))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        if name not in self._constants:
            self._constants[name] = self._onnx.numpy_helper.from_array(value, name)
        return name

    def tensor(self, name: str, shape: Sequence[int]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, [BATCH, *shape])

    def counter(self, name: str) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.INT64, [1])

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> Any:
        """The model, with the shapes of all values in it; onnx checks both."""
        onnx = self._onnx
        graph = onnx.helper.make_graph(self._nodes, name, inputs, outputs, list(self._constants.values()))
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, producer_name="spikecal", ir_version=IR_VERSION)
        about = {"T": self.netlist.T, "latency": self.netlist.latency, "first": self.netlist.first}
        onnx.helper.set_model_props(model, {key: str(value) for key, value in about.items()})
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.float32))
