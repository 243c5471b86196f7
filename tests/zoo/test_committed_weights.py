"""The weights behind the published tables are in the repository, with cards and commands that belong to them."""

import json
from pathlib import Path

import pytest

from spikecal.training.recipes import QUICK, Recipe
from spikecal.zoo.detectors import is_detector, load_detector
from spikecal.zoo.models import load_model

FOLDER = Path(__file__).parents[2] / "weights"
FILES = sorted(FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_weights_are_what_their_card_and_the_list_say(path: Path) -> None:
    card = json.loads(Path(f"{path}.json").read_text())
    file, _, name = card["model"].rpartition(":")
    assert card["file"] == path.name and name == path.stem and file in ("", "bench/small_networks.py")
    line = next(line for line in (FOLDER / "README.md").read_text().splitlines() if f"`{path.name}`" in line)
    assert f"spikecal train {card['model']} " in line
    if is_detector(card["model"]):
        load_detector(card["model"], path)
        assert f"{100 * card['test']['map']:.2f} %" in line
    else:
        load_model(f"{FOLDER.parent / file}:{name}" if file else name, path)
        assert f"{100 * card['accuracy']['share']:.2f} %" in line and card["accuracy"]["images"] == 10_000
        recipe = Recipe.from_toml(FOLDER / card["training"]["recipe"]).to_dict()
        defaults = QUICK.to_dict()  # settings that are younger than a card
        assert {key: card["training"].get(key, defaults[key]) for key in recipe} == recipe


def test_weights_stay_small() -> None:
    assert FILES and sum(path.stat().st_size for path in FILES) < 40e6
