"""Makes the data of the demo in the package: a trained ResNet-20 and a few CIFAR-10 images.

    python scripts/make_demo.py --data ROOT

trains with the `quick` recipe (about an hour on two cores; killed, it goes on after the last finished epoch), then
writes src/spikecal/demo/: weights, two sheets of images, their labels, and a card with the accuracies and the recipe.
"""

import argparse
import io
import json
import logging
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from spikecal.data.prepare import Loader
from spikecal.data.sets.demo import SHEETS, pack
from spikecal.data.sources import Data, data_root, load_data, subset
from spikecal.evaluation import accuracy
from spikecal.files import write_whole
from spikecal.training.export import export_weights, training_facts, write_card
from spikecal.training.loop import train
from spikecal.training.recipes import QUICK, Recipe
from spikecal.zoo.models import build_model
from spikecal.zoo.weights import load_weights

NAME = "resnet20"
COUNTS = {"train": 1024, "test": 1000}
OUT = Path(__file__).resolve().parents[1] / "src" / "spikecal" / "demo"

log = logging.getLogger("make_demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_root(), help="folder that holds CIFAR-10")
    parser.add_argument("--checkpoint", type=Path, help="state after every epoch [ROOT/resnet20-quick.pt]")
    parser.add_argument("--epochs", type=int, default=QUICK.epochs)
    parser.add_argument("--seed", type=int, default=QUICK.seed)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    recipe = QUICK.changed(epochs=arguments.epochs, seed=arguments.seed)
    sets = {split: load_data("cifar10", split, arguments.data) for split in SHEETS}
    model = trained(sets["train"], recipe, arguments.checkpoint or arguments.data / f"{NAME}-quick.pt")
    parts = {split: subset(data, COUNTS[split], recipe.seed) for split, data in sets.items()}

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    stored, card = build_model(NAME)
    dtype = export_weights(model, out / f"{NAME}.safetensors", sets["train"], card, recipe.seed)
    load_weights(stored, out / f"{NAME}.safetensors")
    for split, sheet in SHEETS.items():
        save_sheet(parts[split], out / f"{sheet}.png")
    labels = {sheet: labels_of(parts[split]).tolist() for split, sheet in SHEETS.items()}
    write_whole(out / "labels.json", json.dumps(labels))
    facts = {
        "model": NAME,
        "weights": dtype,
        "accuracy": {
            f"test, all {len(sets['test']):,}": accuracy(stored, Loader(sets["test"], card, 500)),
            f"test, the {len(parts['test']):,} here": accuracy(stored, Loader(parts["test"], card, 500)),
        },
        "training": training_facts(recipe, "quick", sets["train"]),
        "images": {sheet: len(parts[split]) for split, sheet in SHEETS.items()},
        "images_seed": recipe.seed,
        "torch": torch.__version__.partition("+")[0],
        "made_by": f"scripts/make_demo.py --epochs {recipe.epochs} --seed {recipe.seed}",
    }
    write_card(out / "card.json", facts)
    size = sum(path.stat().st_size for path in out.iterdir())
    log.info("%s: %s, %.2f MB in all", out, facts["accuracy"], size / 1e6)


def trained(data: Data, recipe: Recipe, checkpoint: Path) -> nn.Module:
    """The network after the whole recipe, from `checkpoint` where that has got so far."""
    torch.manual_seed(recipe.seed)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model, card = build_model(NAME)
    train(model, data, card, recipe, checkpoint)
    return model


def labels_of(data: Data) -> Tensor:
    if data.labels is None:
        raise SystemExit(f"{data.name} has no labels")
    return data.labels


def save_sheet(data: Data, path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(pack(torch.as_tensor(data.images))).save(buffer, format="PNG", optimize=True)
    write_whole(path, buffer.getvalue())


if __name__ == "__main__":
    main()
