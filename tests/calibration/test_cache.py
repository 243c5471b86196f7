"""Values between stages come back as they were put, packed or not, from memory or from disk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from spikecal.calibration.cache import Cache, Train, joined_in_time, over_time, steps_of

CPU = torch.device("cpu")
ALPHABETS = [(0, 1), (-1, 0, 1), (0, 1, 2, 3), (-2, -1, 0, 1, 2)]


def levels(alphabet: tuple[int, ...], *shape: int) -> Tensor:
    drawn = torch.randint(alphabet[0], alphabet[-1] + 1, shape, generator=torch.Generator().manual_seed(0))
    return drawn.bool() if alphabet == (0, 1) else drawn.to(torch.int8)


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("shape", [(7, 2, 3, 3, 5), (7, 3, 5), (8, 2, 4, 2, 2)])  # 90, 15 and 32 numbers a step
def test_trains_are_joined_and_cut_at_any_step(
    alphabet: tuple[int, ...], shape: tuple[int, ...], tmp_path: Path
) -> None:
    whole = levels(alphabet, *shape)
    height = torch.tensor([0.5, 2.0, 3.0, 0.25])[: shape[2] if len(shape) == 5 else 1]
    height = height.reshape(1, 1, -1, 1, 1) if len(shape) == 5 else height
    parts = [Train.pack(part, height, alphabet) for part in whole.split(3)]
    train = joined_in_time([*parts], 3)
    expected = whole * height
    assert torch.equal(over_time(train), expected)
    for start in range(shape[0]):
        assert torch.equal(steps_of(train, start, 2 if start < shape[0] - 1 else 1), expected[start : start + 2])
    cache = Cache(0, CPU, tmp_path)
    cache.put(("layer", 0, "snn"), train)
    assert torch.equal(over_time(cache.get(("layer", 0, "snn"))), expected)


def test_what_is_the_same_at_every_step_stays_one_step() -> None:
    value = torch.arange(8.0).reshape(8, 1)
    assert torch.equal(over_time(joined_in_time([*value.split(3)], 3)), value)
    assert torch.equal(over_time(joined_in_time([value[:1]] * 3, 3)), value[:1])
    assert torch.equal(over_time(joined_in_time([*value.split(1)], 1)), value)


def test_what_does_not_fit_goes_to_disk_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = Cache(40, CPU)
    keys = [("a.b", 0, "ann"), ("a_b", 0, "ann"), ("a/b", 0, "ann"), ("a.b", 1, "ann")]
    for number, key in enumerate(keys):
        cache.put(key, torch.full((1, 4), float(number)))  # 16 bytes each: two fit
    assert cache.used == 32
    assert len([*tmp_path.rglob("*.ann")]) == 2
    assert [float(over_time(cache.get(key))[0, 0]) for key in keys] == [0, 1, 2, 3]
    cache.free("a.b")
    assert cache.used == 16
    assert [float(over_time(cache.get(key))[0, 0]) for key in keys[1:3]] == [1, 2]
    cache.close()
    assert not [*tmp_path.iterdir()]


def test_room_is_made_first_of_what_can_be_computed_again() -> None:
    cache = Cache(48, CPU)
    kept, current = ("a", 0, "ann"), ("a", 0, "current")
    cache.put(kept, torch.ones(1, 4))
    cache.put(current, torch.ones(1, 1, 4))
    assert cache.make_room(16) and cache.find(current) is not None
    assert cache.make_room(32)
    assert cache.find(current) is None and cache.used == 16
    assert not cache.make_room(49)
    assert torch.equal(over_time(cache.get(kept)), torch.ones(1, 4))
    cache.close()
