"""Early exit on ResNet-20: rules set on training images and on unseen images, and whether they keep their promise.

    python bench/exits.py DIR

DIR has CIFAR-10. Writes bench/results/exits.json: for each source of images for the rule, what 400 test images show.
"""

import argparse
import json
from pathlib import Path

import torch

import spikecal
from spikecal.data.images import Data
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

RESULTS = Path(__file__).parent / "results" / "exits.json"
T, PIPELINE, PROMISE, IMAGES = 32, "lcp", 0.9, 400
CALIBRATION = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    root = parser.parse_args().data
    network, card = load_model("resnet20", None)
    train, test = (load_data("cifar10", split, root) for split in ("train", "test"))

    def images(data: Data, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Some of the images in a fixed order, and their labels."""
        whole = subset(data, first + count, 0)
        prepared = Prepared(whole, card)
        assert whole.labels is not None
        places = range(first, first + count)
        return torch.stack([prepared[i] for i in places]), whole.labels[list(places)]

    snn = spikecal.convert(network, images(train, 0, CALIBRATION)[0], T=T, pipeline=PIPELINE, records=False).snn
    tested = images(test, 0, IMAGES)
    sources = {
        "training images": images(train, CALIBRATION, IMAGES)[0],
        "images that nobody has seen": images(test, IMAGES, IMAGES)[0],
    }
    found = {}
    for name, source in sources.items():
        rule = spikecal.exit_rule(snn, source, ann=network, agreement=PROMISE)
        measured = spikecal.evaluate(snn, tested, ann=network, exit=rule)
        assert measured.exits is not None and measured.energy is not None
        found[name] = measured.exits.to_dict() | {
            "without": {
                "accuracy": measured.accuracy[-1],
                "agreement": measured.agreement[-1],
                "energy": measured.energy.ratio,
                "spikes": measured.spikes_per_image,
            }
        }
    settings = {"network": "resnet20", "T": T, "pipeline": PIPELINE, "promise": PROMISE, "images": IMAGES}
    RESULTS.write_text(json.dumps({**settings, "machine": machine(), "rules": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
