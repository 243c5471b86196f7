"""Exported weights: half precision only where it does no harm."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spikecal.data.card import Card
from spikecal.data.sources import Data, load_data
from spikecal.training.export import export_weights
from spikecal.zoo.models import load_model

CARD = Card(name="line", size=(1, 1))


def classifier(first: float, second: float) -> tuple[nn.Module, Data]:
    """Two classes: the logit of the first is `first` everywhere, that of the second is `second`."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([first, second]))
    return model, Data(name="dots", images=torch.zeros(8, 1, 1, 1), labels=torch.ones(8, dtype=torch.int64))


@pytest.mark.parametrize(
    ("logits", "dtype"),
    [((1.0, 2.0), torch.float16), ((4097.0, 4098.0), torch.float32), ((1.0, 1e6), torch.float32)],
)
def test_half_precision_only_where_accuracy_holds(
    tmp_path: Path, logits: tuple[float, float], dtype: torch.dtype
) -> None:
    model, data = classifier(*logits)  # above 4096 half precision has every fourth number, above 65504 none
    before = {key: value.clone() for key, value in model.state_dict().items()}
    said = export_weights(model, tmp_path / "w.safetensors", data, CARD)
    stored = load_file(tmp_path / "w.safetensors")
    assert f"torch.{said}" == str(dtype)
    assert {value.dtype for value in stored.values()} == {dtype}
    assert all(torch.equal(stored[key], value.to(dtype)) for key, value in before.items())
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_single_precision_unless_asked(tmp_path: Path) -> None:
    model, _ = classifier(1, 2)
    assert export_weights(model, tmp_path / "w.safetensors", None, CARD) == "float32"


def test_exported_weights_load_into_the_model(tmp_path: Path) -> None:
    model, card = load_model("resnet20")
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert export_weights(model, tmp_path / "w.safetensors", load_data("demo", "train"), card) == "float16"
    again, _ = load_model("resnet20", tmp_path / "w.safetensors")
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name  # these weights were halves before
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
