"""The named datasets: where they are, how to read them, how to fetch them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from spikecal.data.download import Report
from spikecal.data.folder import class_folders, image_files
from spikecal.data.images import Copy, Data
from spikecal.data.sets import cifar10, cifar100, demo, fashion_mnist, imagenet

IMAGENET = "imagenet"  # its folder under the data root
WHOLE = {"demo": "cifar10"}  # datasets that others are part of


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A named dataset; `fetch` is None if it cannot be fetched, and `how` says how to get it."""

    about: str
    load: Callable[[Path, str], Data]
    find: Callable[[Path], Copy | None]
    fetch: Callable[[Path, Report | None], None] | None
    how: str


def _tensors(
    name: str,
    about: str,
    load: Callable[[Path, str], tuple[Tensor, Tensor]],
    find: Callable[[Path], Copy | None],
    fetch: Callable[[Path, Report | None], None],
    classes: tuple[str, ...],
) -> KnownSet:
    def loaded(root: Path, split: str) -> Data:
        images, labels = load(root, split)
        return Data(name=name, images=images, labels=labels, classes=classes)

    return KnownSet(about=about, load=loaded, find=find, fetch=fetch, how=f"spikecal datasets get {name}")


def _demo(_: Path, split: str) -> Data:
    images, labels = demo.load_demo(split)
    return Data(name="demo", images=images, labels=labels, classes=cifar10.CLASSES)


def _find_imagenet(root: Path) -> Copy | None:
    """Counts files by listing them; there are no checksums for a million files."""
    folder = root / IMAGENET
    counts = {
        split: sum(len(image_files(folder / name / of)[0]) for of in class_folders(folder / name) or ("",))
        for split, name in imagenet.FOLDERS.items()
        if (folder / name).is_dir()
    }
    return Copy(where=folder, images=counts, verified=None) if counts else None


KNOWN: dict[str, KnownSet] = {
    "cifar10": _tensors(
        "cifar10",
        "32×32 in colour, 10 classes",
        cifar10.load_cifar10,
        cifar10.find_cifar10,
        cifar10.fetch_cifar10,
        cifar10.CLASSES,
    ),
    "cifar100": _tensors(
        "cifar100",
        "32×32 in colour, 100 classes",
        cifar100.load_cifar100,
        cifar100.BINARY.find,
        cifar100.fetch_cifar100,
        cifar100.CLASSES,
    ),
    "fashion-mnist": _tensors(
        "fashion-mnist",
        "28×28 in grey, 10 classes",
        fashion_mnist.load_fashion_mnist,
        fashion_mnist.find_fashion_mnist,
        fashion_mnist.fetch_fashion_mnist,
        fashion_mnist.CLASSES,
    ),
    "imagenet": KnownSet(
        about="ILSVRC 2012, photographs in 1,000 classes",
        load=lambda root, split: imagenet.load_imagenet("imagenet", root / IMAGENET, split),
        find=_find_imagenet,
        fetch=None,
        how="request it at image-net.org, and put or link its train and val into imagenet/ here",
    ),
    "demo": KnownSet(
        about="a part of CIFAR-10, in the package",
        load=_demo,
        find=lambda _: Copy(where=None, images={"train": 1024, "test": 1000}, verified=None),
        fetch=None,
        how="",
    ),
}
