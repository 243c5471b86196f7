"""Energy: counts against an independent count on the ANN's side, and spike by spike on a small network."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual
from paper_neuron import if_step
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal.analysis.energy import AC_PJ, MAC_PJ, Energy, measure_energy
from spikecal.analysis.operations import fanout, nominal_macs
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Add, Conv, ConvTranspose, Input, Linear, MaxPool, Spike
from spikecal.graph.stages import with_joints
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.models import build_model


def converted(model: nn.Module, x: Tensor, T: int = 4) -> SpikingNetwork:
    return spikecal.convert(model, x, T=T, pipeline="baseline", joints="analog").snn


def hooked_macs(model: nn.Module, x: Tensor) -> tuple[float, float]:
    """Products of one image by torch's own modules: those by padding counted, and not."""
    nominal, real = [0.0], [0.0]

    def count(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (read,) = inputs
        if isinstance(module, nn.Linear):
            nominal[0] += output[0].numel() * module.in_features
            real[0] += output[0].numel() * module.in_features
            return
        kernel = module.weight[0].numel()
        nominal[0] += output[0].numel() * kernel
        ones = F.conv2d(torch.ones_like(read[:1]), torch.ones_like(module.weight), None, module.stride,
                        module.padding, module.dilation, module.groups)  # fmt: skip
        real[0] += float(ones.double().sum())

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    model(x)
    for handle in handles:
        handle.remove()
    return nominal[0], real[0]


@pytest.mark.parametrize("name", ["resnet20", "vgg16-half"])
def test_macs_are_those_of_the_modules(name: str) -> None:
    model, _ = build_model(name)
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    nominal, real = hooked_macs(model, x)
    graph = with_joints(lower(model, (x,)))
    for node in graph.nodes.values():
        if isinstance(node.op, Spike):
            node.op.theta = nn.Parameter(torch.ones(1), requires_grad=False)
    energy = measure_energy(SpikingNetwork(graph, 1), x)
    assert energy.macs == real
    assert sum(layer.nominal_macs for layer in energy.layers) == nominal
    if name == "resnet20":
        assert nominal == pytest.approx(40.8e6, rel=0.02)  # as in the literature
    assert [layer.kind for layer in energy.layers][:2] == ["once", "spikes"]


TRANSPOSED = ConvTranspose(weight=torch.ones(2, 3, 3), stride=(2,), padding=(1,), output_padding=(1,), dilation=(1,))


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Conv(weight=torch.ones(4, 1, 3, 3), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2), (2, 6, 7)),
        (TRANSPOSED, (2, 5)),
        (Linear(weight=torch.ones(3, 5)), (4, 5)),
    ],
)  # fmt: skip
def test_fanout_is_how_many_outputs_an_input_reaches(op: Any, shape: tuple[int, ...]) -> None:
    found = fanout(op, shape)
    for i in range(found.numel()):
        x = torch.zeros(1, *shape)
        x.view(-1)[i] = 1
        assert found.flatten()[i] == torch.count_nonzero(op(x))
    made = op(torch.zeros(1, *shape)).shape[1:]
    assert nominal_macs(op, shape, made) >= found.sum()


class Brute:
    """Counts spike by spike and step by step: each spike goes through the graph alone until it meets weights."""

    def __init__(self, snn: SpikingNetwork, x: Tensor) -> None:
        self.snn, self.sops, self.macs = snn, dict[str, float](), dict[str, float]()
        self.shapes = {name: value.shape for name, value in everything(snn, x[:1]).items()}
        for image in range(len(x)):
            values = stepwise(snn, x[image : image + 1])
            for node in snn.graph.nodes.values():
                self.count(node, values)

    def count(self, node: Any, values: dict[str, Tensor]) -> None:
        if isinstance(node.op, (Conv, Linear)):
            made = self.made_of(node.inputs[0])
            op = type(node.op)(**node.op.config(), weight=torch.ones_like(node.op.weight))
            if made != "spikes":
                x = torch.ones(1, *self.shapes[node.inputs[0]][1:])
                steps = 1 if made == "once" else self.snn.T
                self.macs[node.name] = self.macs.get(node.name, 0) + steps * float(op(x).sum())
                return
            for source, element in self.fired(values, node.inputs[0]):
                pulse = self.alone(source, element, node.inputs[0])
                for j in torch.nonzero(pulse.flatten()).flatten().tolist():
                    one = torch.zeros(pulse.shape)
                    one.view(-1)[j] = 1
                    self.sops[node.name] = self.sops.get(node.name, 0) + int(torch.count_nonzero(op(one)))
        elif isinstance(node.op, Add):
            parts = {name: self.made_of(name) for name in node.inputs}
            for name, part in parts.items():
                if part == "spikes" and set(parts.values()) != {"spikes"}:
                    self.sops[node.name] = self.sops.get(node.name, 0) + len(self.fired(values, name))

    def made_of(self, name: str) -> str:
        node = self.snn.graph.nodes[name]
        if isinstance(node.op, Input):
            return "once"
        if isinstance(node.op, Spike):
            return "spikes"
        parts = {self.made_of(part) for part in node.inputs}
        if isinstance(node.op, (Conv, Linear)):
            return "once" if parts == {"once"} else "analog"
        return parts.pop() if len(parts) == 1 else "analog"

    def fired(self, values: dict[str, Tensor], name: str) -> list[tuple[str, int]]:
        """The spikes of all steps that reach `name`: who emits them, and which element of it."""
        node = self.snn.graph.nodes[name]
        if isinstance(node.op, (Spike, MaxPool)):  # a pool of spikes emits spikes of its own
            return [(name, i) for step in values[name] for i in torch.nonzero(step[0].flatten()).flatten().tolist()]
        return [item for part in node.inputs for item in self.fired(values, part)]

    def alone(self, source: str, element: int, target: str) -> Tensor:
        """Where one spike gets to in the value `target`."""
        pulses = {name: torch.zeros(1, *shape[1:]) for name, shape in self.shapes.items()}
        pulses[source].view(-1)[element] = 1
        for node in self.snn.graph.nodes.values():
            if not isinstance(node.op, (Input, Spike, MaxPool, Conv, Linear)):
                shapes = [self.shapes[name] for name in (*node.inputs[:1], *node.shape_refs)]
                pulses[node.name] = node.op(*(pulses[name] for name in node.inputs), shapes=shapes)
        return pulses[target]


def everything(snn: SpikingNetwork, x: Tensor) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for node in snn.graph.nodes.values():
        shapes = [values[name].shape for name in (*node.inputs[:1], *node.shape_refs)]
        values[node.name] = x if isinstance(node.op, Input) else node.op(
            *(values[name] for name in node.inputs), shapes=shapes
        )  # fmt: skip
    return values


def stepwise(snn: SpikingNetwork, x: Tensor) -> dict[str, Tensor]:
    """Every value of every step `[T, 1, ...]`, by a loop of its own over `if_step`."""
    shapes = {name: value.shape for name, value in everything(snn, x).items()}
    values: dict[str, Tensor] = {}
    for node in snn.graph.nodes.values():
        if isinstance(node.op, Input):
            values[node.name] = x.unsqueeze(0).expand(snn.T, *x.shape)
        elif isinstance(node.op, Spike):
            theta = node.op.height(len(shapes[node.name]))
            v = torch.zeros(shapes[node.name])
            steps = []
            for t in range(snn.T):
                bias = 0 if node.op.bias is None else node.op.bias.reshape(1, -1, *(1,) * (v.ndim - 2))
                spikes, v = if_step(values[node.inputs[0]][t] + bias, v, theta.expand_as(v))
                steps.append(spikes)
            values[node.name] = torch.stack(steps)
        else:
            references = [shapes[name] for name in (*node.inputs[:1], *node.shape_refs)]
            values[node.name] = node.op.over_time([values[i] for i in node.inputs], snn.T, references, {})
    return values


@pytest.mark.parametrize("make", ["dyadic", "residual"])
def test_sops_spike_by_spike(make: str) -> None:
    """Pools of both kinds, skips, a joint, groups, a cat: every spike alone through the graph."""
    if make == "dyadic":
        snn, x = converted(dyadic(), dyadic_images(16)), dyadic_images(2, seed=5)
    else:
        snn, x = converted(residual(), images(16)), images(2, seed=5)
    energy, brute = measure_energy(snn, x), Brute(snn, x)
    assert {layer.name: layer.sops * len(x) for layer in energy.layers if layer.sops} == brute.sops
    assert {layer.name: layer.snn_macs * len(x) for layer in energy.layers if layer.snn_macs} == brute.macs
    assert {layer.kind for layer in energy.layers} >= {"once", "spikes", "analog"}
    assert energy.snn_pj == pytest.approx(
        (AC_PJ * sum(brute.sops.values()) + MAC_PJ * sum(brute.macs.values())) / len(x)
    )


class Always(nn.Module):
    """Every neuron fires at every step: weights 0, bias at the threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 3, 3, padding=1)
        self.b = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.c = nn.Linear(4 * 9, 5)
        for layer in (self.a, self.b, self.c):
            nn.init.zeros_(layer.weight)
            nn.init.ones_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))).flatten(1))


def test_full_firing_breaks_even_where_a_mac_costs_as_much() -> None:
    x = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    snn = spikecal.convert(Always().eval(), x, T=3, pipeline="maxact").snn
    energy = measure_energy(snn, x)
    first, *others = energy.layers
    assert [layer.sops for layer in others] == [3 * layer.macs for layer in others]
    assert (first.sops, first.snn_macs) == (0, first.macs)
    assert energy.break_even == pytest.approx(MAC_PJ / AC_PJ)  # the first layer costs both the same
    assert energy.ratio == pytest.approx((first.ann_pj + 3 * AC_PJ * sum(x.macs for x in others)) / energy.ann_pj)
    lines = {line.name: line for line in energy.lines}
    neurons = 3 * 36 + 4 * 9
    assert lines["neuron updates"].snn == 3 * neurons + 3 * neurons  # a current a step, a reset a spike
    assert (lines["comparisons"].ann, lines["comparisons"].snn) == (neurons, 3 * neurons)
    # once in the constant current of the first layer, else at every step; rounding adds a bias to all neurons
    assert (lines["bias"].ann, lines["bias"].snn) == (neurons + 5, 3 * 36 + 3 * neurons + 3 * 5)


class Between(nn.Module):
    """Something between the spikes of one layer and the weights of the next, which adds no spike of its own."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.between = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 1), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(F.relu(self.a(x))))


@pytest.mark.parametrize(
    ("between", "reached"),
    [
        (lambda y: F.pad(y, (1, 1, 1, 1), value=1.0), 1),  # what is filled in is no spike
        (lambda y: F.interpolate(y, scale_factor=2, mode="nearest"), 4),
        (lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"), None),  # parts of spikes: products, every step
    ],
    ids=["pad", "nearest", "bilinear"],
)
def test_spikes_count_as_often_as_they_arrive_whole(between: Callable[[Tensor], Tensor], reached: int | None) -> None:
    x = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    snn = converted(Between(between).eval(), x, T=3)
    last = measure_energy(snn, x).layers[-1]
    (fired,) = snn.run(x).spikes.values()
    assert 0 < fired.sum() < 3 * fired.numel()
    if reached is None:
        assert (last.kind, last.sops, last.snn_macs) == ("analog", 0, 3 * last.macs)
    else:
        assert (last.kind, last.snn_macs) == ("spikes", 0)
        assert last.sops * len(x) == 4 * reached * fired.sum()


class Lines(nn.Module):
    """A max-pool of a constant current, a sum of two currents and of spikes, and an affine map that padding keeps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.norm, self.d = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)
        nn.init.uniform_(self.norm.bias, 0.5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(F.max_pool2d(self.a(x), 2))
        return self.d(self.norm(F.relu(self.b(y) + self.c(y) + y)))


def test_other_operations_are_counted_by_hand() -> None:
    x = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    T, layer = 3, 3 * 3 * 3  # neurons in each of the two layers
    energy = measure_energy(converted(Lines().eval(), x, T), x)
    lines = {line.name: (line.ann, line.snn) for line in energy.lines}
    # three of four are compared away, once in a constant current; and every neuron with its threshold at every step
    assert lines["comparisons"] == (3 * layer + 2 * layer, 3 * layer + T * 2 * layer)
    assert lines["sums"] == (2 * layer, T * layer)  # spikes that are added are synapses
    # the convolutions' and the norm's; in the SNN the first once, and one at the end of every stage at every step
    assert lines["bias"] == (4 * layer + 3 * layer + 4 * 9, 4 * layer + T * (2 * layer + 4 * 9))
    everything = [AC_PJ * sum(side) for side in zip(*lines.values(), strict=True)]
    assert energy.ratio_with_all == pytest.approx((energy.snn_pj + everything[1]) / (energy.ann_pj + everything[0]))


class Late(nn.Module):
    """An output that adds up what comes late, the spikes and the linear value that came before it, and the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.image = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)
        self.trunk, self.b, self.out = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        trunk = self.trunk(a)
        late = F.relu(self.b(F.relu(trunk)))
        return self.out(late) + trunk + a + self.image(x)


def test_delay_lines_are_counted_by_hand_and_beside_the_synapses() -> None:
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    plain = converted(Late().eval(), x, T=4)
    a, b, c = (stage.name for stage in plain.stages if stage.spiking)
    snn = SpikingNetwork(plain.graph, 4, {a: 1, b: 1, c: 2})
    energy, spikes = measure_energy(snn, x), snn.run(x).spikes
    lines = {line.name: (line.ann, line.snn) for line in energy.lines}
    # spikes of the first layer and, at each of 4 steps, the 3 x 36 numbers of the trunk are there 3 steps too early;
    # the image stays the same, and is not held
    assert lines["delay lines"] == (0, 3 * int(spikes[a].sum()) / len(x) + 3 * 4 * 3 * 36)
    assert energy.spikes == sum(int(count.sum()) for count in spikes.values()) / len(x)
    synapses = AC_PJ * energy.sops + MAC_PJ * sum(layer.snn_macs for layer in energy.layers)
    assert energy.ratio == pytest.approx(synapses / energy.ann_pj)
    everything = [AC_PJ * sum(side) for side in zip(*lines.values(), strict=True)]
    assert energy.ratio_with_all == pytest.approx((synapses + everything[1]) / (energy.ann_pj + everything[0]))
    assert energy.delayed == pytest.approx(0.9 * lines["delay lines"][1] / energy.ann_pj)
    without = measure_energy(plain, x)
    assert "delay lines" not in {line.name for line in without.lines} and without.delayed == 0


def test_batches_add_up_and_evaluate_has_it() -> None:
    snn, x = converted(residual(), images(16)), images(12, seed=7)
    labels = torch.zeros(12, dtype=torch.int64)
    whole = measure_energy(snn, x)
    parts = spikecal.evaluate(snn, [(x[:5], labels[:5]), (x[5:], labels[5:])]).energy
    assert parts is not None
    assert parts.images == 12
    assert parts.sops == pytest.approx(whole.sops)
    assert parts.to_dict()["ratio"] == pytest.approx(whole.ratio)
    assert {layer["name"] for layer in whole.to_dict()["layers"]} == {layer.name for layer in whole.layers}


def test_a_network_without_weights_has_no_ratio() -> None:
    energy = Energy(T=4, images=1, layers=[], lines=[])
    assert (energy.ratio, energy.ratio_with_all, energy.break_even) == (None, None, None)
