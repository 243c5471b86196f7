"""Networks whose linear values spike: calibrated, run every way, stored, counted and shown like any other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.calls import Run, fails
from cli.conftest import run  # noqa: F401
from hostile.subjects import made, written
from networks import dyadic, dyadic_images, images
from torch import Tensor, nn

import spikecal
from spikecal import (
    Bias,
    ClosedFormWeights,
    ConfigError,
    FileError,
    FineTune,
    Pipeline,
    Potential,
    ReadOut,
    RefineThreshold,
    SpikingNetwork,
    TemporalBias,
    Weights,
)
from spikecal.analysis.energy import measure_energy
from spikecal.analysis.errors import measure_errors
from spikecal.calibration.histogram import Histogram
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.graph.joints import analog_readers, in_time
from spikecal.graph.ops import SignedSpike, Spike, frozen
from spikecal.neurons import SignedIntegrateAndFire
from spikecal.phases import closing_reach
from spikecal.pipeline import Phase
from spikecal.report.content import build
from spikecal.report.measure import look
from spikecal.report.source import from_file
from spikecal.snn.file import Reader
from spikecal.tasks.summary import measure

LCP = Pipeline(sweeps=((Bias(images=32),),))
T = 16


class Inverted(nn.Module):
    """MobileNetV2's block: its value is linear."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, 4 * inputs, 1), nn.ReLU6(),
            nn.Conv2d(4 * inputs, 4 * inputs, 3, stride, 1, groups=4 * inputs), nn.ReLU6(),
            nn.Conv2d(4 * inputs, outputs, 1),
        )  # fmt: skip
        self.same = inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.same else y  # type: ignore[no-any-return]


def mobile() -> nn.Module:
    """Five linear values: three at joints, two inside stages."""
    torch.manual_seed(0)
    blocks = [Inverted(*shape) for shape in ((8, 8, 1), (8, 8, 1), (8, 12, 2), (12, 12, 1), (12, 12, 1))]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6(), *blocks, nn.Conv2d(12, 24, 1), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in")
                nn.init.uniform_(module.bias, -0.1, 0.1)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False)


def signed_stages(snn: SpikingNetwork) -> list[str]:
    return [stage.name for stage in snn.stages if stage.kind == "signed neurons"]


def relative(snn: SpikingNetwork, model: nn.Module, x: Tensor) -> float:
    wanted = model(x)
    return float((snn(x) - wanted).norm() / (wanted - wanted.mean(0)).norm())


@pytest.fixture(scope="module")
def results() -> dict[str, spikecal.Result]:
    kinds: Any = ("analog", "signed", "merge")
    return {joints: spikecal.convert(mobile(), images(64), T=T, pipeline=LCP, joints=joints) for joints in kinds}


def test_every_linear_value_has_neurons_thresholds_and_records(results: dict[str, spikecal.Result]) -> None:
    result = results["signed"]
    names = signed_stages(result.snn)
    assert len(names) == 5 and analog_readers(result.snn.graph) == []
    records = {record.stage: record for record in result.records}
    for name in names:
        op, record = result.snn.graph.nodes[name].op, records[name]
        assert isinstance(op, SignedSpike) and isinstance(op.neuron, SignedIntegrateAndFire)
        assert op.theta is not None and len(op.theta) > 1 and record.kind == "signed neurons"
        assert op.v_init is None and [label for label, _ in record.errors] == ["before", "bias"]
        assert record.rate is not None and 0 < record.rate < 1 and record.errors[-1][1] < 0.3


def test_thresholds_are_the_best_for_magnitudes() -> None:
    """By brute force: the theta in the grid with the least squared error of rounding both signs."""
    model, x = mobile(), images(64)
    result = spikecal.convert(model, x, T=4, pipeline=Pipeline(), joints="signed", records=False)
    name = signed_stages(result.snn)[0]
    values = dict(result.snn.graph.walk(x))[name].double()
    op = result.snn.graph.nodes[name].op
    assert isinstance(op, Spike) and op.theta is not None
    for c in range(3):
        z = values[:, c].flatten()
        grid = z.abs().max() * torch.arange(1, 101, dtype=torch.float64) / 100
        levels = (z[:, None] * 4 / grid + 0.5).floor().clamp(-4, 4)
        errors = (z[:, None] - grid / 4 * levels).square().sum(0)
        chosen = (op.theta[c].double() / z.abs().max() * 100).round().long() - 1
        assert errors[chosen] <= 1.02 * errors.min()


def test_energy_is_that_of_additions_by_magnitude(results: dict[str, spikecal.Result]) -> None:
    x = images(8, seed=5)
    found = {joints: measure_energy(result.snn, x) for joints, result in results.items()}
    assert all(energy.ratio is not None for energy in found.values())
    assert found["signed"].ratio < 0.2 * found["analog"].ratio  # type: ignore[operator]
    assert "analog" not in {layer.kind for layer in found["signed"].layers}
    assert found["signed"].macs == found["analog"].macs
    # one expansion by hand: every spike of its input, of either sign, meets each of its 4 x 8 weights
    graph = results["signed"].snn.graph
    reader = next(n for n in graph.nodes.values() if n.name == "3.layers.0")
    spikes = results["signed"].snn.run(x).spikes[reader.inputs[0]]
    (layer,) = (layer for layer in found["signed"].layers if layer.name == reader.name)
    assert layer.sops == pytest.approx(32 * float(spikes.sum()) / len(x))


def test_what_is_counted_is_what_is_placed(results: dict[str, spikecal.Result]) -> None:
    for result in results.values():
        graph = result.snn.graph
        kinds = in_time(graph)
        for layer in measure_energy(result.snn, images(2)).layers:
            if layer.kind != "skip":
                assert kinds[graph.nodes[layer.name].inputs[0]] == layer.kind


def test_accuracy_is_near_that_of_currents(results: dict[str, spikecal.Result]) -> None:
    x = images(64, seed=7)
    errors = {joints: relative(result.snn, mobile(), x) for joints, result in results.items()}
    assert errors["signed"] < 2 * errors["analog"] and errors["merge"] == errors["analog"]


PHASES: dict[str, tuple[Phase, ...]] = {
    "potentials": ((Potential(images=32),),),
    "weights": ((Weights(images=32, iterations=20, batch=16),),),
    "closed form": ((ClosedFormWeights(images=64), Bias(images=32)),),
    "temporal bias": ((TemporalBias(images=32),),),
    "thresholds": ((RefineThreshold(images=32), Bias(images=32)),),
    "fine-tuned": (FineTune(images=32, iterations=3, batch=16), (Bias(images=32),), ReadOut(images=32)),
}


@pytest.mark.parametrize("phases", PHASES.values(), ids=PHASES)
def test_all_kinds_of_calibration_work_on_them(phases: tuple[Phase, ...]) -> None:
    model, x = mobile(), images(64)
    result = spikecal.convert(model, x, T=8, pipeline=Pipeline(sweeps=phases), joints="signed")
    bare = spikecal.convert(model, x, T=8, pipeline=Pipeline(), joints="signed")
    before = {record.stage: record.errors[-1][1] for record in bare.records}
    after = {record.stage: record.errors[-1][1] for record in result.records}
    names = signed_stages(result.snn)
    assert sum(after[name] for name in names) < 1.02 * sum(before[name] for name in names)
    changed = [name for name in names if not same(result.snn, bare.snn, name)]
    assert changed == names
    stepped = [result.snn.step(x[:3]) for _ in range(8)]
    torch.testing.assert_close(stepped[-1], result.snn(x[:3]), rtol=1e-4, atol=1e-4)


def same(one: SpikingNetwork, two: SpikingNetwork, name: str) -> bool:
    """Whether the neurons and weights of a stage are alike."""
    stages = [next(stage for stage in snn.stages if stage.name == name) for snn in (one, two)]
    tensors = [{(n.name, k): v for n in stage.nodes for k, v in n.op.tensors().items()} for stage in stages]
    return tensors[0].keys() == tensors[1].keys() and all(
        torch.equal(value, tensors[1][key]) for key, value in tensors[0].items()
    )


def test_closed_form_weights_fit_both_signs() -> None:
    """A linear stage whose neurons clip nothing: the fit is plain ridge regression, negative values included."""
    model, x = mobile(), images(64)
    made = {}
    for name, sweep in {"before": (), "after": (ClosedFormWeights(images=64, ridge=1e-4),)}.items():
        made[name] = spikecal.convert(model, x, T=8, pipeline=Pipeline(sweeps=(sweep,)), joints="signed")
    stage = signed_stages(made["after"].snn)[-1]
    values = dict(made["after"].snn.graph.walk(x))[stage]
    errors = {name: next(r.errors[-1][1] for r in result.records if r.stage == stage) for name, result in made.items()}
    assert bool((values < 0).any()) and errors["after"] < 0.9 * errors["before"]


# -- running -----------------------------------------------------------------------------------------------------------


def exact(waits: bool) -> SpikingNetwork:
    """The dyadic network with signed neurons at its trunk, whose dead zone closes, all thresholds a power of two."""
    graph = spikecal.convert(dyadic(), dyadic_images(8), T=8, pipeline=Pipeline(rounding="potential"), joints="signed")
    snn = graph.snn
    for node in snn.graph.nodes.values():
        if isinstance(node.op, Spike):
            assert node.op.theta is not None
            node.op.theta.data = torch.full_like(node.op.theta, 0.5)
            if node.op.v_init is not None:
                node.op.v_init.data = torch.full_like(node.op.v_init, 0.25)
            if isinstance(node.op, SignedSpike):
                node.op.reach = frozen(closing_reach(node.op.theta, 8))
    names = [stage.name for stage in snn.stages if stage.spiking]
    return SpikingNetwork(snn.graph, 8, {name: 1 + i % 3 for i, name in enumerate(names)} if waits else {})


@pytest.mark.parametrize("waits", [False, True])
def test_stepwise_is_layerwise_and_units_change_nothing_to_the_bit(waits: bool) -> None:
    snn, x = exact(waits), dyadic_images(4, seed=5)
    (name,) = signed_stages(snn)
    whole = snn.run(x)
    assert bool((snn.run(x).spikes[name] > 0).any())
    found = [snn.step(x) for _ in range(snn.latency)]
    start = snn.latency - snn.T
    assert found[:start] == [None] * start and torch.equal(torch.stack(found[start:]), whole.outputs)
    unit = snn.normalized()
    assert all(
        torch.equal(node.op.theta, torch.ones_like(node.op.theta))
        for node in unit.graph.nodes.values()
        if isinstance(node.op, Spike) and node.op.theta is not None
    )
    again = unit.run(x)
    assert torch.equal(again.outputs, whole.outputs)
    assert all(torch.equal(again.spikes[layer], whole.spikes[layer]) for layer in whole.spikes)


def test_waits_are_placed_at_them_too() -> None:
    result = spikecal.convert(mobile(), images(64), T=8, latency="+8", pipeline=LCP, joints="signed", records=False)
    placement = result.origin.placements[8]
    tried = {name for trial in placement["tried"] for name in trial["waits"]}
    assert tried & set(signed_stages(result.snn))
    for name in signed_stages(result.snn):
        op = result.snn.graph.nodes[name].op
        assert isinstance(op, SignedSpike) and (op.reach is not None) == (name in result.snn.waits)
    x = images(3)
    *_, last = (result.snn.step(x) for _ in range(result.snn.latency))
    torch.testing.assert_close(last, result.snn(x), rtol=1e-4, atol=1e-4)


def test_potentials_trains_and_gradients() -> None:
    """Where nothing fires the potential is within the reach of the step; training runs the network itself."""
    snn, x = exact(False), dyadic_images(3, seed=6)
    (name,) = signed_stages(snn)
    seen = snn.run(x, record=[name], potentials=True)
    train = seen.trains[name]
    assert set(train.unique().tolist()) == {-1, 0, 1} and torch.equal(train.abs().sum(0).int(), seen.spikes[name])
    for t, (levels, potentials) in enumerate(zip(train, seen.potentials[name], strict=True), 1):
        silent, reach = potentials[levels == 0], 0.5 * (1 - t / 16)
        assert float(silent.min()) >= -reach and float(silent.max()) < reach
    trained = snn.trainable()
    found = trained(x)
    assert torch.equal(found.detach(), snn(x))
    found.square().sum().backward()
    op = trained.snn.graph.nodes[name].op
    assert isinstance(op, SignedSpike) and op.theta is not None and op.theta.grad is not None
    assert bool(op.theta.grad.isfinite().all()) and bool(op.theta.grad.any())


def test_errors_split_into_their_parts(results: dict[str, spikecal.Result]) -> None:
    """Against the model: clipping is at both ends, and what flooring would be is rounding."""
    snn, x = results["signed"].snn, images(16, seed=3)
    errors = measure_errors(mobile(), snn, x)
    for name in signed_stages(snn):
        parts = errors.layer(name).parts
        whole = sum(parts[part].mean for part in ("input", "flooring", "clipping", "unevenness", "weights"))
        torch.testing.assert_close(whole, parts["total"].mean, rtol=1e-5, atol=1e-6)
        assert float(parts["clipping"].squared.sum()) < float(parts["total"].squared.sum())


@pytest.mark.parametrize("waits", [False, True])
def test_onnx_has_the_dead_zone(waits: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    snn, x = exact(waits), dyadic_images(3)
    assert any("reach" in node.op.tensors() for node in snn.graph.nodes.values())
    (verdict,) = snn.export(tmp_path / "net.onnx", x).verify(x)
    assert verdict.differing == verdict.traced.built == 0 and verdict.spikes > 50


# -- files, the command line, the report -------------------------------------------------------------------------------


def test_files_have_a_format_of_their_own(results: dict[str, spikecal.Result], tmp_path: Path) -> None:
    x = images(4)
    for joints, result in results.items():
        path = tmp_path / f"{joints}.snn"
        result.save(path)
        reader = Reader(path)
        assert reader.spec["format"] == (4 if joints == "signed" else 2)
        assert reader.spec["info"].get("joints", "analog") == joints
        loaded = spikecal.load(path)
        assert torch.equal(loaded(x), result.snn(x)) and loaded.origin.joints == joints
        assert measure_errors(mobile(), loaded, images(4)).layers  # the model is arranged as the file says


def test_files_without_a_reach_fire_at_half_a_threshold(tmp_path: Path) -> None:
    """As in all files written before there was one."""
    x = dyadic_images(4)
    before = exact(True)
    (name,) = signed_stages(before)
    op = before.graph.nodes[name].op
    assert isinstance(op, SignedSpike) and op.reach is not None
    closing, op.reach = before.run(x).spikes[name], None
    before.save(tmp_path / "net.snn")
    after = spikecal.load(tmp_path / "net.snn")
    assert "reach" not in after.graph.nodes[name].op.tensors()
    op.reach = frozen(torch.full((8, 1), 0.5))
    half, found = before.run(x, record=[name]), after.run(x, record=[name])
    assert torch.equal(half.trains[name], found.trains[name]) and not torch.equal(closing, found.spikes[name])


@pytest.mark.parametrize(
    ("reach", "match"),
    [
        (torch.full((7, 1), 0.5), "does not have a reach for 8 steps"),
        (torch.full((8, 1), 0.25), "at least half a threshold"),
        (torch.full((8, 5), 0.5), "different numbers of channels"),
        (torch.full((8, 1), torch.nan), "NaN or infinite"),
    ],
)
def test_invalid_reaches_in_files(reach: Tensor, match: str, tmp_path: Path) -> None:
    snn = exact(False)
    (name,) = signed_stages(snn)
    snn.save(tmp_path / "net.snn")
    parts = made(tmp_path / "net.snn")
    parts.tensors[parts.spec["parameters"]["8"][f"{name}:reach"]] = reach
    written(tmp_path / "net.snn", parts)
    with pytest.raises(FileError, match=match):
        spikecal.load(tmp_path / "net.snn")


def test_invalid_joints_in_files(results: dict[str, spikecal.Result], tmp_path: Path) -> None:
    snn = results["signed"].snn
    snn.origin = snn.origin.changed(joints="some")
    try:
        snn.save(tmp_path / "net.snn")
    finally:
        snn.origin = snn.origin.changed(joints="signed")
    with pytest.raises(FileError, match="joints of a kind"):
        spikecal.load(tmp_path / "net.snn")


def test_histograms_are_of_magnitudes(results: dict[str, spikecal.Result]) -> None:
    result = results["signed"]
    name = signed_stages(result.snn)[0]
    values = dict(result.snn.graph.walk(images(64)))[name]
    expected = Histogram.of(values.abs(), 1)
    torch.testing.assert_close(result.histograms[name].maximum, expected.maximum)
    assert int(result.histograms[name].counts.sum()) == values.numel()


def test_a_dry_run_says_what_each_option_does() -> None:
    said = str(spikecal.check(mobile(), images(2)))
    assert "5 linear values that weighted layers read" in said and "joints merge: merges none, and 5 then" in said


def test_they_are_signed_unless_told_otherwise() -> None:
    snn = spikecal.convert(mobile(), images(4), T=2, pipeline="baseline", records=False).snn
    assert snn.origin.joints == "signed" and len(signed_stages(snn)) == 5 and analog_readers(snn.graph) == []


def test_convert_refuses_other_joints() -> None:
    with pytest.raises(ConfigError, match="joints must be one of analog, signed, merge, not 'spiking'"):
        spikecal.convert(mobile(), images(4), joints="spiking")  # type: ignore[arg-type]


NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

def make():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1), nn.Conv2d(8, 2, 1),
              nn.Conv2d(2, 32, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), Card(name="small", size=(8, 8), mean=(0.5,) * 3, std=(0.25,) * 3)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    import numpy as np

    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (40, 8, 8, 3), generator=generator, dtype=torch.uint8)
    np.savez(tmp_path / "noise.npz", images=pixels.numpy(), labels=np.arange(40) % 4)
    return tmp_path / "noise.npz"


def test_the_command_line_knows_them(run: Run, tmp_path: Path, data: Path) -> None:  # noqa: F811
    (tmp_path / "net.py").write_text(NETWORK)
    code, out, _ = run("check", "net.py:make", "-T", 4, "--pipeline", "lcp")
    assert code == 0 and "3 linear values that weighted layers read, 0 of them at joints: 2, 3, 4\n" in out
    assert "joints signed, the default: spikes of 3 layers of signed neurons; joints analog: currents," in out
    assert "joints merge: merges 2 into one with the layer before, and 1 then still reads" in out
    facts = json.loads(run("check", "net.py:make", "-T", 4, "--pipeline", "lcp", "--json")[1])["linear_values"]
    assert facts["names"] == ["2", "3", "4"] and (facts["merged"], facts["left"]) == (2, 1) and 0 < facts["share"] < 1

    made = {}
    for joints in ("analog", "signed", "merge"):
        arguments = "convert", "net.py:make", "--data", f"npz:{data}", "-T", 4, "--pipeline", "lcp", "--json"
        option = () if joints == "signed" else ("--joints", joints)  # it is the default
        code, out, err = run(*arguments, *option, "-o", f"{joints}.snn")
        assert code == 0, err
        made[joints] = json.loads(out)
        assert made[joints]["joints"] == joints
        code, out, err = run("evaluate", f"{joints}.snn", "--data", f"npz:{data}", "--model", "net.py:make")
        assert code == 0, err
    kinds = [[record["kind"] for record in made[joints]["records"]] for joints in made]
    assert kinds[1].count("signed neurons") == 3 and "signed neurons" not in kinds[0] + kinds[2]
    fails(run("convert", "net.py:make", "--joints", "spiking", "-o", "x.snn"), "spiking")


def test_the_report_warns_of_currents_and_says_what_to_do(tmp_path: Path, results: dict[str, spikecal.Result]) -> None:
    pixels = (128 + 64 * images(40, seed=9)).clamp(0, 255).to(torch.uint8)
    card = Card(name="mobile", size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    tested = Data(name="noise", images=pixels, labels=torch.arange(40) % 4)
    warned = {}
    for joints, result in results.items():
        result.save(tmp_path / "net.snn")
        source, model = replace(from_file(tmp_path / "net.snn"), card=card), mobile()
        summary, _ = measure([source.networks[T]], model, tested, card, "test")
        content = build([(source, look(source, model, tested, card, summary))])
        found = [finding for finding in content["findings"] if "--joints signed" in finding["todo"]]
        warned[joints] = found
        kinds = {row["kind"] for row in content["networks"][0]["layers"]}
        assert ("signed neurons" in kinds) == (joints == "signed")
    assert not warned["signed"] and warned["analog"][0]["level"] == "warning" and warned["analog"][0]["count"] == 5
