"""Conversion as a user meets it: accepted images, errors and their messages, and records."""

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, images, residual
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spikecal
from spikecal import ACP, ConfigError, ConversionError, DataError, Pipeline
from spikecal.graph.ops import Spike
from spikecal.neurons import clip_round


def same(a: spikecal.SpikingNetwork, b: spikecal.SpikingNetwork) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_seeded_runs_repeat_to_the_bit_and_other_seeds_do_not() -> None:
    model, x = residual(), images(40)
    pipeline = Pipeline(sweeps=((spikecal.Potential(images=8), spikecal.Weights(iterations=5, lr=1e-3, images=20)),))
    runs = [spikecal.convert(model, x, T=4, pipeline=pipeline, seed=seed).snn for seed in (1, 1, 2)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_the_callers_model_is_bit_identical_afterwards() -> None:
    model = residual().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    spikecal.convert(model, images(8), T=4)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_tensor_dataset_and_loader_with_and_without_labels_are_the_same_images() -> None:
    model, x, y = residual(), images(24), torch.arange(24)
    loader = [x[i : i + 5] for i in range(0, 24, 5)]
    sources = [x, TensorDataset(x), TensorDataset(x, y), list(x), (b for b in loader)]
    sources += [DataLoader(TensorDataset(x, y), batch_size=7), DataLoader(TensorDataset(x), batch_size=24)]
    networks = [spikecal.convert(model, source, T=4).snn for source in sources]
    assert all(same(networks[0], other) for other in networks[1:])


def test_batch_size_of_the_loader_and_memory_do_not_change_a_bit() -> None:
    model, x = residual(), images(32)
    whole = spikecal.convert(model, x, T=8, pipeline="pc")
    tight = spikecal.convert(model, x, T=8, pipeline="pc", memory=10_000)
    assert same(whole.snn, tight.snn)
    assert [r.errors for r in whole.records] == [r.errors for r in tight.records]


def test_without_records_the_network_is_the_same(tmp_path: Path) -> None:
    model, x = residual(), images(32)
    for pipeline in ("baseline", "lcp"):
        with_them, without = (spikecal.convert(model, x, T=8, pipeline=pipeline, records=r) for r in (True, False))
        assert same(with_them.snn, without.snn)
        assert with_them.records
        assert bool(without.records) == (pipeline == "lcp")  # calibrators leave their current as it is
        without.save(tmp_path / "a.snn")
        assert torch.equal(spikecal.load(tmp_path / "a.snn")(x), with_them.snn(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv2d(3, 4, 3), nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, image: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.a(image) + self.b(depth))
        return self.out(x), self.out(x).mean((2, 3))


def test_several_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    model, x, d = TwoInputs().eval().requires_grad_(False), images(8), images(8, channels=2)
    for source in ((x, d), TensorDataset(x, d), TensorDataset(x, d, torch.zeros(8))):
        snn = spikecal.convert(model, source, T=64, pipeline="maxact").snn
        found, expected = snn(x, d), model(x, d)
        assert isinstance(found, tuple)
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, atol=0.05 * float(b.abs().max()))
    with pytest.raises(DataError, match="2 inputs"):
        snn(x)


def test_records_hold_every_stage() -> None:
    result = spikecal.convert(residual(), images(32), T=[4, 8], pipeline="lcp")
    assert len(result.records) == 2 * len(result.snn.stages)
    for record in result.records:
        assert [label for label, _ in record.errors] == ["before", "bias"]
        assert record.seconds > 0
        if record.kind.endswith("neurons"):
            assert record.threshold is not None and record.threshold > 0
            assert 0 < record.rate < 1 and 0 <= record.saturated < 1 and 0 <= record.dead < 1  # type: ignore[operator]
    assert result.snn.T == 8
    assert result.at(4).T == 4
    with pytest.raises(ConfigError, match=r"\[4, 8\]"):
        result.at(5)


def test_records_say_how_the_network_fires() -> None:
    x = images(32)
    pipeline = spikecal.Pipeline(threshold=spikecal.MMSE(per="channel"))
    result = spikecal.convert(residual(), x, T=4, pipeline=pipeline, micro_batch=8)
    spikes = result.snn.run(x).spikes
    assert {record.stage for record in result.records if record.kind.endswith("neurons")} == spikes.keys()
    for record in result.records:
        if record.kind.endswith("neurons"):
            count = spikes[record.stage].double()
            assert record.rate == pytest.approx(float(count.mean()) / 4, abs=1e-4)
            assert record.saturated == pytest.approx(float((count == 4).double().mean()), abs=1e-3)
            assert record.dead == pytest.approx(float((count.amax(0) == 0).double().mean()), abs=1e-2)
            theta = result.snn.graph.nodes[record.stage].op.theta
            assert record.threshold == pytest.approx(float(theta.mean()))  # type: ignore[union-attr,operator]
    assert sum(record.dead or 0 for record in result.records) > 0


def test_default_is_auto_and_names_do_not_care_about_case() -> None:
    model, x = residual(), images(16)
    for default, named in ((None, "Auto"), (spikecal.LCP, "LCP")):
        settings = {} if default is None else {"pipeline": default}
        assert same(*(spikecal.convert(model, x, T=4, **s).snn for s in (settings, {"pipeline": named})))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="acp"):
        spikecal.convert(model, x, T=4, pipeline="magic")


@pytest.mark.parametrize("T", [0, -3, 2.5, [], [4, 0], True])
def test_a_bad_number_of_steps_is_refused(T: object) -> None:
    with pytest.raises(ConfigError, match="T "):
        spikecal.convert(residual(), images(4), T=T)  # type: ignore[arg-type]


def test_bad_images_are_refused_by_name() -> None:
    model = residual()
    bad = images(4)
    bad[2, 0, 0, 0] = float("nan")
    for source, words in (
        (bad, "NaN"),
        (images(0), "no calibration images"),
        ([], "no calibration images"),
        (DataLoader(TensorDataset(images(0))), "no calibration images"),
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "uint8"),
        (3, "int"),
        (["a"], "str"),
    ):
        with pytest.raises(DataError, match=words):
            spikecal.convert(model, source, T=4)
    with pytest.raises((DataError, ConversionError), match="4, 8, 8"):
        spikecal.convert(model, images(4, channels=4), T=4)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("seed", "a"), ("seed", None), ("seed", 1.5), ("seed", 2**70), ("memory", "1X"), ("micro_batch", "a"),
        ("micro_batch", -3), ("micro_batch", 0), ("micro_batch", 2.5), ("keep", [3]), ("keep", None),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(ConfigError, match=argument):
        spikecal.convert(residual(), images(4), T=2, **{argument: value})  # type: ignore[arg-type]


def test_a_batch_of_a_loader_is_images_and_labels() -> None:
    x, labels = images(8), torch.arange(8)
    assert same(spikecal.convert(residual(), [x, labels], T=2).snn, spikecal.convert(residual(), (x, labels), T=2).snn)


def test_lists_of_signals_and_of_volumes() -> None:
    line = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)).eval()
    cube = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).eval()
    for model, x in ((line, torch.randn(6, 2, 8)), (cube, torch.randn(6, 2, 4, 4, 4))):
        for given in (list(x), [x[:3], x[3:]], [(image, 1) for image in x], [(x, torch.zeros(6))]):
            snn = spikecal.convert(model, given, T=2).snn
            assert snn(x).shape == (6, 3)
        found = spikecal.evaluate(snn, [(x, torch.zeros(6, dtype=torch.int64))])
        assert found.images == 6


def test_images_of_a_size_the_model_cannot_take_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    with pytest.raises(DataError, match="10, 10"):
        spikecal.convert(model, [images(1)[0], images(1, size=10)[0]] * 4, T=2)


def test_networks_of_one_conversion_are_their_own() -> None:
    result = spikecal.convert(residual(), images(8), T=[2, 4])
    before = result.at(4)(images(8))
    result.at(2).load_state_dict({name: torch.zeros_like(t) for name, t in result.at(2).state_dict().items()})
    assert torch.equal(result.at(4)(images(8)), before)


def test_layers_whose_names_differ_in_a_slash() -> None:
    model = nn.Sequential()
    model.add_module("a", nn.Sequential(OrderedDict(b=nn.Conv2d(3, 4, 1), c=nn.ReLU())))
    model.add_module("a/b", nn.Conv2d(4, 4, 1))
    snn = spikecal.convert(model.eval(), images(4), T=2).snn
    assert len(snn.ops) == len(snn.graph.nodes)


def test_steps_in_and_out_of_inference_mode() -> None:
    snn = spikecal.convert(residual(), images(4), T=4).snn
    with torch.inference_mode():
        snn.step(images(4))
    snn.step(images(4))


def test_a_network_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ConversionError, match="computes nothing"):
        spikecal.convert(nn.Identity(), images(4), T=2)


def test_nan_in_the_weights_names_the_layer() -> None:
    model = residual()
    model.body.weight.data[0, 0, 0, 0] = float("nan")
    with pytest.raises(ConversionError, match="body"):
        spikecal.convert(model, images(4), T=4)


def test_a_model_without_data_is_refused() -> None:
    with torch.device("meta"):
        model = residual.__globals__["Residual"]()
    with pytest.raises(ConversionError, match="meta"):
        spikecal.convert(model.eval(), images(4), T=4)


def test_float64_stays_and_half_becomes_float32() -> None:
    x = images(16)
    double = spikecal.convert(residual().double(), x, T=8).snn
    assert double(x.double()).dtype == torch.float64
    for dtype in (torch.float16, torch.bfloat16):
        snn = spikecal.convert(residual().to(dtype), x.to(dtype), T=8).snn
        assert next(snn.parameters()).dtype == torch.float32
        assert torch.allclose(snn(x), double(x.double()).float(), atol=0.3 * float(snn(x).abs().max()))


def test_a_dead_channel_stays_finite_and_is_counted() -> None:
    model = residual()
    with torch.no_grad():
        model.body.bias[3], model.body.weight[3], model.skip.weight[3], model.skip.bias[3] = -9.0, 0.0, 0.0, 0.0
    result = spikecal.convert(model, images(16), T=8, pipeline="pc")
    assert torch.isfinite(result.snn(images(4))).all()
    dead = [r for r in result.records if r.dead is not None and r.dead >= 1 / 8]
    assert dead


def test_images_of_several_sizes_calibrate_potentials_per_channel_and_say_so() -> None:
    class Images:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> Tensor:
            if i >= 12:
                raise IndexError
            return images(1, 8 + 4 * (i % 2), seed=i)[0]

    result = spikecal.convert(residual(), Images(), T=4, pipeline="pc")
    assert any("per channel" in note for r in result.records for note in r.notes)
    # of the first layer, whose current is constant: every image counts the same, however large
    model, op = residual(), result.snn.stages[0].end.op
    errors = []
    for image in Images():  # type: ignore[attr-defined]
        current = model.bn(model.stem(image[None]))
        passed_on = clip_round(current, op.theta.reshape(-1, 1, 1), 4)  # type: ignore[union-attr,operator]
        errors.append((current.relu() - passed_on).mean((0, 2, 3)))
    assert torch.allclose(op.v_init, 4 * torch.stack(errors).mean(0), atol=1e-4)  # type: ignore[arg-type]
    assert all(s.end.op.v_init.ndim == 1 for s in result.snn.stages if s.spiking)  # type: ignore[union-attr]
    assert result.snn(images(2, 20)).shape == (2, 5)


def test_rounding_enters_where_it_was_requested() -> None:
    model, x = dyadic(), dyadic_images(8)
    for rounding, T in (("floor", 4), ("bias", 4), ("potential", 4)):
        snn = spikecal.convert(model, x, T=T, pipeline=Pipeline(rounding=rounding)).snn  # type: ignore[arg-type]
        for stage in snn.stages:
            op = stage.end.op
            if type(op) is Spike:  # signed neurons round without it
                assert (op.bias is None) == (rounding != "bias")
                assert (op.v_init is None) == (rounding != "potential")
                if op.bias is not None and op.theta is not None:
                    assert torch.equal(op.bias, op.theta / 8)
                if op.v_init is not None and op.theta is not None:
                    assert torch.equal(op.v_init, op.theta / 2)


def test_split_rounding_is_between_the_two_and_its_ends_are_them(tmp_path: Path) -> None:
    model, x = residual(), images(16)

    def converted(**rounding: Any) -> spikecal.SpikingNetwork:
        return spikecal.convert(model, x, T=4, pipeline=Pipeline(sweeps=((spikecal.Bias(),),), **rounding)).snn

    assert same(converted(rounding="split", kappa=0), converted(rounding="bias"))
    assert same(converted(rounding="split", kappa=1.0), converted(rounding="potential"))
    snn = spikecal.convert(dyadic(), dyadic_images(8), T=4, pipeline=Pipeline(rounding="split", kappa=0.25)).snn
    for op in (stage.end.op for stage in snn.stages if stage.kind == "neurons"):
        assert torch.equal(op.v_init, op.theta / 8)  # type: ignore[arg-type,operator]
        assert torch.equal(op.bias, op.theta * 0.75 / 8)  # type: ignore[arg-type,operator]
    snn.save(tmp_path / "n.snn")
    assert torch.equal(spikecal.load(tmp_path / "n.snn")(dyadic_images(3)), snn(dyadic_images(3)))


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(8 * self.a(x)).mean((2, 3)))


def test_thresholds_of_clipped_activations_end_at_the_clip() -> None:
    torch.manual_seed(0)
    model, x = Clipped().eval().requires_grad_(False), images(32)
    for pipeline in ("maxact", "baseline"):
        snn = spikecal.convert(model, x, T=256, pipeline=pipeline).snn
        (op,) = (s.end.op for s in snn.stages if s.spiking)
        assert (op.theta <= 6).all()  # type: ignore[operator]
        assert torch.allclose(snn(x), model(x), atol=0.03 * float(model(x).abs().max()))


def test_keep_leaves_the_end_analog() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gate = residual(), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.gate(self.body(x))

    model, x = Model().eval().requires_grad_(False), images(8)
    with pytest.raises(ConversionError, match="gate"):
        spikecal.convert(model, x, T=4)
    snn = spikecal.convert(model, x, T=4, keep=["gate"]).snn
    bare = spikecal.convert(model.body, x, T=4).snn
    assert torch.allclose(snn(x), torch.sigmoid(bare(x)), atol=1e-6)
    snn.reset()
    for _ in range(4):
        last = snn.step(x)
    assert torch.allclose(last, snn.run(x).outputs[-1], atol=1e-5)


def test_a_network_without_neurons_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).eval(), images(4)
    snn = spikecal.convert(model, x, T=2).snn
    assert "nothing in it will spike" in caplog.text
    assert torch.allclose(snn(x), model(x), atol=1e-5)


def test_the_ann_is_compared_as_it_is_used_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.9)).eval()
    model.append(nn.Linear(4 * 36, 3))
    x = images(32)
    labels = model(x).argmax(1)
    snn = spikecal.convert(model, x, T=4).snn
    model.train()
    before = copy.deepcopy(model.state_dict())
    assert spikecal.evaluate(snn, (x, labels), ann=model).ann == 1.0
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_labels_that_are_not_classes_are_refused() -> None:
    snn = spikecal.convert(residual(), images(4), T=4).snn
    for labels in (torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 10)):
        with pytest.raises(DataError, match="one class number per image"):
            spikecal.evaluate(snn, [(images(4), labels)])
    with pytest.raises(ConfigError, match="result.snn"):
        spikecal.evaluate(residual(), (images(4), torch.zeros(4)))  # type: ignore[arg-type]


def test_evaluate_counts_right_answers_after_every_step() -> None:
    model, x = residual(), images(40)
    snn = spikecal.convert(model, x, T=8).snn
    labels = model(x).argmax(1)
    found = spikecal.evaluate(snn, (x, labels))
    outputs = snn.run(x).outputs
    assert found.accuracy == pytest.approx([float((o.argmax(1) == labels).float().mean()) for o in outputs])
    assert found.images == 40
    assert found.rates.keys() == snn.run(x).spikes.keys()
    with pytest.raises(DataError, match="labels"):
        spikecal.evaluate(snn, [x])
    with pytest.raises(DataError, match="no images"):
        spikecal.evaluate(snn, (x[:0], labels[:0]))


def test_a_list_of_batches_is_read_whole_and_a_list_of_images_too() -> None:
    model, x, y = residual(), images(16), torch.arange(16) % 5
    whole = spikecal.convert(model, x, T=4).snn
    batched = spikecal.convert(model, [x[:5], x[5:]], T=4).snn
    labelled = spikecal.convert(model, [(x[:5], y[:5]), (x[5:], y[5:])], T=4).snn
    assert same(whole, batched)
    assert same(whole, labelled)
    assert spikecal.evaluate(whole, [(x[:5], y[:5]), (x[5:], y[5:])]).images == 16


def test_layers_may_have_any_name_and_outputs_may_be_none() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values, self.half_ = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
            self.add_module("keys", nn.ReLU())

        def forward(self, x: Tensor) -> dict[str, Tensor | None]:
            return {"out": self.half_(self.get_submodule("keys")(self.values(x)).mean((2, 3))), "aux": None}

    snn = spikecal.convert(Model().eval(), images(8), T=4).snn
    found = snn(images(2))
    assert found["aux"] is None and found["out"].shape == (2, 3)
    assert snn.run(images(2)).outputs["out"].shape == (4, 2, 3)


def test_potentials_per_neuron_and_per_channel_add_up() -> None:
    sweeps = ((spikecal.Potential(),), (spikecal.Potential(per="channel"),), (spikecal.Potential(),))
    snn = spikecal.convert(residual(), images(16), T=4, pipeline=Pipeline(sweeps=sweeps)).snn
    assert [s.end.op.v_init.ndim for s in snn.stages if s.spiking] == [3] * 5  # type: ignore[union-attr]


def test_conversion_inside_inference_mode() -> None:
    model, x = residual(), images(8)
    outside = spikecal.convert(model, x, T=4, pipeline="pc").snn
    with torch.inference_mode():
        inside = spikecal.convert(model, images(8), T=4, pipeline="pc").snn
    assert same(outside, inside)


def test_weights_are_calibrated_inside_no_grad() -> None:
    pipeline = Pipeline(sweeps=((spikecal.Weights(iterations=3),),))
    outside = spikecal.convert(residual(), images(8), T=4, pipeline=pipeline).snn
    with torch.no_grad():
        inside = spikecal.convert(residual(), images(8), T=4, pipeline=pipeline).snn
    assert torch.equal(inside.ops["/stem"].weight, outside.ops["/stem"].weight)
    plain = spikecal.convert(residual(), images(8), T=4, pipeline="baseline").snn
    assert not torch.equal(inside.ops["/stem"].weight, plain.ops["/stem"].weight)


def test_a_network_without_parameters_converts() -> None:
    x = images(4)
    snn = spikecal.convert(nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.AvgPool2d(2)), x, T=64, pipeline="maxact").snn
    expected = torch.nn.functional.avg_pool2d(torch.nn.functional.avg_pool2d(x, 2).relu(), 2)
    assert torch.allclose(snn(x), expected, atol=0.05)


def test_what_is_not_a_module_is_refused() -> None:
    for model in (lambda x: x, torch.nn.functional.relu, 3):
        with pytest.raises(ConversionError, match="not a torch.nn.Module"):
            spikecal.convert(model, images(4), T=4)  # type: ignore[arg-type]


def test_bad_inputs_at_run_time_are_data_errors() -> None:
    snn, x = spikecal.convert(residual(), images(8), T=4).snn, images(4)
    for bad, words in ((x * float("nan"), "NaN"), (x[:, :2], "cannot run"), (x.long(), "floats"), (x[0], "one image")):
        with pytest.raises(DataError, match=words):
            snn(bad)
    snn.step(x)
    with pytest.raises(DataError, match="reset"):
        snn.step(x[:2])
    assert snn(x.half()).dtype == torch.float32


def test_labels_beyond_the_classes_are_refused() -> None:
    snn = spikecal.convert(residual(), images(8), T=4).snn
    with pytest.raises(DataError, match="classes 0 to 4"):
        spikecal.evaluate(snn, (images(4), torch.tensor([0, 1, 9, 2])))


class Regressor(nn.Module):
    """One number for each image."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.conv, self.fc, self.end = nn.Conv2d(3, 4, 3), nn.Linear(4, 1), end

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.conv(x)).mean((2, 3))
        found = {"squeeze": self.fc(x).squeeze(1), "index": self.fc(x)[:, 0], "sum": x.sum(1)}
        return found[self.end]


@pytest.mark.parametrize("end", ["squeeze", "index", "sum"])
def test_networks_of_one_number_for_each_image(end: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Regressor(end).eval().requires_grad_(False), images(16)
    for pipeline in (ACP.changed(spikecal.Weights, iterations=2), "auto"):
        snn = spikecal.convert(model, x, T=64, pipeline=pipeline).snn
        assert torch.allclose(snn(x), model(x), atol=0.02)
    several = [images(4), images(4, 10)]  # of two sizes
    result = spikecal.convert(model, several, T=64, pipeline="lcp")
    assert torch.allclose(result.snn(x), model(x), atol=0.02)
    result.save(tmp_path / "net.snn")
    snn = spikecal.load(tmp_path / "net.snn")
    assert torch.equal(snn(x), result.snn(x)) and snn.run(x).outputs.shape == (64, 16)
    assert torch.allclose(snn.trainable()(x), snn(x)) and torch.allclose(snn.normalized()(x), snn(x), atol=1e-5)
    result.report(tmp_path / "r.html", x)
    assert spikecal.evaluate(snn, x).energy is not None
    with pytest.raises(ConversionError, match="one number per image .*; squeeze or index after it"):
        spikecal.convert(nn.Sequential(model, nn.ReLU()), x, T=4)
