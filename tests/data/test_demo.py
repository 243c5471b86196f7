"""The embedded images: the packing, and what is in the package."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spikecal.data.sets.demo import demo_folder, load_demo, pack, unpack
from spikecal.data.sources import load_data
from spikecal.errors import DataError


@given(st.integers(1, 100), st.integers(0, 2**31))
def test_unpack_is_the_inverse_of_pack(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    assert torch.equal(unpack(pack(images), count), images)


def test_a_tile_is_an_image() -> None:
    images = torch.zeros((40, 3, 32, 32), dtype=torch.uint8)
    images[33, 1, 4, 5] = 200  # second row of tiles, second column
    sheet = pack(images)
    assert sheet.shape == (64, 1024, 3)
    assert sheet[32 + 4, 32 + 5].tolist() == [0, 200, 0]


def test_what_is_embedded() -> None:
    calibration, test = load_data("demo", "train"), load_data("demo", "test")
    assert (len(calibration), len(test)) == (1024, 1000)
    for data in (calibration, test):
        assert data.labels is not None
        assert data.labels.bincount(minlength=10).min() > len(data) // 20  # every class is there
        assert torch.as_tensor(data.images).unique(dim=0).shape[0] == len(data)
    both = torch.cat([torch.as_tensor(data.images).flatten(1) for data in (calibration, test)])
    assert both.unique(dim=0).shape[0] == len(calibration) + len(test)  # no test image is calibrated on
    assert sum(len(path.read_bytes()) for path in demo_folder().iterdir()) < 10_000_000


def test_damaged_sheets_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="install spikecal again"):
        load_demo("test", tmp_path)
    (tmp_path / "labels.json").write_text(json.dumps({"test": [0, 1, 2]}))
    (tmp_path / "test.png").write_bytes((demo_folder() / "test.png").read_bytes())
    with pytest.raises(DataError, match="does not hold 3 tiles"):
        load_demo("test", tmp_path)


def test_unpack_refuses_other_sheets() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        unpack(np.zeros((33, 1024, 3), np.uint8), 5)
