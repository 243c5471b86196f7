"""Delayed read-out: outputs over (t0, T] in every way a network runs, and t0 by divergence from the ANN."""

from pathlib import Path

import pytest
import torch
from networks import images, residual
from torch import Tensor

import spikecal
from spikecal import FileError, Pipeline, ReadOut, SpikingNetwork
from spikecal.calibration.readout import best, warm_ups

T = 6


def network(warm_up: int, waits: int = 0) -> SpikingNetwork:
    snn = spikecal.convert(residual(), images(8), T=T, pipeline="baseline", joints="analog", records=False).snn
    names = [stage.name for stage in snn.stages if stage.spiking][:2]
    made = SpikingNetwork(snn.graph, T, dict.fromkeys(names, waits))
    made.warm_up = warm_up
    made.reset()
    return made


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("warm_up", [1, 3, 5])
def test_outputs_are_means_over_the_steps_after_it(warm_up: int, waits: int) -> None:
    x = images(3, seed=2)
    plain = network(0, waits).run(x).outputs
    steps = torch.arange(1, T + 1).reshape(-1, 1, 1)
    sums = plain * steps
    expected = torch.stack(
        [plain[t] if t < warm_up else (sums[t] - sums[warm_up - 1]) / (t + 1 - warm_up) for t in range(T)]
    )
    late = network(warm_up, waits)
    run = late.run(x).outputs
    assert torch.allclose(run, expected, atol=1e-5) and not torch.allclose(run, plain, atol=1e-3)
    assert torch.allclose(late(x), run[-1], atol=1e-6)
    for t in range(1, T + 1):
        assert torch.allclose(late(x, steps=t), run[t - 1], atol=1e-6)
    stepped = [late.step(x) for _ in range(late.latency)][late.latency - T :]
    assert torch.allclose(torch.stack(stepped), run, atol=1e-5)
    assert torch.allclose(late.normalized()(x), late(x), atol=1e-4)
    (found,) = late.outputs_after(x, warm_ups=[2])[0].values()
    assert torch.allclose(found, network(2, waits)(x), atol=1e-6)


def test_large_images_are_read_the_same_a_few_steps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, late = images(3, seed=2), network(3)
    whole = late(x)
    monkeypatch.setattr("spikecal.snn.execute.STEP_FLOATS", 4000)
    assert torch.allclose(late(x), whole, atol=1e-6)


def test_files_keep_it(tmp_path: Path) -> None:
    late, x = network(2), images(3, seed=2)
    late.save(tmp_path / "n.snn")
    again = spikecal.load(tmp_path / "n.snn")
    assert again.warm_up == 2 and torch.equal(again(x), late(x))
    assert b'"format\\": 3' in (tmp_path / "n.snn").read_bytes()
    late.warm_up = T
    late.save(tmp_path / "bad.snn")
    with pytest.raises(FileError, match="read only after 6 of 6 steps"):
        spikecal.load(tmp_path / "bad.snn")


def test_what_is_tried() -> None:
    assert warm_ups(1) == [0] and warm_ups(2) == [0, 1] and warm_ups(4) == [0, 1, 2]
    assert warm_ups(16) == [0, 2, 4, 6, 8] and warm_ups(32) == [0, 4, 8, 12, 16]


def test_a_later_start_must_be_better_beyond_chance() -> None:
    plain = torch.tensor([1.0, 2.0, 3.0, 4.0])
    lucky, good, better = torch.tensor([0.0, 2.0, 3.0, 4.0]), plain - 0.4, plain - 0.5

    def chosen(*later: Tensor) -> int:
        return best(range(len(later) + 1), [plain, *later])

    assert chosen(lucky) == 0 and chosen(good, lucky) == 1 and chosen(good, better) == 2


def test_a_network_that_starts_wrong_is_read_late() -> None:
    """Neurons that cannot fire early on: the first steps say nothing."""
    x = images(40)
    pipeline = Pipeline(rounding="floor", sweeps=(ReadOut(images=32),))
    result = spikecal.convert(residual(), x, T=8, pipeline=pipeline)
    plain = spikecal.convert(residual(), x, T=8, pipeline=Pipeline(rounding="floor")).snn
    ann, late = residual()(x), result.snn
    assert 0 < late.warm_up <= 4
    errors = [float((ann - snn(x)).square().mean()) for snn in (late, plain)]
    assert errors[0] < errors[1]
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline
