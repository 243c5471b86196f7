"""What fits a chip, and what does not."""

import pytest
from exporting import NETWORKS, Sum, Trunk, images, spiking, with_signed

from spikecal import ConfigError
from spikecal.export.chips import CHIPS, Fit, chip_called, fits
from spikecal.export.export import make_netlist


def problems(name: str, chip: str, wait: int = 0) -> dict[str, tuple[str, ...]]:
    model = Trunk() if name == "trunk" else NETWORKS[name]()
    found = fits(make_netlist(spiking(model, images(1), wait=lambda place: wait), images(1)), CHIPS[chip])
    return {fit.layer: fit.problems for fit in found}


def test_what_a_layer_takes() -> None:
    found = fits(make_netlist(spiking(NETWORKS["plain"](), images(1)), images(1)), CHIPS["generic"])
    by_layer = {fit.layer: fit for fit in found}
    assert by_layer["body.1"].neurons == 4 * 8 * 8 and by_layer["body.1"].fan_in == 2 * 9
    assert by_layer["body.3"].fan_in == 2 * 9  # two groups
    assert by_layer["head.2"] == Fit("head.2", 8, by_layer["head.2"].weights, 72, 1, ())
    assert by_layer["all"].neurons == 4 * 64 + 8 * 9 + 8
    assert all(not fit.problems for fit in found)


def test_what_is_in_the_way() -> None:
    speck = problems("plain", "speck")
    assert "it reads an image, but the chip takes events" in speck["body.1"]
    assert "initial potentials, temporal biases or waits" in speck["body.3"]
    assert speck["output"][0] == "it is read as numbers, but the chip sends events"
    assert problems("plain", "loihi2", wait=2)["body.3"] == ()
    trunk = problems("trunk", "generic")
    assert any("a max-pool" in each for of in trunk.values() for each in of)
    assert any("its input is a current, not spikes" in each for of in trunk.values() for each in of)


def test_delays_and_signed_neurons() -> None:
    """A chip that holds spikes back, and fires -1, takes networks that others do not."""
    x = images(1)
    late = make_netlist(spiking(Sum(), x, wait=lambda place: place), x)
    signed = make_netlist(with_signed(spiking(NETWORKS["residual"](), x)), x)
    found = {
        name: [problem for net in (late, signed) for fit in fits(net, chip) for problem in fit.problems]
        for name, chip in CHIPS.items()
    }
    assert found["loihi2"] == []
    assert "steps that it is late: 1 of 0" in found["generic"]
    assert "signed integrate-and-fire neurons, which loihi2 has" in found["generic"]
    trunk = [problem for of in problems("trunk", "loihi2").values() for problem in of]
    assert "its input is a current, not spikes: convert with --joints signed" in trunk


def test_every_figure_has_a_source() -> None:
    figures = ("cores", "layers", "neurons", "neurons_per_core", "bytes_per_core", "channels", "side", "kernel")
    figures += ("strides", "padding", "pools", "targets", "delays", "signed")
    for chip in CHIPS.values():
        sourced = dict(chip.sources)
        assert all(not getattr(chip, name) or name in sourced for name in figures)
    with pytest.raises(
        ConfigError, match="there is no profile of 'truenorth': choose from generic, loihi2, speck, spinnaker2"
    ):
        chip_called("truenorth")
