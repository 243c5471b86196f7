"""Integer networks: the export equals the integer run, spike by spike."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from exporting import NETWORKS, Sum, Trunk, images, spiking, with_signed

from spikecal import ConfigError, ConversionError, DataError
from spikecal.export.accumulate import run_integers
from spikecal.export.export import make_netlist
from spikecal.export.integers import quantised
from spikecal.export.netlist import Conv, Delay, Linear
from spikecal.export.simulate import run_netlist
from spikecal.export.verify import differing


@pytest.mark.parametrize("per", ["channel", "layer"])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_integer_run_is_what_is_exported(name: str, bits: int, per: str) -> None:
    x = images(3)
    netlist = make_netlist(spiking(NETWORKS[name](), x, wait=lambda place: place % 2), x)
    made = quantised(netlist, bits, per, images(8, seed=5))  # type: ignore[arg-type]
    run = run_integers(made, x)
    assert run.saturated == 0
    for dtype in (torch.float, torch.double):
        found = run_netlist(made.netlist.to(dtype), made.image(x).to(dtype))
        wrong, spikes = differing(found.levels, run.trains.levels)
        assert wrong == 0 and spikes > 500
        torch.testing.assert_close(found.outputs.double(), run.trains.outputs)


@pytest.mark.parametrize("wait", [0, 1])
def test_signed_neurons_in_whole_numbers(wait: int) -> None:
    """Their dead zone closes by fractions of a threshold: the integer run and floats agree on who is within it."""
    x = images(3)
    netlist = make_netlist(with_signed(spiking(NETWORKS["residual"](), x, wait=lambda place: wait * place)), x)
    closing = (1 - torch.arange(1, netlist.latency + 1).double()[:, None] / (2 * netlist.latency)).expand(-1, 4)
    signed = [node for node in netlist.neurons() if node.neuron.alphabet[0] < 0]
    netlist = netlist.replaced({node.name: [replace(node, reach=closing)] for node in signed})
    made = quantised(netlist, 8, "channel", images(8, seed=5))
    run = run_integers(made, x)
    for dtype in (torch.float, torch.double):
        found = run_netlist(made.netlist.to(dtype), made.image(x).to(dtype))
        assert differing(found.levels, run.trains.levels)[0] == 0
    assert run.saturated == 0 and [int(of.min()) for of in run.trains.levels.values()] == [-1, -1, 0, 0, 0]


def test_delay_lines_in_whole_numbers() -> None:
    """Spikes that are late are spikes."""
    x = images(3)
    netlist = make_netlist(spiking(Sum(), x, wait=lambda place: place), x)
    assert any(isinstance(node, Delay) for node in netlist.nodes.values())
    made = quantised(netlist, 8)
    found, run = run_netlist(made.netlist.to(torch.float), made.image(x)), run_integers(made, x)
    wrong, spikes = differing(found.levels, run.trains.levels)
    assert wrong == 0 and spikes > 200


def test_numbers_are_whole_and_of_few_bits() -> None:
    x = images(2)
    netlist = make_netlist(spiking(NETWORKS["residual"](), x, wait=lambda place: 1), x)
    for per in ("channel", "layer"):
        made = quantised(netlist, 5, per, x)  # type: ignore[arg-type]
        assert all(float(unit.log2().frac().abs().max()) == 0 for unit in made.units.values())
        assert all(len(step) == 1 for step in (*made.units.values(), *made.steps.values())) == (per == "layer")
        assert made.image(x).abs().max() <= 127 and torch.equal(made.image(x), made.image(x).round())
        for node in made.netlist.neurons():
            unit = made.units[node.name].expand(node.shape[0])
            for source in (made.netlist.nodes[name] for name in node.inputs):
                if isinstance(source, Conv | Linear):
                    step = made.steps[source.name].expand(len(source.weight))
                    rows = source.weight.flatten(1)
                    whole = rows / step[:, None]
                    assert torch.equal(whole, whole.round()) and whole.abs().max() <= 15
                    shifts = torch.log2(step * unit)
                    assert torch.equal(shifts, shifts.round()) and shifts.min() >= 0


def test_calibrated_biases_and_scales_per_channel() -> None:
    """At 4 bits, recalibrated biases bring outputs closer to the network's, and so do finer scales."""
    x, more = images(16), images(32, seed=9)
    errors: dict[tuple[str, bool], list[float]] = {}
    for network in NETWORKS.values():
        snn = spiking(network(), x)
        for tensor in snn.parameters():  # numbers that do not fit the grid
            tensor.mul_(1.1)
        netlist = make_netlist(snn, x)
        exact = run_netlist(netlist, x.double()).outputs.mean(0)
        for per, calibrated in product(("channel", "layer"), (False, True)):
            made = quantised(netlist, 4, per, more if calibrated else None)  # type: ignore[arg-type]
            error = float((run_integers(made, x).trains.outputs.mean(0) - exact).norm())
            errors.setdefault((per, calibrated), []).append(error)
    for per in ("channel", "layer"):
        assert all(after < before for before, after in zip(errors[per, False], errors[per, True], strict=True))
        assert sum(errors[per, True]) < 0.8 * sum(errors[per, False])
    assert all(fine < coarse for fine, coarse in zip(errors["channel", True], errors["layer", True], strict=True))


def test_saturation_is_counted() -> None:
    x = images(2)
    made = quantised(make_netlist(spiking(NETWORKS["plain"](), x), x), 8)
    assert run_integers(made, x, width=32).saturated == 0
    assert run_integers(made, x, width=8).saturated > 100


def test_an_exported_integer_network(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x = images(3)
    made = spiking(NETWORKS["residual"](), x, wait=lambda place: 1).export(tmp_path / "net.onnx", x, bits=8)
    (verdict,) = made.verify(x)
    assert verdict.differing == verdict.traced.built == verdict.traced.rounding == 0 and verdict.spikes > 500
    inputs = made.inputs(x)
    assert torch.equal(inputs, inputs.round())


def test_what_is_refused(tmp_path: Path) -> None:
    x = images(1)
    with pytest.raises(ConfigError, match="weights must have 4 to 16 bits, not 3"):
        spiking(NETWORKS["plain"](), x).export(tmp_path / "net.onnx", x, bits=3)
    with pytest.raises(DataError, match="images must be a tensor .*, not 'onnx': give the format as to="):
        spiking(NETWORKS["plain"](), x).export(tmp_path / "net", "onnx")  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match="a max-pool has no integer form"):
        spiking(Trunk(), x).export(tmp_path / "net.onnx", x, bits=8)
