"""A netlist behaves like the network, spike by spike; what it cannot express is refused by name."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from exporting import NETWORKS, T, Trunk, images, spiking
from hypothesis import HealthCheck, given, settings
from test_random_networks import PIPELINES, Drawn, drawings
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import ConversionError, SpikingNetwork
from spikecal.export.export import make_netlist
from spikecal.export.netlist import Clock, Conv, Netlist
from spikecal.export.planes import with_planes
from spikecal.export.reference import trains
from spikecal.export.simulate import Trains, run_netlist, simulate
from spikecal.export.verify import differing
from spikecal.graph.ops import Spike, frozen

WAITS: dict[str, Callable[[int], int]] = {
    "none": lambda place: 0, "all": lambda place: 2, "some": lambda place: place % 3, "most": lambda place: T - 1,
}  # fmt: skip


def run(netlist: Netlist, x: Tensor) -> Trains:
    return run_netlist(netlist.to(x.dtype), x)


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_spikes(name: str, wait: str) -> None:
    x = images(4)
    snn = spiking(NETWORKS[name](), x, wait=WAITS[wait])
    netlist, expected = make_netlist(snn, x), trains(snn, x)
    assert all(float(levels.sum()) > 0 for levels in expected.levels.values())
    flat = with_planes(netlist)
    assert list(netlist.clocks()) and not list(flat.clocks())
    inputs = snn.export_inputs(x)
    assert inputs.shape == (snn.latency, len(x), 2 + snn.latency, *x.shape[2:])
    for found in (run(netlist, x), simulate(flat.to(x.dtype), inputs)):
        assert differing(found.levels, expected.levels)[0] == 0
        torch.testing.assert_close(found.outputs, expected.outputs)
    assert torch.allclose(snn.export_outputs(expected.outputs), snn(x))


@pytest.mark.parametrize("wait", [lambda place: 2 * (place == 0), lambda place: place])
def test_max_pools_and_linear_trunks(wait: Callable[[int], int]) -> None:
    """Where inputs of these do not all begin at the same step, there are delay lines."""
    x = images(4)
    snn = spiking(Trunk(), x, wait=wait)
    expected = trains(snn, x)
    found = run(make_netlist(snn, x), x)
    assert differing(found.levels, expected.levels)[0] == 0
    torch.testing.assert_close(found.outputs, expected.outputs)


def test_every_threshold_is_1_and_nothing_is_left_of_the_scales() -> None:
    netlist = make_netlist(spiking(NETWORKS["residual"](), images(1)), images(1))
    kinds = Counter(type(node).__name__ for node in netlist.nodes.values())
    # six convolutions, a diagonal for the identity skip, and one for the skip that drops positions and adds channels
    assert kinds["Conv"] == 8 and kinds["Neurons"] == kinds["Clock"] == 5 and kinds["Linear"] == 1
    diagonal = netlist.nodes["relu_3.from.relu"]
    assert isinstance(diagonal, Conv) and diagonal.groups == 4
    dense = diagonal.dense().weight[:, :, 0, 0]
    assert torch.equal(dense, torch.diag(dense.diagonal()))


def test_constants_are_biases_where_nothing_waits() -> None:
    """Then a clock has the initial potential alone; without one there is no clock, and there are no planes."""
    x = images(2)
    snn = spiking(NETWORKS["plain"](), x)
    for op in (node.op for node in snn.graph.nodes.values()):
        if isinstance(op, Spike):
            op.step_bias = None
    netlist = make_netlist(snn, x)
    assert all(not clock.own[1:].any() for clock in netlist.clocks())
    assert snn.export_inputs(x).shape[2] == 2 + T
    for op in (node.op for node in snn.graph.nodes.values()):
        if isinstance(op, Spike):
            op.v_init = None
    assert make_netlist(snn, x).planes == 0
    assert snn.export_inputs(x).shape == (T, 2, 2, 8, 8)
    assert differing(run(make_netlist(snn, x), x).levels, trains(snn, x).levels)[0] == 0


def test_gates_are_the_smallest_powers_of_two() -> None:
    """Two neurons that receive at most 3 per step wait two steps: 8 holds back 6, 4 would not."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.Conv2d(1, 2, 1, bias=False), nn.ReLU())
    model = nn.Sequential(*model, nn.Flatten(), nn.Linear(8, 2))
    x = torch.ones(1, 1, 2, 2)
    snn = spiking(model, x, wait=lambda place: 2 * place)
    for node in snn.graph.nodes.values():
        if isinstance(node.op, Spike):
            node.op.theta, node.op.v_init = frozen(torch.ones_like(node.op.theta)), None
            node.op.bias = node.op.step_bias = None
    second = snn.graph.nodes["2"].op
    second.weight.copy_(torch.tensor([3.0, 0.25]).reshape(2, 1, 1, 1))  # type: ignore[union-attr,operator]
    clock = make_netlist(snn, x).nodes["3.clock"]
    assert isinstance(clock, Clock)
    assert clock.gate[:, 0].tolist() == [-8, 0, 8, 0, 0, 0, 0, 0]  # the window of the last layer ends with the run
    assert clock.gate[:, 1].tolist() == [0] * 8  # half a threshold arrives: nothing to hold back
    assert not clock.own.any()


def test_an_output_that_is_an_activation() -> None:
    x = images(3)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.ReLU6())
    snn = spiking(model, x, wait=lambda place: 1)
    for readout in ("current", "spikes"):
        snn.readout = readout  # type: ignore[assignment]
        found = run(make_netlist(snn, x), x)
        torch.testing.assert_close(snn.export_outputs(found.outputs), snn(x))


def test_a_warm_up_is_not_read() -> None:
    x = images(3)
    snn = spiking(NETWORKS["plain"](), x, wait=lambda place: 1)
    snn.warm_up = 2
    netlist = make_netlist(snn, x)
    assert netlist.first == snn.latency - T + 2
    torch.testing.assert_close(snn.export_outputs(run(netlist, x).outputs), snn(x))


def test_random_networks() -> None:
    """In double precision no spike is on the edge: it is the same network, or refused by the name of a layer."""
    tried: Counter[tuple[str, bool]] = Counter()

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(drawings())
    def check(drawn: tuple[Drawn, Tensor, Counter[str]]) -> None:
        model, x, _ = drawn
        snn = spikecal.convert(model, x, T=T, pipeline=PIPELINES["channel"]).snn
        names = [stage.name for stage in snn.stages if stage.spiking]
        for waits in ({}, dict(zip(names, (place % 3 for place in range(len(names))), strict=True))):
            late = SpikingNetwork(snn.graph.clone(), T, waits).double()
            try:
                netlist = make_netlist(late, x[:2].double())
            except ConversionError as error:
                tried["refused" if error.layer in late.graph.nodes else "by no name", bool(waits)] += 1
                continue
            tried["built", bool(waits)] += 1
            expected, found = trains(late, x[:2].double()), run(netlist, x[:2].double())
            assert differing(found.levels, expected.levels)[0] == 0
            torch.testing.assert_close(found.outputs, expected.outputs)

    check()
    assert not tried["by no name", False] + tried["by no name", True]
    assert tried["built", False] >= 4 and tried["built", True] >= 2


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.conv(x))
        return x.mean((2, 3)), x.sum((2, 3))


def test_what_is_refused() -> None:
    x = images(2)
    with pytest.raises(ConversionError, match="2 outputs"):
        make_netlist(spiking(Two(), x), x)
    snn = spiking(NETWORKS["plain"](), x)
    op = snn.graph.nodes["body.1"].op
    assert isinstance(op, Spike)
    op.v_init = frozen(torch.zeros(4, 8, 8))
    with pytest.raises(ConversionError, match=r'body.1: an initial potential for each neuron.*per="channel"'):
        make_netlist(snn, x)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2))
    with pytest.raises(ConversionError, match="ConvTranspose"):
        make_netlist(spiking(model, x), x)
