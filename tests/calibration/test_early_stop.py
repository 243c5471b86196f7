"""Weights calibration that stops on images it does not learn from."""

from typing import Any

import pytest
import torch
from networks import images, residual

import spikecal
from spikecal import ConfigError, Weights
from spikecal.calibration.calibrators import Best
from spikecal.calibration.samples import Sample, Samples
from spikecal.ranks import Ranks


def samples(*counts: int, first: int = 0, of: int | None = None) -> Samples:
    groups = [
        Sample({"a": (numbers := torch.arange(count).float()[:, None])}, numbers, {}, first, of or count)
        for count in counts
    ]
    return Samples(groups, torch.Generator().manual_seed(0), torch.device("cpu"), Ranks())


def numbers(found: Samples) -> list[list[int]]:
    return [group.target.flatten().int().tolist() for group in found.groups]


def test_the_last_images_of_each_size_are_held_out() -> None:
    learned, held = samples(10, 3, 1).split(0.2)
    assert held is not None and numbers(held) == [[8, 9], [2], []]
    drawn = {int(x) for _ in range(200) for sample, _ in learned.draw(1) for x in sample.target.flatten()}
    assert [group.of for group in learned.groups] == [8, 2, 1] and drawn == set(range(8))
    assert [part.target.flatten().tolist() for part in held.parts(1)] == [[8.0], [9.0], [2.0]]
    whole = samples(4)
    assert whole.split(0) == (whole, None) and samples(1).split(0.5)[1] is None


@pytest.mark.parametrize(("first", "here"), [(0, []), (4, [2, 3]), (8, [0, 1, 2, 3])])
def test_each_rank_has_those_of_its_own(first: int, here: list[int]) -> None:
    """Of twelve images the last six are held out; this rank has four, from `first` on."""
    held = samples(4, first=first, of=12).split(0.5)[1]
    assert held is not None and numbers(held) == [here] and held.groups[0].of == 6


def test_the_weights_of_the_least_loss_are_kept() -> None:
    best = Best()
    for loss in (3.0, 2.0, 1.9999, 2.5):
        best.look(loss, {"w": torch.tensor(loss)})
    assert float(best.weights["w"]) == pytest.approx(1.9999) and best.in_vain == 2  # that was almost no reduction


def converted(**settings: Any) -> spikecal.Result:
    calibrator = Weights(images=32, batch=8, **settings)
    pipeline = spikecal.Pipeline(sweeps=((calibrator,),))
    return spikecal.convert(residual(), images(32), T=4, pipeline=pipeline)


def test_a_stage_stops_where_nothing_is_gained() -> None:
    """A rate so high that the first steps do everything, or harm."""
    quick = converted(optimiser="adam", lr=0.05, iterations=100, held_out=0.25)
    notes = [note for record in quick.records for note in record.notes]
    assert any("the held-out loss no longer fell, stopped after" in note for note in notes)
    patient = converted(optimiser="adam", lr=1e-4, iterations=5, held_out=0.25)  # so few that none is wasted
    assert not any("stopped" in note for record in patient.records for note in record.notes)


def test_the_paper_uses_all_images() -> None:
    assert all(c.held_out == 0 for c in spikecal.ACP.calibrators if isinstance(c, Weights))
    with pytest.raises(ConfigError, match=r"held-out images must be in \[0, 0.5\], not 0.9"):
        Weights(held_out=0.9)
