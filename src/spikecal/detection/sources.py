"""Sets with boxes from a short specification: `voc:PATH`, `coco:PATH` or a user's function."""

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image

from spikecal.data.factory import call, is_factory, load_factory
from spikecal.data.folder import SUFFIXES
from spikecal.detection.boxes import BoxData, Collector
from spikecal.errors import DataError

SPLITS = ("train", "val", "test")
NAMES = {  # what a split's lists, files and folders are called, the best first
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "val", "valid", "validation"),
}


def load_boxes(spec: str, split: str) -> BoxData:
    """The images and boxes of `spec` for "train", "val" or "test"."""
    if split not in SPLITS:
        raise DataError(f"split is one of {', '.join(SPLITS)}, not {split!r}")
    kind, _, rest = spec.partition(":")
    if kind in KINDS and rest:
        folder = Path(rest).expanduser()
        if not folder.is_dir():
            raise DataError(f"{spec}: there is no folder {folder}")
        return KINDS[kind](spec, folder, split)
    if is_factory(spec):
        made = call(spec, load_factory(spec), split)
        if not isinstance(made, BoxData):
            raise DataError(f"{spec} returned a {type(made).__name__}: return a spikecal.detection.BoxData")
        return made
    raise DataError(f"unknown data {spec!r}: for detection give {', '.join(f'{kind}:PATH' for kind in KINDS)} or "
                    f"file.py:function")  # fmt: skip


# -- Pascal VOC ----------------------------------------------------------------------------------------------------


def load_voc(spec: str, folder: Path, split: str) -> BoxData:
    """XML files in `Annotations` with images in `JPEGImages` and lists in `ImageSets`, or each beside its image.

    Labels are 1, 2, … in the order of the names, over all XML files there are: every split has the same.
    """
    everything, listed, images = _voc_layout(spec, folder, split)
    parsed = {path: _parsed(path) for path in everything}
    names = sorted({str(o[0]) for _, objects in parsed.values() for o in objects})
    numbers = {name: i + 1 for i, name in enumerate(names)}
    found = Collector(spec)
    for path in listed:
        fault, objects = parsed.get(path, ("no such file", []))
        image = None if fault else _image_beside(path.stem, images or path.parent)
        if fault or image is None:
            found.leave_out(str(path), fault or "there is no image to it")
            continue
        size = _size_of(image)
        if isinstance(size, str):
            found.leave_out(str(image), size)
            continue
        labels = [numbers[name] for name, _, _ in objects]
        found.add(str(image), size, [box for _, box, _ in objects], labels, [hard for _, _, hard in objects])
    return found.finish({number: name for name, number in numbers.items()})


def _voc_layout(spec: str, folder: Path, split: str) -> tuple[list[Path], list[Path], Path | None]:
    """All XML files, those of the split, and where the images are (None: beside them)."""
    annotations = folder / "Annotations"
    if annotations.is_dir():
        everything = sorted(annotations.glob("*.xml"))
        lists = folder / "ImageSets" / "Main"
        lists = lists if lists.is_dir() else folder / "ImageSets"
        chosen = next((p for name in NAMES[split] if (p := lists / f"{name}.txt").is_file()), None)
        if chosen is None and lists.is_dir():
            raise DataError(f"{spec}: {lists} has no list for {split!r} ({', '.join(NAMES[split])}.txt)")
        listed = everything if chosen is None else [annotations / f"{name}.xml" for name in _listed(chosen)]
        images = folder / "JPEGImages" if (folder / "JPEGImages").is_dir() else annotations
        return everything, listed, images
    parts = [p for names in NAMES.values() for name in names if (p := folder / name).is_dir()]
    everything = sorted({xml for part in (parts or [folder]) for xml in part.glob("*.xml")})
    if not everything:
        raise DataError(f"{spec}: {folder} has neither Annotations nor XML files")
    if not parts:
        return everything, everything, None
    own = next((p for name in NAMES[split] if (p := folder / name).is_dir()), None)
    if own is None:
        raise DataError(f"{spec}: {folder} has no folder for {split!r} ({', '.join(NAMES[split])})")
    return everything, sorted(own.glob("*.xml")), None


def _listed(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return [line.split()[0] for line in lines if line.strip()]


Objects = list[tuple[str, list[float], bool]]  # name, box, whether it is difficult


def _parsed(path: Path) -> tuple[str, Objects]:
    """What is wrong with an XML file, if anything, and its objects. A box without numbers is one of no area."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:
        return f"not XML: {error}", []
    objects: Objects = []
    for entry in root.iter("object"):
        name = (entry.findtext("name") or "").strip()
        if not name:
            return "an object without a name", []
        corners = [_number(entry.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
        # pixels are counted from 1, and the last one belongs to the box
        box = [corners[0] - 1, corners[1] - 1, corners[2], corners[3]]
        objects.append((name, box, (entry.findtext("difficult") or "0").strip() == "1"))
    return "", objects


def _number(text: str | None) -> float:
    with suppress(ValueError):
        return float(text or "")
    return math.nan


def _image_beside(stem: str, folder: Path) -> Path | None:
    names = (folder / f"{stem}{form}" for suffix in SUFFIXES for form in (suffix, suffix.upper()))
    return next((path for path in names if path.is_file()), None)


def _size_of(path: Path) -> tuple[int, int] | str:
    """Height and width as the image will be read, from its header; or what is wrong with it."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.width, image.height) if turned else (image.height, image.width)
    except Exception as error:  # decoders raise anything on damaged files
        return f"not a readable image: {type(error).__name__}"


# -- COCO ----------------------------------------------------------------------------------------------------------


def load_coco(spec: str, folder: Path, split: str) -> BoxData:
    """`annotations/instances_train*.json` with images in `train*`, or `train/_annotations.coco.json` beside them.

    Labels are the numbers of the categories.
    """
    path, folders = _coco_layout(spec, folder, split)
    whole = _coco_json(path)
    classes = {int(c["id"]): str(c.get("name", c["id"])) for c in whole["categories"]}
    if any(label < 1 for label in classes):
        classes = {label + 1: name for label, name in classes.items()}
        shift = 1  # 0 is the background
    else:
        shift = 0
    found = Collector(spec)
    by_image: dict[Any, list[dict[str, Any]]] = {}
    for annotation in whole["annotations"]:
        if isinstance(annotation, dict):
            by_image.setdefault(annotation.get("image_id"), []).append(annotation)
    for entry in whole["images"]:
        name = str(entry.get("file_name", "")) if isinstance(entry, dict) else ""
        image = next((p for f in folders if name and (p := f / name).is_file()), None)
        if image is None:
            found.leave_out(name or str(entry)[:80], "there is no such image")
            continue
        size = _stated(entry) or _size_of(image)
        if isinstance(size, str):
            found.leave_out(str(image), size)
            continue
        own = [a for a in by_image.get(entry.get("id"), []) if _label(a, shift) in classes]
        boxes = [_corners(a.get("bbox")) for a in own]
        found.add(str(image), size, boxes, [_label(a, shift) for a in own], [a.get("iscrowd") == 1 for a in own])
    return found.finish(classes)


def _coco_layout(spec: str, folder: Path, split: str) -> tuple[Path, list[Path]]:
    """The JSON file of the split, and the folders its images may be in."""
    for name in NAMES[split]:
        beside = folder / name / "_annotations.coco.json"
        if beside.is_file():
            return beside, [folder / name]
        for pattern in (f"annotations/instances_{name}*.json", f"annotations/{name}*.json", f"{name}*.json"):
            for path in sorted(folder.glob(pattern)):
                part = path.stem.removeprefix("instances_")
                return path, [folder / part, folder / "images" / part, folder / name, folder / "images", folder]
    wanted = " or ".join(f"annotations/instances_{name}*.json" for name in NAMES[split])
    raise DataError(f"{spec}: {folder} has no {wanted}")


def _coco_json(path: Path) -> dict[str, list[Any]]:
    try:
        whole = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    parts = ("images", "annotations", "categories")
    if not isinstance(whole, dict) or not all(isinstance(whole.get(part), list) for part in parts):
        raise DataError(f"{path} is not in COCO's format: it needs lists of {', '.join(parts)}")
    if not all(isinstance(c, dict) and isinstance(c.get("id"), int) for c in whole["categories"]):
        raise DataError(f"{path} is not in COCO's format: every category needs a number as its id")
    return whole


def _label(annotation: dict[str, Any], shift: int) -> int:
    label = annotation.get("category_id")
    return label + shift if isinstance(label, int) else -1


def _corners(box: Any) -> list[float]:
    """x, y, width, height into corners; what is no such thing into a box of no area."""
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(x, int | float) for x in box):
        return [math.nan] * 4
    x, y, width, height = map(float, box)
    return [x, y, x + width, y + height]


def _stated(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Height and width by the JSON file: opening the headers of a hundred thousand images takes minutes."""
    height, width = entry.get("height"), entry.get("width")
    if isinstance(height, int) and isinstance(width, int) and min(height, width) > 0:
        return height, width
    return None


KINDS: dict[str, Callable[[str, Path, str], BoxData]] = {"voc": load_voc, "coco": load_coco}
