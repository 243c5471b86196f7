"""Recipes: the paper's numbers, learning rates against torch's own schedulers, TOML."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spikecal.errors import ConfigError
from spikecal.training.recipes import CIFAR, CIFAR_NOBN, IMAGENET, PRESETS, QUICK, DetectionRecipe, Recipe, paper_recipe


def test_presets_are_the_papers() -> None:
    assert (CIFAR.epochs, CIFAR.lr, CIFAR.momentum, CIFAR.weight_decay) == (300, 0.1, 0.9, 5e-4)
    assert (CIFAR.schedule, CIFAR.warm_up, CIFAR.pad, CIFAR.hole, CIFAR.nesterov) == ("cosine", 0, 4, 16, False)
    assert CIFAR.augment == ("crop", "flip", "autoaugment-cifar10", "cutout")
    assert CIFAR_NOBN == CIFAR.changed(lr=0.005, weight_decay=1e-4)
    assert (IMAGENET.epochs, IMAGENET.lr, IMAGENET.momentum, IMAGENET.weight_decay) == (120, 0.1, 0.9, 1e-4)
    assert (IMAGENET.schedule, IMAGENET.label_smoothing, IMAGENET.ema) == ("cosine", 0.1, 0.999)
    assert IMAGENET.augment == ("resized-crop", "flip", "colour-jitter")
    assert IMAGENET.jitter == (0.2, 0.2, 0.2, 0.1)
    assert [paper_recipe(side, bn) for side, bn in ((32, True), (32, False), (224, True))] == [
        "cifar",
        "cifar-nobn",
        "imagenet",
    ]


def test_epochs_are_divided_evenly_among_the_scales() -> None:
    recipe = QUICK.changed(epochs=7, scales=[0.5, 0.75, 1.0])
    assert [recipe.scale(epoch) for epoch in range(7)] == [0.5, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]
    assert {QUICK.scale(epoch) for epoch in range(QUICK.epochs)} == {1.0}
    for bad in ([0.5, 0.0], [1.5]):
        with pytest.raises(ConfigError, match="scales"):
            QUICK.changed(scales=bad)
    with pytest.raises(ConfigError, match="detector"):
        PRESETS["quick-detect"].changed(scales=[0.5])


def scheduler(name: str, total: int, warm_up: float) -> list[float]:
    """Rates of a scheduler of torch's, at peak 0.5."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5)
    schedule: Any
    if name == "cosine":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    else:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.5, total, pct_start=warm_up, cycle_momentum=False)
    found = []
    for _ in range(total):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step() if len(found) < total else None
    return found


@pytest.mark.parametrize(("total", "warm_up"), [(40, 0.2), (1000, 0.25), (17, 0.3)])
def test_one_cycle_is_torchs_to_the_bit(total: int, warm_up: float) -> None:
    recipe = QUICK.changed(lr=0.5, warm_up=warm_up)
    assert [recipe.learning_rate(step, total) for step in range(total)] == scheduler("one-cycle", total, warm_up)


def test_cosine_is_torchs_and_the_closed_form() -> None:
    recipe = CIFAR.changed(lr=0.5)
    rates = [recipe.learning_rate(step, 60) for step in range(60)]
    assert rates == pytest.approx(scheduler("cosine", 60, 0))
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * step / 60)) for step in range(60)])


def test_cosine_warms_up_in_equal_steps() -> None:
    recipe = CIFAR.changed(lr=0.5, warm_up=0.1)
    rates = [recipe.learning_rate(step, 50) for step in range(50)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[5:] == pytest.approx([0.25 * (1 + math.cos(math.pi * step / 45)) for step in range(45)])


@given(
    schedule=st.sampled_from(["cosine", "one-cycle"]),
    total=st.integers(1, 300),
    warm_up=st.floats(0, 1, exclude_max=True),
    share=st.floats(0, 1),
)
def test_rates_stay_between_nothing_and_the_peak(schedule: str, total: int, warm_up: float, share: float) -> None:
    rate = CIFAR.changed(schedule=schedule, warm_up=warm_up).learning_rate(int(share * (total - 1)), total)
    assert 0 <= rate <= CIFAR.lr * (1 + 1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip_through_plain_data(name: str) -> None:
    base = "coco" if isinstance(PRESETS[name], DetectionRecipe) else "cifar"
    assert Recipe.from_dict({"preset": base, **PRESETS[name].to_dict()}) == PRESETS[name]


def test_toml_changes_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('preset = "imagenet"\nepochs = 3\nlr = 1\nnesterov = true\naugment = ["flip"]\nema = 0.5\n')
    expected = IMAGENET.changed(epochs=3, lr=1.0, nesterov=True, augment=("flip",), ema=0.5)
    assert Recipe.from_toml(path) == expected
    path.write_text("epochs = 3\n")
    assert Recipe.from_toml(path, base=QUICK) == QUICK.changed(epochs=3)
    with pytest.raises(ConfigError, match=r"r\.toml: a recipe needs a preset"):
        Recipe.from_toml(path)


def test_the_documented_file_is_complete() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "recipe.toml"
    assert Recipe.from_toml(path).epochs == 150
    text = path.read_text()
    assert all(f"\n{name} = " in text for name in IMAGENET.to_dict())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": 1.5}, "epochs cannot be 1.5"),
        ({"epochs": True}, "epochs cannot be True"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": math.nan}, "lr cannot be nan"),
        ({"lr": math.inf}, "lr cannot be inf"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 0.0, "nesterov": True}, "nesterov"),
        ({"nesterov": 1}, "nesterov cannot be 1"),
        ({"weight_decay": -1e-4}, "weight_decay"),
        ({"schedule": "step"}, "one of cosine, one-cycle"),
        ({"warm_up": 1.0}, "warm_up"),
        ({"ema": 1.0}, "ema"),
        ({"precision": "float16"}, "precision must be float32 or bfloat16"),
        ({"augment": ["blur"]}, "no augmentation 'blur': choose from crop"),
        ({"augment": "flip"}, "augment cannot be 'flip'"),
        ({"augment": ["flip", "flip"]}, "nothing twice"),
        ({"augment": ["crop", "resized-crop"]}, "at most one crop"),
        ({"jitter": [0.1, 0.1]}, "brightness, contrast"),
        ({"depth": 3}, "no setting 'depth'"),
        ({"preset": "slow"}, "no recipe 'slow': choose from cifar"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Recipe.from_dict(settings, base=QUICK)
