"""Layerwise, stepwise and normalized runs of one network give the same spikes."""

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual
from torch import Tensor, nn

import spikecal
from spikecal import MAXACT, Pipeline, SpikingNetwork
from spikecal.graph.ops import Spike
from spikecal.neurons import Cells, IntegrateAndFire


def dyadic_network(T: int = 16, rounding: str = "potential") -> SpikingNetwork:
    """A converted network whose thresholds are powers of two, so that nothing is ever rounded."""
    snn = spikecal.convert(dyadic(), dyadic_images(8), T=T, pipeline=Pipeline(rounding=rounding)).snn  # type: ignore[arg-type]
    for i, stage in enumerate(s for s in snn.stages if s.spiking):
        op = stage.end.op
        assert isinstance(op, Spike) and op.theta is not None
        op.theta.data = 2.0 ** (torch.arange(op.theta.numel()) % 3 - 1 + i % 2)
        if op.v_init is not None:
            op.v_init.data = op.theta.data / 2
        if op.bias is not None:
            op.bias.data = op.theta.data / 64
    return snn


def stepwise(snn: SpikingNetwork, x: Tensor) -> Tensor:
    snn.reset()
    return torch.stack([snn.step(x) for _ in range(snn.T)])


@pytest.mark.parametrize("rounding", ["floor", "bias", "potential"])
def test_layerwise_is_stepwise_is_normalized_exactly_on_dyadic_weights(rounding: str) -> None:
    snn, x = dyadic_network(rounding=rounding), dyadic_images(5, seed=2)
    run = snn.run(x)
    assert sum(int(s.sum()) for s in run.spikes.values()) > 100
    assert torch.equal(stepwise(snn, x), run.outputs)
    unit = snn.normalized().run(x)
    assert run.spikes.keys() == unit.spikes.keys()
    for name in run.spikes:
        assert torch.equal(run.spikes[name], unit.spikes[name])
    assert torch.equal(run.outputs, unit.outputs)


def test_normalized_has_thresholds_of_one_and_binary_spikes() -> None:
    unit = dyadic_network().normalized()
    for node in unit.graph.nodes.values():
        if isinstance(node.op, Spike):
            assert (node.op.theta == 1).all()


def test_normalized_says_where_it_comes_from_and_how_it_is_read() -> None:
    snn = dyadic_network()
    snn.readout = "spikes"
    assert snn.origin.micro_batches.keys() == {16}
    assert snn.normalized().origin == snn.origin
    assert snn.normalized().readout == "spikes"


def test_steps_of_another_shape_need_a_reset() -> None:
    snn, x = dyadic_network(), dyadic_images(4)
    first = snn.step(x[:2])
    with pytest.raises(spikecal.DataError, match=r"call reset\(\) first"):
        snn.step(x)
    snn.reset()
    assert torch.equal(snn.step(x)[:2], first)


def test_real_weights_flip_at_most_one_spike_in_ten_thousand() -> None:
    model, x = residual(), images(32, 16)
    snn = spikecal.convert(model, x, T=16).snn
    run, unit = snn.run(x), snn.normalized().run(x)
    slots = sum(s.numel() for s in run.spikes.values()) * snn.T
    assert slots > 500_000
    moved = sum(int((run.spikes[n] - unit.spikes[n]).abs().sum()) for n in run.spikes)
    assert moved <= slots / 1e4
    snn.reset()
    for _ in range(snn.T):
        last = snn.step(x)
    assert torch.allclose(last, run.outputs[-1], atol=0.02 * float(run.outputs.abs().max()))


def test_call_is_the_last_step_of_run_and_has_the_models_structure() -> None:
    model, x = residual(), images(6)
    snn = spikecal.convert(model, x, T=8).snn
    assert torch.allclose(snn(x), snn.run(x).outputs[-1], atol=1e-6)
    assert snn(x).shape == model(x).shape
    assert snn.run(x).outputs.shape == (8, 6, 5)


def test_cutting_a_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = dyadic_network(), dyadic_images(7)
    whole = snn.run(x)
    monkeypatch.setattr("spikecal.snn.execute.CALL_FLOATS", 1)
    assert snn.images_per_call(x) == 1
    single = snn.run(x)
    assert torch.equal(whole.outputs, single.outputs)
    assert all(torch.equal(whole.spikes[n], single.spikes[n]) for n in whole.spikes)


def test_max_pool_of_spikes_passes_one_spike_or_none_and_ends_at_the_pool_of_the_counts() -> None:
    from spikecal.graph.ops import MaxPool

    pool = MaxPool(kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), of="spikes")
    theta = torch.tensor([0.3, 0.7, 1.1])[None, :, None, None]
    current = torch.rand(20, 2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    state = {"v": torch.zeros(2, 3, 6, 6)}
    spikes = torch.stack([theta * fires for fires in IntegrateAndFire().advance(current, state, Cells(theta), 20)])
    out = pool.over_time([spikes], 20, [], None)
    assert torch.isin(out, torch.cat([torch.zeros(1), theta.flatten()])).all()
    counts = (spikes != 0).sum(0).float()
    assert torch.equal((out != 0).sum(0).float(), pool(counts))
    state = {}
    one_by_one = torch.cat([pool.over_time([spikes[t : t + 1]], 1, [], state) for t in range(20)])
    assert torch.equal(one_by_one, out)


def test_max_pool_of_a_current_sums_to_the_pool_of_the_sum() -> None:
    from spikecal.graph.ops import MaxPool

    pool = MaxPool(kernel=(2,), stride=(2,), padding=(0,), dilation=(1,))
    current = torch.randint(-8, 9, (9, 2, 3, 6), generator=torch.Generator().manual_seed(0)) / 8
    assert torch.equal(pool.over_time([current], 9, [], None).sum(0), pool(current.sum(0)))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        low = self.a(x).relu()
        return {"low": low, "high": self.b(low)}


def test_an_output_that_is_an_activation_is_the_activation_of_the_mean_current() -> None:
    torch.manual_seed(0)
    model, x = TwoOutputs().eval().requires_grad_(False), images(4)
    snn = spikecal.convert(model, x, T=4).snn
    found, expected = snn(x), model(x)
    # the first layer's current is the ANN's own, so nothing is lost there, at any T
    assert torch.allclose(found["low"], expected["low"], atol=1e-5)
    assert found["high"].shape == expected["high"].shape
    unit = snn.normalized()(x)
    assert torch.allclose(unit["low"], expected["low"], atol=1e-5)
    steps = snn.run(x).outputs
    assert steps["low"].shape == (4, *expected["low"].shape)


def test_state_dict_moves_a_network_into_another() -> None:
    x = images(4)
    first, second = (spikecal.convert(residual(seed), x, T=8).snn for seed in (0, 1))
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


def test_double_precision_by_to() -> None:
    snn, x = dyadic_network(), dyadic_images(3)
    assert torch.equal(snn.double()(x.double()).float(), dyadic_network()(x))


def test_potential_per_neuron_refuses_another_input_size() -> None:
    snn = spikecal.convert(residual(), images(8), T=4, pipeline="pc").snn
    with pytest.raises(spikecal.DataError, match="per neuron"):
        snn(images(2, 12))
    assert spikecal.convert(residual(), images(8), T=4, pipeline=MAXACT).snn(images(2, 12)).shape == (2, 5)
