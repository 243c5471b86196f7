"""Weights in closed form: against least squares written out, and wherever a network is run, stored or resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import images, residual
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import Bias, ClosedFormWeights, ConfigError, Pipeline, Result, TemporalBias
from spikecal.calibration import regression
from spikecal.graph.ops import Spike

RIDGE = 1e-2


def only(**settings: Any) -> Pipeline:
    return Pipeline(sweeps=((ClosedFormWeights(**settings),),))


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is solved is applied, also where it does not help."""
    monkeypatch.setattr(ClosedFormWeights, "guarded", False)


def least_squares(features: Tensor, wanted: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Changes `[F, O]` of weights and `[O]` of biases: the penalty as more rows, the bias as a column of ones."""
    n, count = features.shape
    variance = (features - features.mean(0)).square().mean()
    penalty = (n * ridge * variance).sqrt() * torch.eye(count, dtype=features.dtype)
    rows = torch.cat([F.pad(features, (0, 1), value=1.0), F.pad(penalty, (0, 1))])
    found = torch.linalg.lstsq(rows, torch.cat([wanted, wanted.new_zeros(count, wanted.shape[1])])).solution
    return found[:-1], found[-1]


def unfolded(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """`[groups, n, F]`, a row for every position of every image."""
    rows = F.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride).transpose(1, 2).flatten(0, 1)  # type: ignore[arg-type]
    return rows.unflatten(1, (conv.groups, -1)).transpose(0, 1)


def channel_rows(x: Tensor) -> Tensor:
    return x.movedim(1, -1).flatten(0, -2)


class Convolution(nn.Module):
    """A layer of neurons, and a convolution of their spikes that ends in no neuron."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 4, 3, padding=1), conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.first(x)))


CONVOLUTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "bias": False},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 3, "groups": 2, "stride": 2},
    {"kernel_size": 3, "groups": 4, "padding": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 7},  # more features than rows
]


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_a_joint_is_least_squares_with_a_ridge(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 8, **settings)
    model = Convolution(conv).double().eval().requires_grad_(False)
    x = images(20).double()
    snn = spikecal.convert(model, x, T=4, pipeline=only(ridge=RIDGE)).snn
    first, end = snn.stages[0].name, snn.stages[1].end.op
    arriving = snn.run(x).spikes[first] * snn.graph.nodes[first].op.theta.reshape(-1, 1, 1) / 4  # type: ignore[operator,union-attr]
    missing = channel_rows(model(x) - conv(arriving))
    for group, (rows, part) in enumerate(zip(unfolded(arriving, conv), missing.chunk(conv.groups, 1), strict=True)):
        change, shift = least_squares(rows, part, RIDGE)
        own = slice(group * part.shape[1], (group + 1) * part.shape[1])
        weight = conv.weight[own] + change.T.reshape(conv.weight[own].shape)
        assert torch.allclose(snn.graph.nodes["conv"].op.weight[own], weight, atol=1e-9)  # type: ignore[index]
        assert torch.allclose(end.bias[own], shift, atol=1e-9)  # type: ignore[index]


class Sum(nn.Module):
    """Two convolutions that are summed, one scaled by channel, and what reaches the sum as it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)
        self.skip = nn.Conv2d(5, 5, 1)
        self.scale = nn.Parameter(torch.rand(1, 5, 1, 1) + 0.5)

    def hidden(self, x: Tensor) -> Tensor:
        return F.relu(self.first(x))

    def current(self, x: Tensor) -> Tensor:
        return self.second(x) - (self.skip(x) + x) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.current(self.hidden(x))).mean((2, 3))


def one_sided(z: Tensor, predicted: Tensor, most: Tensor) -> Tensor:
    """The projection of a prediction onto the values that are as good as z."""
    low, high = torch.where(z > 0, z, -torch.inf), torch.where(z < most, z, torch.inf)
    low, high = torch.where(z < most, low, most), torch.where(z > 0, high, 0.0)
    return predicted.clamp(low, high)


@pytest.mark.usefixtures("unguarded")
def test_neurons_have_a_one_sided_target_that_is_taken_anew_in_every_round() -> None:
    """Written out for two summed branches; error plus penalty fall from round to round."""
    model, x, T = Sum().double().eval().requires_grad_(False), images(24).double(), 4
    objectives = []
    for rounds in (1, 2, 3, 5):
        snn = spikecal.convert(model, x, T=T, pipeline=only(ridge=RIDGE, rounds=rounds)).snn
        (name, theta), (_, most) = ((s.name, s.end.op.theta) for s in snn.stages[:2])  # type: ignore[union-attr]
        arriving = snn.run(x).spikes[name] * theta.reshape(-1, 1, 1) / T  # type: ignore[union-attr,operator]
        z, predicted = (channel_rows(model.current(value)) for value in (model.hidden(x), arriving))
        gain = model.scale.flatten()
        rows = torch.cat([unfolded(arriving, conv)[0] for conv in (model.second, model.skip)], 1)
        change, shift = torch.zeros(rows.shape[1], 5, dtype=x.dtype), torch.zeros(5, dtype=x.dtype)
        for _ in range(rounds):
            wanted = one_sided(z, predicted + rows @ change + shift, most)  # type: ignore[arg-type]
            change, shift = least_squares(rows, wanted - predicted, RIDGE)
        second, skip = change.T.split([45, 5], 1)
        expected = (
            model.second.weight + second.reshape(5, 5, 3, 3),
            model.skip.weight - (skip.T / gain).T.reshape(5, 5, 1, 1),
        )
        found = [snn.graph.nodes[node].op.weight for node in ("second", "skip")]
        assert all(torch.allclose(one, other, atol=1e-9) for one, other in zip(expected, found, strict=True))
        op = snn.stages[1].end.op
        assert torch.allclose(op.bias - most / (2 * T), shift, atol=1e-9)  # type: ignore[operator]  # rounding stays
        fitted = predicted + rows @ change + shift
        error = (one_sided(z, fitted, most) - fitted).square().sum()  # type: ignore[arg-type]
        variance = (rows - rows.mean(0)).square().mean()
        objectives.append(float(error + len(rows) * RIDGE * variance * change.square().sum()))
    assert objectives == sorted(objectives, reverse=True) and objectives[-1] < 0.999 * objectives[0]


@pytest.mark.usefixtures("unguarded")
def test_an_output_that_is_an_activation_is_read_without_a_bias_and_fitted_so() -> None:
    class Features(Sum):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.second(self.hidden(x)))

    model, x = Features().eval().requires_grad_(False), images(64)
    before, after = (spikecal.convert(model, x, T=4, pipeline=pipeline).snn for pipeline in (Pipeline(), only()))
    assert (model(x) - after(x)).square().sum() < (model(x) - before(x)).square().sum()
    op = after.stages[1].end.op
    assert torch.equal(op.bias, op.theta / 8)  # type: ignore[arg-type,operator]


class Unfit(nn.Module):
    """Weights that are not a plain term of the sum at their stage's end: before a pool or weights, or broadcast."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.inner, self.outer = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.pooled, self.wide = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.up, self.beside = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.outer(self.inner(x)) + self.beside(x))
        x = F.relu(F.avg_pool2d(self.pooled(x), 2))
        return F.relu(self.up(x) + self.wide(F.adaptive_avg_pool2d(x, 1)))


@pytest.mark.usefixtures("unguarded")
def test_weights_that_cannot_be_regressed_are_left_and_named() -> None:
    model = Unfit().eval().requires_grad_(False)
    result = spikecal.convert(model, images(32), T=4, pipeline=only(), joints="analog")
    notes = [" ".join(record.notes) for record in result.records]
    assert [note.partition(":")[0] for note in notes] == ["", "inner", "pooled", "up, wide"]
    for name, module in model.named_children():
        same = torch.equal(result.snn.graph.nodes[name].op.weight, module.weight)  # type: ignore[arg-type]
        assert same == (name not in ("outer", "beside")), name  # what reaches the stem is exact: nothing to gain


class Plain(nn.Module):
    """Stages of one sum each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.grouped, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.grouped(F.relu(self.body(x))) + x)
        return self.fc(F.relu(self.last(x)).mean((2, 3)))


def plain() -> Plain:
    return Plain().eval().requires_grad_(False)


@pytest.mark.parametrize("T", [3, 8])
def test_it_lowers_the_simulated_error_of_the_stages(T: int) -> None:
    records = spikecal.convert(plain(), images(64), T=T, pipeline=only()).records
    assert len(records) == 5
    for (_, before), (_, after) in (record.errors for record in records[1:]):  # what reaches the first is exact
        assert after < before


def test_positions_are_sampled_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows give nearly the same weights, the same for the same seed."""

    def change(seed: int = 0) -> Tensor:
        snn = spikecal.convert(plain(), images(64), T=4, pipeline=only(), seed=seed).snn
        return snn.graph.nodes["body"].op.tensors()["weight"] - plain().body.weight

    whole = change()
    monkeypatch.setattr(regression, "ROWS", 3000)
    part = change()
    assert torch.equal(change(), part)
    assert 0 < (part - whole).norm() < 0.5 * whole.norm()
    assert not torch.equal(change(seed=1), part)


def everything() -> Pipeline:
    first = ClosedFormWeights(images=24, ridge=0.01, rounds=2)
    return Pipeline(rounding="split", kappa=0.25, sweeps=((first, Bias(images=8), TemporalBias(images=8)), (first,)))


def saved(result: Result, folder: Path) -> bytes:
    result.save(folder / "n.snn")
    return (folder / "n.snn").read_bytes()


def mixed() -> Sequence[Tensor]:
    return [image for size in (8, 12, 8, 10) for image in images(6, size, seed=size)]


@pytest.mark.parametrize("given", [images(24), mixed()], ids=["one size", "several sizes"])
def test_files_working_directories_and_memory(given: Any, tmp_path: Path) -> None:
    def converted(**settings: Any) -> Result:
        return spikecal.convert(residual(), given, T=[2, 4], pipeline=everything(), latency="2x", **settings)

    result = converted()
    expected = saved(result, tmp_path)
    back = spikecal.load(tmp_path / "n.snn", T=4)
    x = images(3, 12)
    assert torch.equal(back(x), result.networks[4](x))
    assert saved(converted(workdir=tmp_path / "work"), tmp_path) == expected
    for step in list((tmp_path / "work" / "T4").rglob("*.step"))[-3:]:
        step.unlink()
    assert saved(converted(memory=1), tmp_path) == expected


def test_large_images_run_a_few_steps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def weight() -> Tensor:
        snn = spikecal.convert(residual(), images(12), T=4, pipeline=only(), micro_batch=4).snn
        return snn.graph.nodes["body"].op.tensors()["weight"]

    whole = weight()
    monkeypatch.setattr("spikecal.snn.execute.STEP_FLOATS", 4 * 8 * 64)
    assert torch.allclose(weight(), whole, atol=1e-5)


def test_a_stage_that_nothing_arrives_at_is_left_as_it_is() -> None:
    model = residual()
    with torch.no_grad():
        model.bn.bias.fill_(-100)
    result = spikecal.convert(model, images(16), T=2, pipeline=only())
    assert bool(torch.isfinite(result.snn(images(4))).all())
    assert torch.equal(result.snn.graph.nodes["body"].op.weight, model.body.weight)  # type: ignore[arg-type]


def test_clipped_activations_count_as_such() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Conv2d(4, 4, 3), nn.ReLU6(), nn.Flatten(), nn.Linear(64, 3)
    )
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=1.0)
    result = spikecal.convert(model.eval().requires_grad_(False), images(64), T=4, pipeline=only(images=64))
    assert any(isinstance(s.end.op, Spike) and s.end.op.clip == 6 for s in result.snn.stages)
    before, after = result.records[1].errors
    assert after[1] < before[1]


def test_settings() -> None:
    assert Pipeline.from_dict(everything().to_dict()) == everything()
    assert everything().learns and not Pipeline(sweeps=((Bias(),),)).learns
    for wrong in ({"ridge": 0.0}, {"ridge": -1.0}, {"rounds": 0}, {"images": 0}, {"ridge": float("nan")}):
        with pytest.raises(ConfigError, match="closed-form weights"):
            ClosedFormWeights(**wrong)  # type: ignore[arg-type]
