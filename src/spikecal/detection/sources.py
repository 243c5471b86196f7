"""Datasets with boxes from a short specification: `voc:PATH`, `coco:PATH`, `yolo:PATH` or a user's function."""

import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from spikecal.data.folder import SUFFIXES, open_image
from spikecal.detection.boxes import BoxData, Collector, Size
from spikecal.errors import ConfigError, DataError
from spikecal.files import read_regular
from spikecal.memory import free_memory
from spikecal.usercode import call, is_factory, load_factory

SPLITS = ("train", "val", "test")
MOST_XML, MOST_TEXT, MOST_JSON = 2**24, 2**26, 2**32  # bytes of one file
PARSED = 8  # bytes of memory that a byte of JSON may need
IN_PNG = (b"eXIf", b"tEXtRaw profile type exif", b"zTXtRaw profile type exif", b"iTXtXML:com.adobe.xmp")
NAMES = {  # of a split's lists, files and folders, in order of preference
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "val", "valid", "validation"),
}


def load_boxes(spec: str, split: str) -> BoxData:
    """The images and boxes of `spec` for "train", "val" or "test"."""
    if split not in SPLITS:
        raise DataError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
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


def chosen_boxes(spec: str | None, split: str) -> BoxData:
    """The named dataset, which is required: detectors come without one."""
    if spec is None:
        raise ConfigError("detection needs images with boxes: give --data voc:PATH, coco:PATH or yolo:PATH")
    return load_boxes(spec, split)


# -- Pascal VOC ----------------------------------------------------------------------------------------------------


def load_voc(spec: str, folder: Path, split: str) -> BoxData:
    """XML files in `Annotations` with images in `JPEGImages` and lists in `ImageSets`, or beside their images.

    Labels are 1, 2, … in the order of the names in all XML files, so they are the same for every split.
    """
    everything, listed, images = _voc_layout(spec, folder, split)
    parsed = {path: _parsed(path) for path in everything}
    names = sorted({str(o[0]) for one in parsed.values() for o in one.objects})
    numbers = {name: i + 1 for i, name in enumerate(names)}
    found = Collector(spec)
    for path in listed:
        one = parsed.get(path, Annotation("no such file"))
        image = None if one.fault else _image_beside(path.stem, images or path.parent)
        if image is None:
            found.leave_out(str(path), one.fault or "it has no image")
            continue
        size = _size_of(image)
        if isinstance(size, str):
            found.leave_out(str(image), size)
            continue
        labels = [numbers[name] for name, _, _ in one.objects]
        hard = [difficult for _, _, difficult in one.objects]
        found.add(str(image), size, [box for _, box, _ in one.objects], labels, hard, one.size)
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
    return [line.split()[0] for line in _listed_lines(path) if line.strip()]


Objects = Sequence[tuple[str, list[float], bool]]  # name, box, whether it is difficult


class Annotation(NamedTuple):
    """The content of an XML file, or its fault."""

    fault: str = ""
    objects: Objects = ()
    size: Size | None = None


def _parsed(path: Path) -> Annotation:
    """Read an XML file. A box without numbers becomes one without area."""
    try:
        text = read_regular(path, MOST_XML)
        if b"<!DOCTYPE" in text:
            return Annotation("not the XML of annotations: it declares entities")
        root = ElementTree.fromstring(text)
    except OSError as error:
        return Annotation(f"not XML: {error.strerror or error}")
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        return Annotation(f"not XML: {error}")
    objects = []
    for entry in root.iter("object"):
        name = (entry.findtext("name") or "").strip()
        if not name:
            return Annotation("an object without a name")
        corners = [_number(entry.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
        # pixels count from 1, and the last one belongs to the box
        box = [corners[0] - 1, corners[1] - 1, corners[2], corners[3]]
        objects.append((name, box, (entry.findtext("difficult") or "0").strip() == "1"))
    return Annotation("", objects, _stated(*(_number(root.findtext(f"size/{side}")) for side in ("height", "width"))))


def _number(text: str | None) -> float:
    with suppress(ValueError):
        return float(text or "")
    return math.nan


def _image_beside(stem: str, folder: Path) -> Path | None:
    names = (folder / f"{stem}{form}" for suffix in SUFFIXES for form in (suffix, suffix.upper()))
    return next((path for path in names if path.is_file()), None)


def _size_of(path: Path) -> Size | str:
    """The size that the image will have when read, from its header; or its fault."""
    try:
        with open_image(path) as image:
            width, height = image.size
            if image.format == "TIFF":  # for which only some versions of Pillow give the rotated size
                width, height = (int(image.tag_v2[tag]) for tag in (256, 257))  # type: ignore[attr-defined]
            return (width, height) if _orientation(image, path) in (5, 6, 7, 8) else (height, width)
    except Exception as error:  # decoders raise anything on damaged files
        return f"not a readable image: {type(error).__name__}"


def _orientation(image: Image.Image, path: Path) -> int:
    """How to rotate an image by its EXIF data; not at all if they are damaged."""
    with suppress(Exception):  # as when it is read
        # Pillow decodes a PNG's pixels to look behind them: only if there is something to find
        if image.format != "PNG" or _has_orientation(path):
            return int(image.getexif().get(0x0112, 1))
    return 1


def _has_orientation(path: Path) -> bool:
    """Whether a PNG has a chunk, before or after its pixels, that may tell how to rotate it."""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, name = int.from_bytes(head[:4], "big") + 4, head[4:]
            if name == b"IDAT":
                file.seek(length, os.SEEK_CUR)
                continue
            chunk = name + file.read(length)
            if chunk.startswith(IN_PNG):
                return True
    return False


def _stated(height: Any, width: Any) -> Size | None:
    """The size in an annotation, if it is valid: some have 0 x 0, or words."""
    if all(isinstance(side, int | float) and 0 < side < math.inf for side in (height, width)):
        return round(height), round(width)
    return None


# -- COCO ----------------------------------------------------------------------------------------------------------


def load_coco(spec: str, folder: Path, split: str) -> BoxData:
    """`annotations/instances_train*.json` with images in `train*`, or `train/_annotations.coco.json` beside them.

    Labels are the numbers of the categories.
    """
    path, folders = _coco_layout(spec, folder, split)
    whole = _coco_json(path)
    classes = {c["id"]: str(c.get("name", c["id"])) for c in whole["categories"]}
    shift = 1 if 0 in classes else 0  # 0 is the background
    classes = {label + shift: name for label, name in classes.items()}
    found = Collector(spec)
    by_image = _by_image(whole, found, path)
    for entry in whole["images"]:
        name = str(entry.get("file_name", "")) if isinstance(entry, dict) else ""
        # isfile and not is_file, which raises where a name is too long to be one
        image = next((p for f in folders if name and os.path.isfile(p := f / name)), None)
        if image is None:
            found.leave_out(name or str(entry)[:80], "there is no such image")
            continue
        own = by_image.pop(_key(entry.get("id")), None)
        size = "its id is missing, or that of another image" if own is None else _size_of(image)
        if own is None or isinstance(size, str):
            found.leave_out(str(image), str(size))
            continue
        labels = [_label(a, shift) for a in own]
        boxes = [_corners(a.get("bbox") if label in classes else None) for a, label in zip(own, labels, strict=True)]
        stated = _stated(entry.get("height"), entry.get("width"))
        found.add(str(image), size, boxes, labels, [a.get("iscrowd") == 1 for a in own], stated)
    return found.finish(classes)


def _by_image(whole: dict[str, list[Any]], found: Collector, path: Path) -> dict[Hashable, list[dict[str, Any]]]:
    """The annotations of every image's id; those of no image are dropped."""
    keys = (_key(entry.get("id")) for entry in whole["images"] if isinstance(entry, dict))
    by_image: dict[Hashable, list[dict[str, Any]]] = {key: [] for key in keys if key is not None}
    for annotation in whole["annotations"]:
        own = by_image.get(_key(annotation.get("image_id"))) if isinstance(annotation, dict) else None
        if own is None:
            found.drop(str(path), 1)
        else:
            own.append(annotation)
    return by_image


def _key(given: Any) -> Hashable:
    """An id, if it is valid: damaged files have lists there."""
    return given if isinstance(given, int | float | str) else None


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
        whole = json.loads(read_regular(path, min(MOST_JSON, free_memory() // PARSED)))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} is not JSON: {reason}") from error
    parts = ("images", "annotations", "categories")
    if not isinstance(whole, dict) or not all(isinstance(whole.get(part), list) for part in parts):
        raise DataError(f"{path} is not in COCO's format: it needs lists of {', '.join(parts)}")
    ids = [c.get("id") if isinstance(c, dict) else None for c in whole["categories"]]
    if not all(type(number) is int and 0 <= number < 1 << 31 for number in ids):
        raise DataError(f"{path} is not in COCO's format: every category needs a non-negative integer as its id")
    twice = next((number for number, count in Counter(ids).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two categories with the id {twice}: give every category its own")
    return whole


def _label(annotation: dict[str, Any], shift: int) -> int:
    label = annotation.get("category_id")
    return label + shift if type(label) is int else -1


def _corners(box: Any) -> list[float]:
    """Turn x, y, width, height into corners, and anything else into a box without area."""
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(x, int | float) for x in box):
        return [math.nan] * 4
    with suppress(OverflowError):  # JSON allows numbers of any length
        x, y, width, height = map(float, box)
        return [x, y, x + width, y + height]
    return [math.nan] * 4


# -- YOLO ----------------------------------------------------------------------------------------------------------


def load_yolo(spec: str, folder: Path, split: str) -> BoxData:
    """`images/train` with `labels/train`, or `train/images` with `train/labels`; one text file per image.

    A line is a class (from 0) and the box's centre, width and height as shares of the image's, or a polygon. Labels
    are one more than the class; their names are those in a `.yaml` file.
    """
    images, texts = _yolo_layout(spec, folder, split)
    names = yolo_names(folder)
    found, classes = Collector(spec), dict[int, str]()
    for image in sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES):
        size = _size_of(image)
        if isinstance(size, str):
            found.leave_out(str(image), size)
            continue
        text = texts / f"{image.stem}.txt"
        lines = _lines(text) if text.is_file() else []
        labels = [yolo_class(line) + 1 for line in lines]
        classes |= {label: names.get(label - 1, f"class {label - 1}") for label in labels if label > 0}
        boxes = [yolo_box(line if yolo_class(line) >= 0 else (), size) for line in lines]
        found.add(str(image), size, boxes, labels, [False] * len(lines))
    return found.finish({number + 1: name for number, name in names.items()} | classes)


def _yolo_layout(spec: str, folder: Path, split: str) -> tuple[Path, Path]:
    for name in NAMES[split]:
        for images, texts in ((f"images/{name}", f"labels/{name}"), (f"{name}/images", f"{name}/labels")):
            if (folder / images).is_dir():
                return folder / images, folder / texts
    if (folder / "images").is_dir() and not any((folder / "images" / n).is_dir() for of in NAMES.values() for n in of):
        return folder / "images", folder / "labels"
    wanted = " or ".join(f"images/{name}" for name in NAMES[split])
    raise DataError(f"{spec}: {folder} has no {wanted}, and no {NAMES[split][0]}/images")


def _lines(path: Path) -> list[list[float]]:
    return [[_number(word) for word in line.split()] for line in _listed_lines(path) if line.strip()]


def yolo_class(line: Sequence[float]) -> int:
    """The class at the start of a line; -1 if there is none."""
    return int(line[0]) if 0 <= line[0] < 1 << 31 and line[0] == int(line[0]) else -1


def yolo_box(line: Sequence[float], size: Size) -> list[float]:
    """The corners in pixels of a line's box, or around its polygon; without area if it is neither."""
    height, width = size
    shares = line[1:]
    if len(shares) == 4:
        x, y, w, h = shares
        return [(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height]
    if len(shares) < 6 or len(shares) % 2:
        return [math.nan] * 4
    across, down = shares[::2], shares[1::2]
    return [min(across) * width, min(down) * height, max(across) * width, max(down) * height]


def yolo_names(folder: Path) -> dict[int, str]:
    """The names of classes in the dataset's `.yaml` file, as a list or by number; none without such a file.

    Only the subset of YAML in such files is read: a full YAML reader would be one more dependency.
    """
    files = sorted((*folder.glob("*.yaml"), *folder.glob("*.yml")))
    text = "\n".join(line.partition("#")[0].rstrip() for file in files[:1] for line in _listed_lines(file))
    found = re.search(r"^names:[ \t]*(\[[^\]]*\]|\{[^}]*\}|(?:\n[ \t]*(?:-|\d+:)[^\n]*)+)", text, re.MULTILINE)
    if found is None:
        return {}
    body = found[1].strip()
    parts = re.split(r"[,\n]", body.strip("[]{}")) if body[0] in "[{" else body.splitlines()
    names = {}
    for i, part in enumerate(part.strip() for part in parts if part.strip()):
        numbered = re.fullmatch(r"(\d{1,9})\s*:(.*)", part)
        number, name = (int(numbered[1]), numbered[2]) if numbered else (i, part.removeprefix("- "))
        names[number] = name.strip().strip("\"'")
    return names


def _listed_lines(file: Path) -> list[str]:
    try:
        return read_regular(file, MOST_TEXT).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{file} cannot be read: {reason}") from error


KINDS: dict[str, Callable[[str, Path, str], BoxData]] = {"voc": load_voc, "coco": load_coco, "yolo": load_yolo}
