"""Spike trains, potentials, frames over time and hooks: what can be seen of a run."""

from contextlib import suppress

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual
from paper_neuron import if_step
from torch import Tensor, nn

import spikecal
from spikecal import LCP, ConfigError, DataError, Pipeline, SpikingNetwork
from spikecal.graph.ops import Spike
from spikecal.snn import execute, recording

X = dyadic_images(6, seed=3)


def converted(wait: int = 0, T: int = 8) -> SpikingNetwork:
    """With thresholds that are powers of two, so that every sum is exact; the first layers wait."""
    snn = spikecal.convert(dyadic(), dyadic_images(8), T=T, pipeline=Pipeline(rounding="potential"), records=False).snn
    for stage in snn.stages:
        if isinstance(op := stage.end.op, Spike):
            assert op.theta is not None
            op.theta.data.fill_(0.5)
            if stage.kind == "neurons":  # signed ones round without it
                assert op.v_init is not None
                op.v_init.data.fill_(0.25)
    return SpikingNetwork(snn.graph, T, dict.fromkeys([s.name for s in snn.stages if s.spiking][:2], wait))


def simple(T: int = 8) -> tuple[SpikingNetwork, nn.Conv2d]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    return spikecal.convert(model, images(8, 6), T=T, pipeline=LCP).snn, model[0]  # type: ignore[return-value]


def test_trains_and_potentials_are_those_of_the_equations() -> None:
    snn, conv = simple()
    x = images(5, 6, seed=2)
    run = snn.run(x, record=["1"], potentials=True)
    assert repr(run) == f"<spikecal.Run: {int(run.spikes['1'].sum()):,} spikes; layers: 1; trains of 1>"
    op = snn.graph.nodes["1"].op
    theta, bias = (getattr(op, name).reshape(1, -1, 1, 1) for name in ("theta", "bias"))
    with torch.no_grad():
        current, v = conv(x) + bias, torch.zeros(5, 4, 4, 4)
    for t in range(snn.T):
        spikes, v = if_step(current, v, theta)
        assert torch.equal(run.trains["1"][t], (spikes > 0).to(torch.int8))
        torch.testing.assert_close(run.potentials["1"][t], v, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wait", [0, 2])
def test_trains_add_up_to_the_counts_in_every_layer(wait: int) -> None:
    snn = converted(wait)
    names = [stage.name for stage in snn.stages if stage.spiking]
    run = snn.run(X, record=names, potentials=True)
    plain = snn.run(X)
    assert list(run.trains) == names and torch.equal(run.outputs, plain.outputs)
    for name, train in run.trains.items():
        assert train.shape == (snn.T, len(X), *run.spikes[name].shape[1:]) and train.dtype == torch.int8
        assert torch.equal(train.abs().sum(0), run.spikes[name]) and torch.equal(run.spikes[name], plain.spikes[name])
        assert run.potentials[name].shape == train.shape
    assert plain.trains == {} and plain.potentials == {}


def test_large_images_are_recorded_a_few_steps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    snn = converted(2)
    name = next(stage.name for stage in snn.stages if stage.spiking)
    whole = snn.run(X, record=[name], potentials=True)
    largest: list[int] = []
    advance = execute.emit

    def watched(stage: object, arriving: Tensor, steps: int, *rest: object) -> object:
        largest.append(steps)
        return advance(stage, arriving, steps, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(execute, "emit", watched)
    monkeypatch.setattr(execute, "STEP_FLOATS", 3 * execute.largest_value(snn._shapes_for((X,))))
    monkeypatch.setattr(execute, "CALL_FLOATS", 1)
    parts = snn.run(X, record=[name], potentials=True)
    assert max(largest) == 3
    assert torch.equal(parts.outputs, whole.outputs) and torch.equal(parts.trains[name], whole.trains[name])
    assert torch.equal(parts.potentials[name], whole.potentials[name])
    assert all(torch.equal(parts.spikes[n], whole.spikes[n]) for n in whole.spikes)


def test_impossible_recordings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"record must be a list of layers of neurons, as in run.spikes, not True"):
        simple()[0].run(images(2, 6), record=True)  # type: ignore[arg-type]
    snn = converted()
    with pytest.raises(DataError, match="no layer of neurons 'relu9': choose from relu"):
        snn.run(X, record=["relu9"])
    with pytest.raises(DataError, match="name some in record"):
        snn.run(X, potentials=True)
    monkeypatch.setattr(recording, "free_memory", lambda device: 1000)
    with pytest.raises(DataError, match=r"takes 12.3 kB, but only 1.0 kB of memory is free: record fewer"):
        snn.run(X, record=["relu"])


@pytest.mark.parametrize("wait", [0, 3])
def test_frames_over_time_are_what_stepping_through_them_gives(wait: int) -> None:
    snn = converted(wait)
    frames = torch.stack([dyadic_images(4, seed=s) for s in range(snn.T)])
    snn.reset()
    stepped: list[Tensor] = []
    for t in range(snn.latency):
        out = snn.step(frames[min(t, snn.T - 1)])
        stepped += [] if out is None else [out]
    run = snn.run(frames, over_time=True)
    assert torch.equal(run.outputs, torch.stack(stepped))
    assert torch.equal(snn(frames, over_time=True), stepped[-1])
    assert not torch.equal(snn(frames[0]), stepped[-1])
    still = frames[:1].expand_as(frames)
    assert torch.equal(snn.run(still, over_time=True).outputs, snn.run(frames[0]).outputs)


def test_frames_are_one_for_each_step() -> None:
    with pytest.raises(DataError, match=r"for frames over time, \[T, N, ...\], give over_time=True"):
        simple()[0](torch.rand(8, 2, 3, 6, 6))
    snn = converted()
    with pytest.raises(DataError, match=r"must be 8 frames \[T, N, ...\], one per step, not \[7, 4, 2, 8, 8\]"):
        snn.run(torch.zeros(7, 4, 2, 8, 8), over_time=True)


def test_hooks_are_called_or_refused() -> None:
    snn = spikecal.convert(residual(), images(8), T=4, pipeline=LCP).snn
    counted: dict[str, int] = {}  # what hooks see, in the first dimension
    for name, module in snn.ops.items():
        with suppress(ConfigError):
            module.register_forward_hook(lambda op, given, found, n=name: counted.update({n: counted[n] + len(found)}))
            counted[name] = 0
    snn(images(2))
    # two images; what changes over time at all four steps, which sums have in a dimension of their own
    assert set(counted.values()) == {2, 4, 8}
    with pytest.raises(ConfigError, match=r"would never be called.*record="):
        snn.ops["/relu"].register_full_backward_hook(print)
    seen: list[object] = []
    snn.register_forward_hook(lambda *_: seen.append(1))
    snn(images(2))
    assert seen == [1]


def test_inputs_that_need_gradients_give_outputs_that_have_none() -> None:
    assert not converted()(X.clone().requires_grad_()).requires_grad
