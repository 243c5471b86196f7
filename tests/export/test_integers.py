"""Networks in whole numbers: what is exported is the integer run itself, to the spike."""

from pathlib import Path

import pytest
import torch
from exporting import NETWORKS, Trunk, images, spiking

from spikecal import ConfigError, ConversionError, DataError
from spikecal.export.export import make_netlist
from spikecal.export.integers import quantised, run_integers
from spikecal.export.netlist import Conv, Linear
from spikecal.export.planes import frames
from spikecal.export.simulate import simulate
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
        inputs = frames(made.image(x).to(dtype), netlist.T, netlist.latency, 0)
        found = simulate(made.netlist.to(dtype), inputs)
        wrong, spikes = differing(found.levels, run.trains.levels)
        assert wrong == 0 and spikes > 500
        torch.testing.assert_close(found.outputs.double(), run.trains.outputs)


def test_numbers_are_whole_and_of_few_bits() -> None:
    x = images(2)
    netlist = make_netlist(spiking(NETWORKS["residual"](), x, wait=lambda place: 1), x)
    for per in ("channel", "layer"):
        made = quantised(netlist, 5, per, x)  # type: ignore[arg-type]
        assert all(float(unit.log2().frac().abs().max()) == 0 for unit in made.units.values())
        assert all(len(set(unit.tolist())) == 1 for unit in made.units.values()) == (per == "layer")
        assert made.image(x).abs().max() <= 127 and torch.equal(made.image(x), made.image(x).round())
        for node in made.netlist.neurons():
            unit = made.units[node.name].expand(node.shape[0])
            for source in (made.netlist.nodes[name] for name in node.inputs):
                if isinstance(source, Conv | Linear):
                    whole = source.weight * unit.reshape(-1, *(1,) * (source.weight.ndim - 1))
                    assert torch.equal(whole, whole.round()) and whole.abs().max() <= 15


def test_biases_make_up_for_rounding() -> None:
    """At 4 bits the outputs are nearer to the network's with calibrated biases than without."""
    x, more = images(16), images(32, seed=9)
    snn = spiking(NETWORKS["residual"](), x)
    for tensor in snn.parameters():  # numbers that do not fit the grid
        tensor.mul_(1.1)
    netlist = make_netlist(snn, x)
    exact = simulate(netlist, frames(x, netlist.T, netlist.latency, 0)).outputs.mean(0)
    errors = []
    for calibration in (None, more):
        made = quantised(netlist, 4, "channel", calibration)
        errors.append(float((run_integers(made, x).trains.outputs.mean(0) - exact).norm()))
    assert errors[1] < 0.9 * errors[0]


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
    assert verdict.built == verdict.single == verdict.rounding == 0 and verdict.spikes > 500
    inputs = made.inputs(x)
    assert torch.equal(inputs, inputs.round())


def test_what_is_refused(tmp_path: Path) -> None:
    x = images(1)
    with pytest.raises(ConfigError, match="weights have 4 to 16 bits, not 3"):
        spiking(NETWORKS["plain"](), x).export(tmp_path / "net.onnx", x, bits=3)
    with pytest.raises(DataError, match="images are a tensor .*, not 'onnx'; formats are named by to="):
        spiking(NETWORKS["plain"](), x).export(tmp_path / "net", "onnx")  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match="a max-pool has no whole-number form"):
        spiking(Trunk(), x).export(tmp_path / "net.onnx", x, bits=8)
