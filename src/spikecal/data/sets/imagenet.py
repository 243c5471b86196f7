"""ImageNet in its usual form: `train` and `val` with a folder per WordNet id, or a flat `val` with a list."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from spikecal import vision
from spikecal.data.folder import ImageFiles, class_folders, image_files, labelled
from spikecal.data.images import Data
from spikecal.errors import DataError
from spikecal.files import read_regular

CLASSES = 1000
MOST_LIST = 2**26  # bytes of a list of classes
FOLDERS = {"train": "train", "test": "val"}
WORDNET = re.compile(r"n\d{8}")
LISTS = ("val.txt", "imagenet_2012_validation_synset_labels.txt", "LOC_val_solution.csv")
# The development kit's own list, whose numbers are explained only in a MATLAB file.
UNUSABLE = "ILSVRC2012_validation_ground_truth.txt"


def load_imagenet(spec: str, root: Path, split: str) -> Data:
    """The training or validation images under `root`; class indices are those of torchvision and timm."""
    folder = root / FOLDERS[split]
    if not folder.is_dir():
        raise DataError(
            f"{spec}: there is no folder {folder}: request ImageNet at image-net.org, and put or link it there "
            f"as {root / 'train'}/n01440764/*.JPEG and {root / 'val'}/n01440764/*.JPEG, or give imagenet:PATH"
        )
    names = class_folders(folder)
    if not names and split == "test":
        return _flat(spec, root, folder)
    stray = next((name for name in names if not WORDNET.fullmatch(name)), None)
    if not names or stray is not None:
        found = "no folders" if stray is None else f"a folder {stray!r}"
        raise DataError(f"{spec}: {folder} holds {found}, not WordNet ids such as n01440764, as ImageNet does")
    numbers = _numbers(spec, root, names)
    return labelled(spec, folder, sorted(numbers), {name: numbers[name] for name in names})


def _numbers(spec: str, root: Path, names: list[str]) -> dict[str, int]:
    """WordNet id -> class index, for all 1,000 classes; a subset is numbered as in the whole."""
    train = root / FOLDERS["train"]
    for known in (names, class_folders(train) if train.is_dir() else [], _timm_ids()):
        if len(known) == CLASSES and set(names) <= set(known):
            return {name: number for number, name in enumerate(sorted(known))}
    raise DataError(
        f"{spec}: there are {len(names):,} classes, but ImageNet has {CLASSES:,}, so their indices are unknown: "
        f"pip install timm, which lists them, or use folder:PATH for a network of these classes"
    )


def _timm_ids() -> list[str]:
    if find_spec("timm") is None:
        return []
    vision.prepare()
    names: list[str] = import_module("timm.data").ImageNetInfo("imagenet-1k").label_names()
    return names


def _flat(spec: str, root: Path, folder: Path) -> Data:
    """Validation images without class folders, by the first list of classes found."""
    files, _ = image_files(folder)
    if not files:
        raise DataError(f"{spec}: {folder} holds neither class folders nor images")
    lists = [place / name for name in LISTS for place in (root, folder) if (place / name).is_file()]
    if not lists:
        also = f" ({UNUSABLE} numbers classes in a different order)" if (root / UNUSABLE).is_file() else ""
        raise DataError(
            f"{spec}: {folder} holds {len(files):,} images but no class folders{also}: sort them into folders named by "
            f"WordNet id, or put one of {', '.join(LISTS)} into {root}; a line of {LISTS[0]} is `FILE CLASS`, with "
            f"classes 0..{CLASSES - 1} in the order of sorted WordNet ids"
        )
    listed = _read_list(lists[0])
    classes = [listed.get(Path(file).stem) or listed.get(_position(file)) for file in files]
    missing = next((file for file, found in zip(files, classes, strict=True) if found is None), None)
    if missing is not None:
        raise DataError(f"{spec}: {lists[0]} has no class for {missing}")
    names = sorted({found for found in classes if found is not None and WORDNET.fullmatch(found)})
    numbers = _numbers(spec, root, names) if names else {}
    labels = [numbers.get(found or "", found) for found in classes]
    wrong = next((x for x in labels if not str(x).isdecimal() or int(x or 0) >= CLASSES), None)
    if wrong is not None:
        raise DataError(f"{spec}: {lists[0]} has a class {wrong!r}, not a WordNet id or a number below {CLASSES:,}")
    found = torch.tensor([int(x or 0) for x in labels])
    return Data(name=spec, images=ImageFiles(files), labels=found, classes=tuple(sorted(numbers)))


def _read_list(path: Path) -> dict[str, str]:
    """File name without suffix -> class, from lines `FILE CLASS …`; line number -> class, from lines `CLASS`."""
    try:
        lines = read_regular(path, MOST_LIST).decode().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} cannot be read: {reason}") from error
    parts = [line.replace(",", " ").split() for line in lines]
    return {
        (Path(words[0]).stem if len(words) > 1 else str(number)): words[min(1, len(words) - 1)]
        for number, words in enumerate(parts, 1)
        if words
    }


def _position(file: str) -> str:
    """The number at the end of a name such as ILSVRC2012_val_00000293.JPEG, which is its line in a bare list."""
    found = re.search(r"(\d+)$", Path(file).stem)
    return str(int(found[1])) if found else ""
