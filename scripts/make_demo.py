"""Makes what the package carries for its demo: a trained ResNet-20 and a few CIFAR-10 images.

    python scripts/make_demo.py --data ROOT

trains with the `quick` recipe (about an hour on two cores; killed, it goes on after the last finished epoch), then
writes src/spikecal/demo/: weights, two sheets of images, their labels, and a card with the accuracies and the recipe.
"""

import argparse
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from spikecal.analysis.evaluate import accuracy
from spikecal.data.demo import SHEETS, pack
from spikecal.data.prepare import Loader
from spikecal.data.sources import Data, data_root, load_data, subset
from spikecal.training.quick import Quick, train
from spikecal.zoo.models import ZOO, build_model
from spikecal.zoo.weights import load_weights

NAME = "resnet20"
COUNTS = {"train": 1024, "test": 1000}
TOLERANCE = 0.0005  # of accuracy on training images, for storing the weights in half precision
CHECKED = 10_000  # how many training images that is measured on: nothing is chosen on test images
OUT = Path(__file__).resolve().parents[1] / "src" / "spikecal" / "demo"

log = logging.getLogger("make_demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_root(), help="folder that holds CIFAR-10")
    parser.add_argument("--checkpoint", type=Path, help="state after every epoch [ROOT/resnet20-quick.pt]")
    parser.add_argument("--epochs", type=int, default=Quick().epochs)
    parser.add_argument("--seed", type=int, default=Quick().seed)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    recipe = Quick(epochs=arguments.epochs, seed=arguments.seed)
    sets = {split: load_data("cifar10", split, arguments.data) for split in SHEETS}
    model = trained(sets["train"], recipe, arguments.checkpoint or arguments.data / f"{NAME}-quick.pt")
    parts = {split: subset(data, COUNTS[split], recipe.seed) for split, data in sets.items()}

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    dtype = export_weights(model, subset(sets["train"], CHECKED, recipe.seed), out / f"{NAME}.safetensors")
    stored, card = build_model(NAME)
    load_weights(stored, out / f"{NAME}.safetensors")
    for split, sheet in SHEETS.items():
        save_sheet(parts[split], out / f"{sheet}.png")
    labels = {sheet: labels_of(parts[split]).tolist() for split, sheet in SHEETS.items()}
    replace_text(out / "labels.json", json.dumps(labels))
    facts = {
        "model": NAME,
        "weights": dtype,
        "accuracy": {
            f"test, all {len(sets['test']):,}": accuracy(stored, Loader(sets["test"], card, 500)),
            f"test, the {len(parts['test']):,} here": accuracy(stored, Loader(parts["test"], card, 500)),
        },
        "training": {"recipe": "quick", **asdict(recipe), "data": "cifar10", "images": len(sets["train"])},
        "images": {sheet: len(parts[split]) for split, sheet in SHEETS.items()},
        "images_seed": recipe.seed,
        "torch": torch.__version__.partition("+")[0],
        "made_by": f"scripts/make_demo.py --epochs {recipe.epochs} --seed {recipe.seed}",
    }
    replace_text(out / "card.json", json.dumps(facts, indent=2) + "\n")
    size = sum(path.stat().st_size for path in out.iterdir())
    log.info("%s: %s, %.2f MB in all", out, facts["accuracy"], size / 1e6)


def trained(data: Data, recipe: Quick, checkpoint: Path) -> nn.Module:
    """The network after the whole recipe, from `checkpoint` where that has got so far."""
    card = ZOO[NAME].card
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (card.mean, card.std))
    torch.manual_seed(recipe.seed)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model, _ = build_model(NAME)
    return train(model, torch.as_tensor(data.images), labels_of(data), mean, std, recipe, checkpoint)


def labels_of(data: Data) -> Tensor:
    if data.labels is None:
        raise SystemExit(f"{data.name} has no labels")
    return data.labels


def export_weights(model: nn.Module, data: Data, path: Path) -> str:
    """Half precision if the accuracy on `data` holds, single otherwise; says which."""
    state = {key: tensor.contiguous().clone() for key, tensor in model.state_dict().items()}
    half = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    loader = Loader(data, ZOO[NAME].card, 500)
    rounded, _ = build_model(NAME)
    rounded.load_state_dict(half)
    before, after = accuracy(model, loader), accuracy(rounded, loader)
    log.info("accuracy %.4f, in half precision %.4f", before, after)
    holds = abs(before - after) <= TOLERANCE
    replace_file(path, lambda part: save_file(half if holds else state, part))
    return "float16" if holds else "float32"


def save_sheet(data: Data, path: Path) -> None:
    sheet = Image.fromarray(pack(torch.as_tensor(data.images)))
    replace_file(path, lambda part: sheet.save(part, format="PNG", optimize=True))


def replace_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_text(text))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_suffix(".part")
    write(part)
    os.replace(part, path)


if __name__ == "__main__":
    main()
