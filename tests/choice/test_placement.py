"""Waits within a latency: where they go, that they are kept only where they help, and that a killed search resumes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from killed import report_of
from networks import deep, images, residual
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import Bias, ConfigError, Pipeline, Result, Weights
from spikecal.arguments import latency_of
from spikecal.choice.placement import (
    by_depth,
    depths,
    placed,
    spare,
    spread,
    spread_up_to,
    steps_within,
    without_learning,
)
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.graph.lowering.lower import lower
from spikecal.graph.stages import partition, with_joints
from spikecal.snn import execute
from spikecal.snn.windows import Windows
from spikecal.zoo.models import load_model


class Branches(nn.Module):
    """A long branch and a short one that meet, then two outputs at different depths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.long1, self.long2, self.long3, self.short = (nn.Conv2d(3, 3, 1) for _ in range(5))
        self.near, self.far = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.stem(x))
        long = F.relu(self.long3(F.relu(self.long2(F.relu(self.long1(x))))))
        return self.near(x), self.far(long + F.relu(self.short(x)))


def stages() -> Any:
    torch.manual_seed(0)
    model = Branches().eval().requires_grad_(False)
    return partition(with_joints(lower(model, (images(2),))))


def converted(**settings: Any) -> Result:
    return spikecal.convert(**{"model": deep(), "images": images(64), "T": 4, "pipeline": FEW, **settings})


FEW = Pipeline(sweeps=((Bias(images=32),),))
PARTS = {"train": 64, "test": 100}  # images of the demo


# -- where ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [
        ([1, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([1, 1, 1, 1], 2, [1, 0, 1, 0]),
        ([1, 1, 1], 1, [0, 1, 0]),
        ([1, 1, 1, 1], 6, [2, 1, 2, 1]),
        ([0, 3, 0, 1], 4, [0, 3, 0, 1]),
        ([0, 0], 3, [0, 0]),
        ([5.0], 2, [2]),
    ],
)
def test_waits_are_spread_in_proportion(weights: list[float], count: int, expected: list[int]) -> None:
    assert spread(weights, count) == expected


@pytest.mark.parametrize(
    ("most", "weights", "count", "expected"),
    [
        (3, [1, 1, 1], 3, [1, 1, 1]),
        (1, [9, 1, 1], 2, [1, 1, 0]),  # what the first cannot take goes to the others
        (2, [0, 1], 3, [1, 2]),  # to those without a share, if no other place is left
        (1, [1, 1], 7, [1, 1]),
        (0, [1, 1], 4, [0, 0]),
    ],
)
def test_what_a_layer_cannot_wait_others_do(most: int, weights: list[float], count: int, expected: list[int]) -> None:
    found = spread_up_to(most, weights, count)
    assert sum(found) == sum(expected) and sorted(found) == sorted(expected)


def test_a_branch_has_time_to_spare_until_its_output_is_the_latest() -> None:
    all_stages = stages()
    name = {stage.name: stage for stage in all_stages}
    windows = Windows(8, all_stages, {stage.name: 1 for stage in all_stages if stage.spiking})
    free = {n: spare(all_stages, windows, stage) for n, stage in name.items() if stage.spiking}
    assert sorted(free.values()) == [0, 0, 0, 0, 2]  # the short branch joins after two layers more
    near = next(
        stage for stage in all_stages if not stage.spiking and len(stage.nodes) == 2 and stage.inputs[0] in free
    )
    assert spare(all_stages, windows, near) >= 0


def test_one_step_leaves_no_room_for_waits() -> None:
    found = converted(T=1, latency=9).origin.placements[1]
    assert [trial["name"] for trial in found["tried"]] == ["no waits"]


def test_depth_counts_layers_of_neurons_on_the_longest_way() -> None:
    found = depths(stages())
    assert sorted(found.values()) == [1, 2, 2, 3, 4]
    assert by_depth(stages(), dict.fromkeys(found, 2.0) | {name: 5.0 for name, d in found.items() if d == 3}) == {
        1: 2.0, 2: 2.0, 3: 5.0, 4: 2.0,
    }  # fmt: skip


def test_the_last_neurons_do_not_wait_as_their_current_is_the_answer() -> None:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)]
    model = nn.Sequential(*(module for conv in convolutions for module in (conv, nn.ReLU())))
    result = converted(model=model, latency=10)
    found = result.origin.placements[4]
    assert all("7" not in trial["waits"] for trial in found["tried"])
    assert {trial["latency"] for trial in found["tried"]} == {4, 7, 8, 10}  # the other layers use all of it
    (kept,) = (trial for trial in found["tried"] if trial["waits"] == result.snn.waits)
    assert kept["waits"] and kept["latency"] == result.snn.latency


@pytest.mark.parametrize("count", range(1, 9))
def test_a_placement_keeps_its_count_on_the_longest_path_and_uses_what_is_free(count: int) -> None:
    all_stages = stages()
    waits = placed(all_stages, 8, {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, count)
    windows = Windows(8, all_stages, waits)
    assert max(windows.starts.values()) == count
    joined = next(stage for stage in all_stages if len(stage.inputs) == 2)
    leads = windows.leads(joined)
    # the short branch has waited as long as it may: two steps beyond its depth's
    assert max(leads.values()) == max(0, count - placed_before(count) - 2)


def placed_before(count: int) -> int:
    """Waits of the first two depths, where the short branch ends."""
    return sum(spread([1.0] * 4, count)[:2])


def test_no_wait_is_longer_than_a_window_allows() -> None:
    waits = placed(stages(), 2, {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, 40)
    assert set(waits.values()) == {1}


def test_weights_are_not_learned_in_trials() -> None:
    pipeline = Pipeline(sweeps=((Bias(images=8), Weights(iterations=5)), (Weights(iterations=5),)))
    assert without_learning(pipeline).sweeps == ((Bias(images=8),),)


# -- converting ----------------------------------------------------------------------------------------------------


def test_waits_bring_a_real_network_nearer_to_the_ann_within_the_latency() -> None:
    model, card = load_model("resnet20")
    seen, test = (prepare(load_data("demo", split).images[:count], card, "resnet20") for split, count in PARTS.items())
    results = [spikecal.convert(model, seen, T=4, latency=n, pipeline="lcp", records=False) for n in (None, 14)]
    late = results[1].snn
    assert late.waits and 4 < late.latency <= 14
    agreement = [float((net.snn(test).argmax(1) == model(test).argmax(1)).float().mean()) for net in results]
    assert agreement[1] > agreement[0] + 0.1
    found = late.origin.placements[4]
    kept = min(found["tried"], key=lambda trial: trial["divergence"])
    assert kept["waits"] == late.waits and found["kept"] == kept["name"]
    assert [trial["name"] for trial in found["tried"]][:3] == ["no waits", "evenly", "by unevenness"]
    assert found["images"] == PARTS["train"] // 4 and all(trial["latency"] <= 14 for trial in found["tried"])


def test_a_latency_of_T_equals_no_waiting_bit_for_bit() -> None:
    x = images(4, seed=5)
    assert torch.equal(converted().snn(x), converted(latency=4).snn(x))
    assert torch.equal(converted().snn(x), converted(latency="1x").snn(x))


def test_a_placement_that_does_not_beat_no_waiting_is_dropped() -> None:
    torch.manual_seed(0)
    flat = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval().requires_grad_(False)
    result = converted(model=flat, T=32, latency=64)  # its only neurons get a constant current: waiting changes nothing
    assert result.snn.waits == {} and result.snn.latency == 32
    (found,) = result.origin.placements.values()
    assert found["kept"] == "no waits" and all(trial["gain"] < 1e-6 for trial in found["tried"])


def test_too_few_images_to_tell_leave_no_waits() -> None:
    result = converted(images=images(7), latency=10)
    assert result.snn.waits == {} and result.origin.placements[4]["images"] == 1


@pytest.mark.parametrize(("latency", "steps"), [(18, 18), ("18", 18), ("2x", 16), ("1.5x", 12), ("+10", 18), ("+0", 8)])
def test_a_latency_is_steps_or_by_T(latency: int | str, steps: int) -> None:
    assert latency_of(latency, 8) == steps


def test_several_T_have_their_own_waits_and_one_file(tmp_path: Path) -> None:
    result = converted(T=[2, 4], latency="2x")
    assert {T: net.latency <= 2 * T for T, net in result.networks.items()} == {2: True, 4: True}
    result.save(tmp_path / "net.snn")
    x = images(3)
    for T, network in result.networks.items():
        again = spikecal.load(tmp_path / "net.snn", T=T)
        assert again.waits == network.waits and again.origin.placements == result.origin.placements
        assert torch.equal(again(x), network(x))


def test_T_is_chosen_for_a_latency() -> None:
    assert steps_within(18) == [18, 14, 9, 6] and steps_within(1) == [1]
    result = converted(T=None, latency=12)
    (T,) = result.networks
    tried = result.origin.placements[T]["tried"]
    assert {trial["T"] for trial in tried} == {12, 9, 6, 4}
    assert min(tried, key=lambda trial: trial["divergence"])["T"] == T
    assert result.snn.latency <= 12


def test_large_images_are_calibrated_a_few_steps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": deep().double(), "images": images(64).double(), "latency": 10}
    whole = converted(**settings)
    for floats in (1, 24 * 8 * 64 * 3):  # one step at a time, and three of the larger stages
        monkeypatch.setattr(execute, "STEP_FLOATS", floats)
        parts = converted(**settings)
        assert parts.snn.waits == whole.snn.waits != {}
        for one, two in zip(whole.records, parts.records, strict=True):
            assert [e for _, e in two.errors] == pytest.approx([e for _, e in one.errors], rel=1e-9)
            assert two.rate == one.rate


@pytest.mark.parametrize("pipeline", ["baseline", "lcp", "pc", "maxact"])
def test_every_preset_can_wait(pipeline: str) -> None:
    result = converted(pipeline=pipeline, latency=9)
    assert result.snn.latency <= 9 and result.origin.placements[4]["tried"]


def test_weights_are_calibrated_with_the_waits_in_place() -> None:
    pipeline = Pipeline(sweeps=((Bias(images=32), Weights(images=32, iterations=3, batch=8, lr=1e-4)),))
    result = converted(pipeline=pipeline, latency=10)
    assert result.snn.waits
    last = next(record for record in result.records if record.stage == result.snn.stages[-2].name)
    assert [label for label, _ in last.errors] == ["before", "bias", "weights"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latency": 3}, "a network for T=4 cannot have a latency of 3"),
        ({"latency": "0.5x"}, "cannot have a latency of 2"),
        ({"latency": 0}, "latency must be an integer from 1 to [0-9,]+, '2x' for twice T"),
        ({"latency": "long"}, "not 'long'"),
        ({"latency": 4.5}, "not 4.5"),
        ({"latency": True}, "not True"),
        ({"T": None, "latency": "2x"}, "a latency of 2x needs a T"),
        ({"T": None, "latency": "+10"}, r"a latency of \+10 needs a T"),
    ],
)
def test_an_impossible_latency_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        converted(**settings)


# -- killed --------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


class Watch:
    def __init__(self, left: float) -> None:
        self.left, self.phases = left, list[str]()

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.phases.append(name)

    def advance(self, note: str = "") -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped


def test_stopped_in_the_search_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": residual(), "images": images(24), "latency": 7}
    converted(**settings).save(tmp_path / "whole.snn")
    for left in (3, 2, 2, 2, 40):
        try:
            result = converted(**settings, workdir=tmp_path / "work", progress=Watch(left))
        except Stopped:
            continue
    result.save(tmp_path / "resumed.snn")
    assert (tmp_path / "resumed.snn").read_bytes() == (tmp_path / "whole.snn").read_bytes()
    with pytest.raises(ConfigError, match="another conversion"):
        converted(**{**settings, "latency": 8}, workdir=tmp_path / "work")


def test_killed_in_the_search_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    report = report_of(Path(__file__).with_name("killing_search.py"), tmp_path)
    assert [found["done"] for found in report["deaths"]] == [1, 3]  # placements that were measured before
    for found in report["deaths"]:
        assert found["redone"] == []
        assert found["bytes"] == report["uninterrupted"]
