"""Fine-tuning: each iteration against plain autograd, and what a conversion makes of it."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import report_of
from networks import dyadic, dyadic_images, images, residual
from torch import Tensor, nn
from torch.nn import functional as F
from waiting import calibrated, context_of, layers, waiting

import spikecal
from spikecal import Bias, ConfigError, FineTune, Pipeline, Potential, phases
from spikecal.calibration.augment import moved
from spikecal.calibration.divergence import ann_outputs, are_scores, divergence, variance
from spikecal.calibration.quantised import Quantised, learnable, output_values, quantised
from spikecal.calibration.whole import Whole
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Spike
from spikecal.phases import Context, on_whole_network, set_threshold
from spikecal.pipeline import Rounding

T = 4
QUICK = FineTune(images=16, iterations=20, batch=8, lr=2e-3)
OWN = FineTune(images=16, iterations=40, batch=16, lr=2e-3, shift=0, flip=False)


class Small(nn.Module):
    """A skip and a fold of BN: the biases are those of convolutions."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 4)
        self.to(dtype).eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.fc(F.relu(self.second(x) + x).mean((2, 3)))


class Outputs(nn.Module):
    """Two inputs; an activation with a clip, read again, and a map as outputs; a trunk that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.left, self.right = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.trunk, self.up = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, padding=1)
        self.map = nn.Conv2d(12, 2, 1)
        self.double().eval().requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        seen = F.relu6(4 * (self.left(x) + self.right(y)))
        trunk = self.trunk(F.max_pool2d(seen, 2))
        read = torch.cat([F.relu(trunk), F.relu(self.up(trunk))], 1)
        return seen, {"map": self.map(read)}


def rounding_by(context: Context, steps: int = T) -> Any:
    return partial(set_threshold, T=steps, pipeline=context.pipeline)


def tuned(
    model: nn.Module, inputs: list[tuple[Tensor, ...]], pipeline: Pipeline, wait: int
) -> tuple[Any, Graph, Graph]:
    """A network after its first phase, the quantised network it is then, and the one it was."""
    context = context_of(model, inputs, pipeline)
    network = waiting(context, T, wait)
    rounding = rounding_by(context)
    before = quantised(network.graph, T, learnable(network.graph, T, rounding), rounding)
    phase = pipeline.sweeps[0]
    assert isinstance(phase, FineTune)
    return network, on_whole_network(context, network, phase, 0, 0.0, context.ann), before


def distance(ann: Graph, graph: Graph, *inputs: Tensor) -> float:
    (target,) = ann_outputs(ann, [inputs])
    variances = {} if are_scores(target) else {name: variance(name, [target]) for name in target}
    with torch.no_grad():
        return float(divergence(target, output_values(graph, *inputs), variances).mean())


def singly(*inputs: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(x.split(1) for x in inputs), strict=True))


# -- one iteration -------------------------------------------------------------------------------------------------


def rounded(z: Tensor, theta: Tensor) -> Tensor:
    """`theta/T clip(floor(T z/theta + 1/2), 0, T)`, the floor a line for autograd."""
    theta = theta.reshape(1, -1, 1, 1)
    u = T * z / theta + 0.5
    kept = (u >= 0) & (u < T + 1)
    line = torch.where(kept, u, torch.zeros_like(u))
    return theta / T * (line + (u.floor().clamp(0, T) - line).detach())


def test_iterations_are_those_of_plain_autograd_and_adam() -> None:
    model, x = Small(), images(12).double()
    phase = FineTune(images=12, iterations=3, batch=12, lr=0.02, temperature=1.5, shift=0, flip=False)
    context = context_of(model, singly(x), Pipeline())
    network = waiting(context, T, 0)
    first, second = (network.graph.nodes[name].op.theta for name in layers(network.graph))
    plain = {name: value.clone().requires_grad_() for name, value in model.named_parameters()}
    logs = [theta.detach().log().requires_grad_() for theta in (first, second)]  # type: ignore[union-attr,operator]
    optimiser = torch.optim.Adam([*plain.values(), *logs], 0.02)
    target = (model(x) / 1.5).softmax(1)
    for step in range(3):
        optimiser.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / 3))
        hidden = rounded(F.conv2d(x, plain["first.weight"], plain["first.bias"], padding=1), logs[0].exp())
        sums = F.conv2d(hidden, plain["second.weight"], plain["second.bias"], padding=1) + hidden
        scores = F.linear(rounded(sums, logs[1].exp()).mean((2, 3)), plain["fc.weight"], plain["fc.bias"]) / 1.5
        optimiser.zero_grad()
        F.kl_div(scores.log_softmax(1), target, reduction="batchmean").backward()
        optimiser.step()

    whole = Whole(context.ann, context.ann, network, context.images, 0, rounding_by(context))
    state = phase.start(whole)
    for number in range(3):
        state = phase.advance(whole, state, number)
    found = [state[f"value/{name}:theta"] for name in layers(network.graph)]
    for name, value in plain.items():
        layer, _, kind = name.partition(".")
        torch.testing.assert_close(state[f"value/{layer}:{kind}"], value.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found, [log.detach() for log in logs], rtol=1e-9, atol=1e-11)
    assert not torch.allclose(state["value/first:weight"], model.first.weight, atol=1e-3)


def test_rounds_draw_from_the_seed_and_their_number_alone() -> None:
    context = context_of(Small(), singly(images(12).double()), Pipeline())
    whole = Whole(context.ann, context.ann, waiting(context, T, 0), context.images, 3, rounding_by(context))

    def drawn(number: int, seed: int = 3) -> Tensor:
        return torch.cat([part[0] for part, *_ in QUICK._batch(replace(whole, seed=seed), number)])

    assert torch.equal(drawn(5), drawn(5))
    assert not torch.equal(drawn(5), drawn(6)) and not torch.equal(drawn(5), drawn(5, seed=4))


def test_large_images_are_learned_from_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(Small(), singly(images(12).double()), Pipeline())
    whole = Whole(context.ann, context.ann, waiting(context, T, 0), context.images, 0, rounding_by(context))
    start = QUICK.start(whole)
    once = QUICK.advance(whole, start, 0)
    monkeypatch.setattr("spikecal.calibration.finetune.LEARNED_FLOATS", 6000)
    parts = [share for _, share, _ in QUICK._batch(whole, 0)]
    assert len(parts) > 2 and sum(parts) == pytest.approx(1)
    found = QUICK.advance(whole, start, 0)
    for key in once:
        torch.testing.assert_close(found[key], once[key], rtol=1e-6, atol=1e-10)


# -- the network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["bias", "potential", "floor"])
def test_it_lowers_the_divergence_and_waiting_spikes_equal_the_quantised_network(rounding: Rounding) -> None:
    x, model = images(16).double(), residual().double()
    model.fc.weight *= 30  # scores that differ
    network, aim, before = tuned(model, singly(x), Pipeline(rounding=rounding, sweeps=(OWN,)), T - 1)
    ann = context_of(model, singly(x), Pipeline()).ann
    assert distance(ann, aim, x) < 0.7 * distance(ann, before, x)
    torch.testing.assert_close(network.output_values(x), output_values(aim, x))


def test_outputs_that_are_not_scores_are_learned_by_their_squares() -> None:
    x, y = images(16).double(), images(16, seed=2).double()
    model = Outputs()
    network, aim, before = tuned(model, singly(x, y), Pipeline(sweeps=(OWN,)), T - 1)
    ann = context_of(model, singly(x, y), Pipeline()).ann
    assert distance(ann, aim, x, y) < 0.85 * distance(ann, before, x, y)
    torch.testing.assert_close(network.output_values(x, y), output_values(aim, x, y))
    for name in layers(network.graph):
        op = network.graph.nodes[name].op
        assert isinstance(op, Spike) and op.theta is not None
        assert op.clip is None or op.theta.max() <= op.clip


def test_the_sweep_after_it_aims_at_the_quantised_activations() -> None:
    x = images(16).double()
    pipeline = Pipeline(sweeps=(QUICK, (Bias(images=16),)))
    network, records = calibrated(residual().double(), x, pipeline, T, T - 1)
    # waiting for all of its input, a network is its quantised one: there is nothing left to calibrate
    assert {record.sweep for record in records} == {1} and len(records) == len(network.stages)
    assert all(error < 1e-12 for record in records for _, error in record.errors)
    _, missed = calibrated(residual().double(), x, Pipeline(sweeps=pipeline.sweeps[1:]), T, T - 1)
    assert all(record.errors[0][1] > 1e-4 for record in missed)


def test_neurons_of_more_levels() -> None:
    from snn.test_own_neuron import Burst

    x = dyadic_images(16).double()
    pipeline = Pipeline(neuron=Burst(), sweeps=(QUICK,))
    network, aim, before = tuned(dyadic().double(), singly(x), pipeline, T - 1)
    torch.testing.assert_close(network.output_values(x), output_values(aim, x))
    assert any(int(levels.max()) > T for levels in network.run(x).spikes.values())
    assert before.nodes.keys() == aim.nodes.keys()


def test_thresholds_stay_positive() -> None:
    wild = replace(QUICK, lr=3.0, iterations=8)
    snn = spikecal.convert(Small(torch.float32), images(16), T=2, pipeline=Pipeline(sweeps=(wild,)), records=False).snn
    for name in layers(snn.graph):
        theta = snn.graph.nodes[name].op.theta
        assert isinstance(theta, Tensor) and (theta > 0).all() and theta.isfinite().all()


@pytest.mark.parametrize("calibrator", [Bias(images=8), Potential(images=8, per="channel")])
def test_what_earlier_sweeps_gave_the_neurons_is_kept(calibrator: Any) -> None:
    x = images(8)
    still = replace(QUICK, lr=1e-12, iterations=1)
    plain, after = (
        calibrated(residual(), x, Pipeline(sweeps=sweeps), T, T - 1)[0]
        for sweeps in (((calibrator,),), ((calibrator,), still))
    )
    for name in layers(plain.graph):
        old, new = (network.graph.nodes[name].op for network in (plain, after))
        assert isinstance(old, Spike) and isinstance(new, Spike)
        charges = [op.cells(op.ndim).own_charge(T) for op in (old, new)]
        torch.testing.assert_close(*charges)


# -- the conversion ------------------------------------------------------------------------------------------------

PIPELINE = Pipeline(sweeps=(replace(QUICK, iterations=4), (Bias(images=8),)))


def test_each_T_starts_from_the_model_and_all_go_into_one_file(tmp_path: Path) -> None:
    model, x = residual(), images(16)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    both = spikecal.convert(model, x, T=[2, 4], pipeline=PIPELINE)
    alone = spikecal.convert(model, x, T=4, pipeline=PIPELINE).snn.state_dict()
    assert all(torch.equal(value, alone[name]) for name, value in both.at(4).state_dict().items())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(isinstance(module, Quantised) for module in both.snn.modules())
    both.save(tmp_path / "net.snn")
    for steps in (2, 4):
        again = spikecal.load(tmp_path / "net.snn", T=steps)
        assert torch.equal(again(x), both.at(steps)(x))
    assert Pipeline.from_dict(again.origin.pipelines[4]) == PIPELINE and PIPELINE.learns
    assert b"Quantised" not in (tmp_path / "net.snn").read_bytes()


def test_images_of_several_sizes_and_a_head_that_stays() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    whole = nn.Sequential(model, nn.Flatten(), nn.Linear(4, 3), nn.Sigmoid()).eval()
    pool = [*images(8).unbind(0), *images(8, size=12).unbind(0)]
    snn = spikecal.convert(whole, pool, T=T, pipeline=PIPELINE, keep=["3"]).snn
    for some in (images(3), images(3, size=12)):
        assert snn(some).shape == (3, 3) and (snn(some) - whole(some)).abs().max() < 0.2


def test_it_waits_within_a_latency() -> None:
    snn = spikecal.convert(residual(), images(32), T=T, latency=8, pipeline=PIPELINE.with_images(32)).snn
    assert snn.latency <= 8 and "placements" in vars(snn.origin)


def test_killed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    found = report_of(Path(__file__).with_name("killing_finetune.py"), tmp_path)
    assert found["saved"] == [3, 7]  # rounds that were on disk when the process died
    assert found["finished"] and found["resumed"] == found["uninterrupted"]


def test_settings_come_back_from_plain_data_and_toml(tmp_path: Path) -> None:
    assert Pipeline.from_dict(PIPELINE.to_dict()) == PIPELINE
    file = tmp_path / "p.toml"
    file.write_text('sweeps = [{ kind = "finetune", iterations = 9, flip = false }, [{ kind = "bias" }]]\n')
    assert Pipeline.from_toml(file).sweeps == (FineTune(iterations=9, flip=False), (Bias(),))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"images": 0}, "at least one image"),
        ({"iterations": 0}, "at least one image and one round"),
        ({"batch": 0}, "a batch of at least one image"),
        ({"lr": 0.0}, "rate and temperature"),
        ({"temperature": -1.0}, "rate and temperature"),
        ({"shift": 0.6}, "half of their side"),
        ({"flip": 1}, "flip cannot be 1"),
        ({"batch": "many"}, "batch cannot be 'many'"),
    ],
)
def test_nonsensical_settings_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FineTune(**bad)


def test_the_estimate_counts_forward_backward_and_the_teacher() -> None:
    phase = FineTune(iterations=10, batch=8)
    assert phases.image_passes(phase, 16, T) == 10 * 8 * 4
    assert phases.image_passes(phase, 3, T) == 10 * 3 * 4


# -- moved images --------------------------------------------------------------------------------------------------


def test_images_move_by_a_share_of_their_side_and_all_inputs_alike() -> None:
    columns = torch.arange(32.0).expand(200, 1, 32, 32)
    found = moved(columns, 0.125, False, 7)[:, 0, 0]
    middle = found[:, 16] - 16
    assert set(middle.tolist()) == set(range(-4, 5)) and torch.equal(found[:, 17] - found[:, 16], torch.ones(200))
    assert set((moved(columns, 0, True, 7)[:, 0, 0, 0]).tolist()) == {0, 31}
    x = torch.randn(8, 3, 16, 16)
    both = moved(torch.cat([x, x], 1), 0.25, True, 3)
    assert torch.equal(both[:, :3], moved(x, 0.25, True, 3)) and torch.equal(both[:, 3:], both[:, :3])
    flat = torch.randn(8, 5)
    assert moved(flat, 0.25, True, 3) is flat and moved(x, 0, False, 3) is x
