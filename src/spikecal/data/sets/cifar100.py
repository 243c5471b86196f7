"""CIFAR-100, in its authors' binary version."""

from pathlib import Path

from torch import Tensor

from spikecal.data.download import Checksum, Report, fetch_first
from spikecal.data.sets.cifar import Binary

NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CLASSES = tuple(NAMES.split())
BINARY = Binary(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    checksum=Checksum("md5", "03b5dce01913d631647c71ecec9e9cb8"),
    files={
        "train": {"train.bin": Checksum("md5", "6172c7755cfe09b2fe270c85cebc1b15")},
        "test": {"test.bin": Checksum("md5", "4499cfba6c016c1be1438163640a0898")},
    },
    label_bytes=2,  # the coarse label, then the fine one
    classes=len(CLASSES),
    pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
)


def load_cifar100(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and fine labels [N] of `split` ("train" or "test")."""
    found = BINARY.load(root, split)
    if found is None:
        raise BINARY.absent(root)
    return found


def fetch_cifar100(root: Path, report: Report | None = None) -> None:
    """Put the archive (169 MB) into `root`."""
    ways = ((BINARY.url, lambda: BINARY.fetch(root, report)),)
    fetch_first("CIFAR-100", ways, f"put {BINARY.archive} into {root}")
