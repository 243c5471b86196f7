"""Stages that wait: what they emit and when, for any division of the steps."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, residual
from networks import images as photos
from snn.simulators import in_global_time, pipelined
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import ConfigError, DataError, SpikingNetwork
from spikecal.graph.ops import Spike
from spikecal.snn import execute
from spikecal.snn.execute import Want

T = 4


def converted(
    model: nn.Module, x: Tensor, T: int = T, rounding: str = "bias", keep: tuple[str, ...] = ()
) -> SpikingNetwork:
    """With thresholds that are powers of two, and so exact in every sum."""
    pipeline = spikecal.Pipeline(threshold=spikecal.MaxAct(), rounding=rounding)  # type: ignore[arg-type]
    snn = spikecal.convert(model, x, T=T, pipeline=pipeline, records=False, keep=keep, joints="analog").snn
    for stage in snn.stages:
        op = stage.end.op
        if isinstance(op, Spike):
            op.theta.data = torch.exp2(op.theta.log2().round() - 1)  # type: ignore[union-attr]
            if op.bias is not None:
                op.bias.data = op.theta.data / 8  # type: ignore[union-attr]
            else:
                op.v_init.data = op.theta.data / 2  # type: ignore[union-attr]
    return snn


class Skip(nn.Module):
    """Four layers; the last one and the output also read the first, which reaches them long before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.out = (nn.Conv2d(2, 2, 1) for _ in range(5))
        for p in self.parameters():
            p.data = (16 * p.data).round().abs() / 16

    def forward(self, x: Tensor) -> Tensor:
        return self.through(x, F.relu)

    def through(self, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        a = act(self.a(x))
        return self.out(act(self.d(act(self.c(act(self.b(a))))) + a)) + a  # type: ignore[no-any-return]


def skip(seed: int) -> Skip:
    torch.manual_seed(seed)
    return Skip().eval().requires_grad_(False)


def waiting(snn: SpikingNetwork, waits: Mapping[str, int]) -> SpikingNetwork:
    return SpikingNetwork(snn.graph, snn.T, waits)


def drawn(snn: SpikingNetwork, seed: int, most: int = T - 1) -> dict[str, int]:
    generator = torch.Generator().manual_seed(seed)
    names = [stage.name for stage in snn.stages if stage.spiking]
    return dict(zip(names, torch.randint(0, most + 1, (len(names),), generator=generator).tolist(), strict=True))


def everywhere(snn: SpikingNetwork, wait: int) -> dict[str, int]:
    return {stage.name: wait for stage in snn.stages if stage.spiking}


def levels(snn: SpikingNetwork, x: Tensor, chunk: int | None = None) -> dict[str, Tensor]:
    """What each layer of neurons emits in its window, run in chunks of so many steps of global time."""
    course, found = snn.course((x,)), dict[str, list[Tensor]]()
    end = snn.windows.end
    for done in range(0, end, chunk or end):
        steps = min(chunk or end, end - done)
        for stage, emission in course.advance(snn.input_values((x,)), steps, want=Want.VALUE | Want.LEVELS):
            if emission.levels is not None:
                found.setdefault(stage.name, []).append(emission.levels.int())
    return {name: torch.cat(parts) for name, parts in found.items()}


# -- against a second simulator, in global time --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rounding", ["bias", "potential"])
@pytest.mark.parametrize("make", [dyadic, skip])
def test_levels_are_those_of_a_simulator_in_global_time(
    seed: int, rounding: str, make: Callable[[int], nn.Module]
) -> None:
    x = dyadic_images(3)
    snn = converted(make(seed), x, rounding=rounding)
    snn = waiting(snn, drawn(snn, seed))
    snn._shapes_for((x,))
    expected, found = in_global_time(snn, x), levels(snn, x)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    assert sum(int(value.sum()) for value in found.values()) > 100


# -- one rule, however the steps are cut ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_chunks_of_any_size_give_the_same_levels(seed: int, chunk: int) -> None:
    x = dyadic_images(2)
    snn = converted(dyadic(seed), x)
    snn = waiting(snn, drawn(snn, seed + 10))
    whole, cut = levels(snn, x), levels(snn, x, chunk)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize("seed", range(4))
def test_stepwise_is_layerwise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = dyadic_images(2)
    snn = converted(dyadic(seed), x)
    snn = waiting(snn, drawn(snn, seed + 20))
    expected = snn.run(x).outputs
    start = snn.latency - T
    found = [snn.step(x) for _ in range(snn.latency)]
    assert found[:start] == [None] * start
    for t in range(T):
        assert torch.equal(found[start + t], expected[t])
        assert torch.equal(snn(x, steps=t + 1), expected[t])
    with pytest.raises(DataError, match=f"all {snn.latency} steps .* reset"):
        snn.step(x)
    snn.reset()
    assert (snn.step(x) is None) == (start > 0)
    monkeypatch.setattr(execute, "STEP_FLOATS", 1)  # images so large that one step runs at a time
    assert torch.equal(snn(x), expected[-1])


@pytest.mark.parametrize("seed", range(4))
def test_counting_gives_the_output_and_the_spikes_of_a_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = dyadic_images(2)
    snn = converted(dyadic(seed), x)
    snn = waiting(snn, drawn(snn, seed + 20))
    run = snn.run(x)
    for floats in (execute.STEP_FLOATS, 1):  # all steps at once; one step at a time
        monkeypatch.setattr(execute, "STEP_FLOATS", floats)
        output, spikes = snn.counted(x)
        assert torch.equal(output, run.outputs[-1])
        assert spikes.keys() == run.spikes.keys()
        assert all(torch.equal(count, run.spikes[name]) for name, count in spikes.items())


def test_waits_of_0_change_no_bit() -> None:
    x = photos(4)
    snn = spikecal.convert(residual(), x, T=T, pipeline="pc").snn
    same = waiting(snn, everywhere(snn, 0))
    assert same.waits == {} and same.latency == T and same.interval == T
    assert torch.equal(snn.run(x).outputs, same.run(x).outputs)


# -- the two-phase network -----------------------------------------------------------------------------------------


class Quantised:
    """An activation that rounds down to a level of theta/T of the next layer, in plain torch."""

    def __init__(self, snn: SpikingNetwork) -> None:
        self.counts = list[Tensor]()
        self.ops = [stage.end.op for stage in snn.stages if stage.spiking]

    def __call__(self, current: Tensor) -> Tensor:
        cells = self.ops[len(self.counts)].cells(current.ndim)  # type: ignore[operator]
        own = 0 if cells.bias is None else cells.bias
        count = (T * (current + own) / cells.theta).floor().clamp(0, T)
        self.counts.append(count)
        return count * cells.theta / T  # type: ignore[no-any-return]


def through_dyadic(m: Any, x: Tensor, act: Quantised) -> Tensor:
    """The dyadic network with other activations."""
    x = act(m.stem(x))
    x = act(m.depthwise(x) + x)
    trunk = m.trunk(F.max_pool2d(x, 2)) + F.avg_pool2d(x, 2)
    left = act(F.max_pool2d(m.left(trunk), 2))  # the pool comes first: it is the same, and how it is lowered
    return m.fc(torch.cat([left, act(m.right(F.avg_pool2d(trunk, 2)))], 1).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("make", "through"), [(dyadic, through_dyadic), (skip, Skip.through)])
def test_waiting_to_the_end_everywhere_is_the_quantised_network(seed: int, make: Any, through: Any) -> None:
    x = dyadic_images(3)
    model = make(seed)
    snn = converted(model, x)
    snn = waiting(snn, everywhere(snn, T - 1))
    oracle = Quantised(snn)
    expected = through(model, x, oracle)
    run = snn.run(x)
    for stage, count in zip([s for s in snn.stages if s.spiking], oracle.counts, strict=True):
        assert torch.equal(run.spikes[stage.name], count.int()), stage.name
    assert torch.equal(run.outputs[-1], expected)


# -- time ----------------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Three layers; the last one also reads the first, and so does the output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = (nn.Conv2d(2, 2, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        c = F.relu(self.c(F.relu(self.b(a))) + a)
        return self.out(c) + a


def test_starts_latency_and_interval() -> None:
    torch.manual_seed(0)
    snn = converted(Chain().eval().requires_grad_(False), dyadic_images(2))
    first, second, third = (stage.name for stage in snn.stages if stage.spiking)
    (output,) = snn.graph.outputs()
    snn = waiting(snn, {first: 1, second: 3})
    assert snn.windows.starts == {first: 1, second: 4, third: 4, output: 4}
    assert snn.latency == T + 4 and snn.interval == T + 3
    stage = {s.name: s for s in snn.stages}
    assert snn.windows.charges(stage[third]) == {first: 3, second: 0} and not snn.windows.delays(stage[third])
    assert snn.windows.delays(stage[output]) == {first: 3}  # a joint has no membrane to charge


def test_images_one_interval_apart_do_not_overlap_and_closer_ones_do() -> None:
    first, second = dyadic_images(2), dyadic_images(2, seed=7)
    snn = converted(skip(0), first)
    snn = waiting(snn, everywhere(snn, 1))
    snn._shapes_for((first,))
    assert snn.interval == T + 3  # the skip charges two steps early what then waits one: longer than any wait
    alone = [levels(snn, first), levels(snn, second)]

    def same(interval: int) -> bool:
        found = pipelined(snn, [first, second], interval)
        return all(torch.equal(one[name], of[name]) for one, of in zip(alone, found, strict=True) for name in one)

    assert same(snn.interval) and same(snn.interval + 1)
    assert not same(snn.interval - 1)


def test_what_cannot_wait_is_refused() -> None:
    snn = converted(dyadic(), dyadic_images(2))
    joint = next(stage.name for stage in snn.stages if not stage.spiking)
    neurons = next(stage.name for stage in snn.stages if stage.spiking)
    for waits, words in (
        ({joint: 1}, "cannot wait"),
        ({"nobody": 1}, "nobody cannot wait"),
        ({neurons: T}, f"waits {T} steps: give 0 to T-1, here {T - 1}"),
        ({neurons: -1}, "waits -1 steps"),
        ({neurons: 1.0}, "waits 1.0 steps"),
    ):
        with pytest.raises(ConfigError, match=words):
            waiting(snn, waits)  # type: ignore[arg-type]


def test_an_output_that_is_read_as_a_current_does_not_wait() -> None:
    x = dyadic_images(2)
    body = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU()).eval().requires_grad_(False)
    snn = converted(body, x)
    first, last = (stage.name for stage in snn.stages)
    snn = waiting(snn, {first: 1, last: 2})
    assert snn.latency == T + 1
    found = [snn.step(x) for _ in range(snn.latency)]
    assert found[0] is None and torch.equal(found[-1], snn(x))
    snn.readout = "spikes"
    snn.reset()
    assert snn.latency == T + 3
    found = [snn.step(x) for _ in range(snn.latency)]
    assert found[:3] == [None] * 3 and torch.equal(found[-1], snn(x))
    assert torch.equal(torch.stack(found[3:]), snn.run(x).outputs)


# -- other forms ---------------------------------------------------------------------------------------------------


def test_normalised_it_has_the_same_spikes() -> None:
    x = dyadic_images(3)
    snn = converted(dyadic(2), x)
    snn = waiting(snn, drawn(snn, 5))
    unit = snn.normalized()
    assert unit.waits == snn.waits and unit.latency == snn.latency
    assert all(torch.equal(snn.run(x).spikes[name], counts) for name, counts in unit.run(x).spikes.items())


def test_a_kept_head_gets_what_the_body_gives_after_each_step(tmp_path: Path) -> None:
    x, head = dyadic_images(2), nn.Softmax(1)
    snn = converted(nn.Sequential(dyadic(3), head).eval(), x, keep=("1",))
    snn = waiting(snn, drawn(snn, 4))
    body = converted(dyadic(3), x)
    body = waiting(body, drawn(body, 4))
    assert snn.latency == body.latency > T
    expected = torch.stack([head(output) for output in body.run(x).outputs])
    assert torch.equal(snn.run(x).outputs, expected)
    stepwise = [snn.step(x) for _ in range(snn.latency)]
    assert stepwise[: snn.latency - T] == [None] * (snn.latency - T)
    assert torch.equal(torch.stack(stepwise[snn.latency - T :]), expected)
    snn.save(tmp_path / "body.snn")
    again = spikecal.load(tmp_path / "body.snn", head=head)
    assert again.waits == snn.waits and torch.equal(again(x), expected[-1])


class Two(nn.Module):
    """An output after one layer, and one after three."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.near, self.far = (nn.Conv2d(2, 2, 1) for _ in range(5))
        for p in self.parameters():
            p.data = (16 * p.data).round() / 16

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = F.relu(self.a(x))
        return {"near": self.near(a), "far": self.far(F.relu(self.c(F.relu(self.b(a)))))}


def test_each_of_several_outputs_has_its_own_window() -> None:
    torch.manual_seed(1)
    x = dyadic_images(2)
    snn = converted(Two().eval().requires_grad_(False), x)
    a, b, c = (stage.name for stage in snn.stages if stage.spiking)
    snn = waiting(snn, {a: 1, b: 2, c: 1})
    assert snn.latency == T + 4
    outputs = snn.run(x).outputs
    found = [snn.step(x) for _ in range(snn.latency)]
    assert found[:4] == [None] * 4  # until the last output starts
    for t in range(T):
        ended = min(T, t + 4)  # steps of the near output, which starts at 1
        assert torch.equal(found[4 + t]["far"], outputs["far"][t])
        assert torch.equal(found[4 + t]["near"], outputs["near"][ended - 1])
        both = snn(x, steps=t + 1)
        assert torch.equal(both["far"], outputs["far"][t]) and torch.equal(both["near"], outputs["near"][t])


def test_a_file_has_the_waits_and_only_then_another_format(tmp_path: Path) -> None:
    x = dyadic_images(3)
    snn = converted(dyadic(), x)
    late = waiting(snn, drawn(snn, 1))
    late.save(tmp_path / "late.snn")
    again = spikecal.load(tmp_path / "late.snn")
    assert again.waits == late.waits and torch.equal(again(x), late(x))
    (found,) = spikecal.inspect(tmp_path / "late.snn")["timing"]
    assert found["waits"] == late.waits and (found["latency"], found["interval"]) == (late.latency, late.interval)
    snn.save(tmp_path / "plain.snn")
    plain, waits = ((tmp_path / f"{name}.snn").read_bytes() for name in ("plain", "late"))
    assert b'\\"format\\": 2' in plain and b'\\"format\\": 3' in waits and b"waits" not in plain


def test_steps_that_enter_at_once_are_one_pass_over_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a layer waits w of five steps, its first w + 1 are one pass; not those whose mean would round, of three."""
    x, seen = dyadic_images(2), list[int]()
    one_layer = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1))
    for p in one_layer.parameters():
        p.data = (16 * p.data).round().abs() / 16
    plain = converted(one_layer.eval(), x[:, :2], T=5)
    second = plain.stages[1]
    forward = type(second.nodes[0].op).forward

    def counted(op: Any, x: Tensor, shapes: Any = ()) -> Tensor:
        if op is snn.stages[1].nodes[0].op:
            seen.append(len(x) // 2)
        return forward(op, x, shapes)

    for wait, steps in ((0, 5), (1, 4), (2, 5), (3, 2)):
        snn = SpikingNetwork(plain.graph.clone(), 5, {second.name: wait} if wait else {})
        with monkeypatch.context() as patch:
            patch.setattr(type(second.nodes[0].op), "forward", counted)
            seen.clear()
            run = snn.run(x[:, :2])
        assert seen[-1] == steps, wait  # before it one image, for shapes
        snn.reset()
        for _ in range(snn.latency):
            stepwise = snn.step(x[:, :2])
        torch.testing.assert_close(run.outputs[-1], stepwise, rtol=0, atol=0)
