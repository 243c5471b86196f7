"""On an accelerator: the same spikes as on a CPU, but for rounding, and nothing left behind elsewhere."""

from pathlib import Path

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual

import spikecal
from spikecal import ACP, LCP, Pipeline
from spikecal.devices import best_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(best_device().type == "cpu", reason="there is no accelerator here"),
]
SHORT = ACP.changed(spikecal.Weights, iterations=20, images=16, batch=8)


def test_spikes_are_those_of_a_cpu() -> None:
    """Weights and thresholds are powers of two or sums of few: every sum is exact in any order."""
    plain = spikecal.convert(
        dyadic(), dyadic_images(8), T=8, pipeline=Pipeline(rounding="potential"), records=False
    ).snn
    for name, parameter in plain.named_parameters():
        if name.endswith(("theta", "v_init")):
            parameter.data.fill_(0.5 if name.endswith("theta") else 0.25)
    x = dyadic_images(4, seed=2)
    expected, names = plain.run(x), [stage.name for stage in plain.stages if stage.spiking]
    found = plain.to(best_device()).run(x.to(best_device()), record=names, potentials=True)
    assert torch.equal(found.outputs.cpu(), expected.outputs)
    for name in names:
        assert torch.equal(found.spikes[name].cpu(), expected.spikes[name])
        assert torch.equal(found.trains[name].abs().sum(0).int().cpu(), expected.spikes[name])


@pytest.mark.parametrize("pipeline", [LCP, SHORT, spikecal.AUTO])
def test_a_conversion_exists_for_the_same_network(pipeline: Pipeline, tmp_path: Path) -> None:
    effort = "low" if pipeline is spikecal.AUTO else None
    result = spikecal.convert(
        residual(), images(32), T=8, pipeline=pipeline, effort=effort, device=best_device(), workdir=tmp_path / "work",
        memory=10_000,
    )  # fmt: skip
    assert {p.device.type for p in result.snn.parameters()} == {best_device().type}
    x = images(8, seed=3)
    outputs = result.snn(x.to(best_device()))
    result.save(tmp_path / "net.snn")
    torch.testing.assert_close(spikecal.load(tmp_path / "net.snn")(x), outputs.cpu(), atol=0.2, rtol=0.2)
    labels = torch.arange(8) % 5
    assert spikecal.evaluate(result.snn, (x, labels), ann=residual()).images == 8
    result.report(tmp_path / "r.html", (x, labels), ann=residual())


def test_training_and_distilling_there() -> None:
    home = best_device()
    module = spikecal.convert(residual(), images(8), T=4, pipeline=LCP, device=home).snn.trainable()
    module(images(8).to(home)).square().sum().backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
    made = spikecal.distill(residual(), 4, size=8, iterations=2, batch=4, device=home)
    assert bool(made.images.isfinite().all())
