"""No figure changes unintentionally: every preset on every kind of network gives the recorded result."""

from pathlib import Path

import pytest
import torch
from golden_networks import NETWORKS, RESULTS, measured, ran
from safetensors.torch import load_file
from torch import Tensor

import spikecal
from spikecal.pipeline import PRESETS


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_conversion_gives_the_recorded_result(name: str, preset: str) -> None:
    compare(dict(measured(name, preset)), name, preset)


@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_the_first_format_run_as_they_did(name: str) -> None:
    snn = spikecal.load(Path(__file__).parent / "format1" / f"{name}.snn", T=4)
    compare(dict(ran(name, snn)), name, "acp")


def compare(found: dict[str, Tensor], name: str, preset: str) -> None:
    """What was found is what was recorded, integers exactly."""
    start = f"{name}/{preset}/"
    recorded = {key.removeprefix(start): value for key, value in load_file(RESULTS).items() if key.startswith(start)}
    assert found.keys() <= recorded.keys()
    assert {key for key in recorded if key.startswith(("spikes", "output"))} <= found.keys()
    for key, value in found.items():
        if key.startswith("spikes"):
            assert torch.equal(value, recorded[key]), key
        else:
            torch.testing.assert_close(value, recorded[key], rtol=1e-9, atol=1e-9, msg=key)
