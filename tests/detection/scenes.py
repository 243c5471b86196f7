"""Small scenes with boxes: squares and bars on noise, written as files, and a detector that is quick to run."""

import json
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from spikecal.vision import vision
from spikecal.zoo.detectors import DETECTION, _pyramid

Box = tuple[str, float, float, float, float]


def picture(path: Path, boxes: list[Box], size: tuple[int, int] = (48, 64), seed: int = 0) -> None:
    """An image of `size` (height, width): a square is bright, a bar is dark, the rest is noise."""
    height, width = size
    pixels = np.random.default_rng(seed).integers(90, 130, (height, width, 3), dtype=np.uint8)
    for name, x0, y0, x1, y1 in boxes:
        pixels[max(0, int(y0)) : max(0, int(y1)), max(0, int(x0)) : max(0, int(x1))] = 250 if name == "square" else 5
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def voc_xml(path: Path, boxes: list[Box], size: tuple[int, int] = (48, 64), difficult: int = 0) -> None:
    objects = "".join(
        f"<object><name>{escape(name)}</name><difficult>{difficult}</difficult><bndbox><xmin>{x0 + 1}</xmin>"
        f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for name, x0, y0, x1, y1 in boxes
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height></size>{objects}</annotation>"
    )


def scene(seed: int) -> list[Box]:
    """One square and one bar, apart from each other."""
    rng = np.random.default_rng(1000 + seed)
    x, y, u, v = (float(n) for n in rng.integers(2, 10, 4))
    return [("square", x, y, x + 16, y + 16), ("bar", 30 + u, v, 30 + u + 20, v + 10)]


def voc(folder: Path, train: int = 6, test: int = 3) -> Path:
    """A whole set in Pascal VOC's layout."""
    names = [f"scene{i}" for i in range(train + test)]
    for i, name in enumerate(names):
        picture(folder / "JPEGImages" / f"{name}.jpg", scene(i), seed=i)
        voc_xml(folder / "Annotations" / f"{name}.xml", scene(i))
    lists = folder / "ImageSets"
    lists.mkdir()
    (lists / "train.txt").write_text("\n".join(names[:train]) + "\n")
    (lists / "test.txt").write_text("\n".join(names[train:]) + "\n")
    return folder


def coco(folder: Path, split: str = "val2017", count: int = 3) -> Path:
    """The same in COCO's; the categories are 3 and 7."""
    images, annotations = [], []
    numbers = {"bar": 3, "square": 7}
    for i in range(count):
        picture(folder / split / f"{i:012d}.jpg", scene(i), seed=i)
        images.append({"id": 100 + i, "file_name": f"{i:012d}.jpg", "height": 48, "width": 64})
        for name, x0, y0, x1, y1 in scene(i):
            box = [x0, y0, x1 - x0, y1 - y0]
            entry = {
                "id": len(annotations),
                "image_id": 100 + i,
                "category_id": numbers[name],
                "bbox": box,
                "iscrowd": 0,
            }
            annotations.append(entry)
    write_coco(folder, split, images, annotations)
    return folder


def write_coco(folder: Path, split: str, images: list[dict], annotations: list[dict]) -> Path:  # type: ignore[type-arg]
    path = folder / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    categories = [{"id": 3, "name": "bar"}, {"id": 7, "name": "square"}]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def small_pyramid(channels: int, width: int = 8) -> nn.Module:
    return _pyramid(width, channels, (2, 3), vision("torchvision.ops.feature_pyramid_network").LastLevelMaxPool())


def tiny_detector(seed: int = 0, labels: int = 3) -> nn.Module:
    """A RetinaNet of 8 channels for images of 48 to 64 pixels, with BN statistics that are not the initial ones."""
    torch.manual_seed(seed)
    retinanet = vision(f"{DETECTION}.retinanet")
    anchors = vision(f"{DETECTION}.anchor_utils").AnchorGenerator(((8,), (16,), (32,)), ((0.5, 1.0, 2.0),) * 3)
    detector: nn.Module = retinanet.RetinaNet(
        small_pyramid(16),
        labels,
        min_size=48,
        max_size=64,
        anchor_generator=anchors,
        head=retinanet.RetinaNetHead(16, 3, labels),
        score_thresh=0.0,
        topk_candidates=20,
    )
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.uniform_(module.bias, 0.0, 0.5)
    # untrained, all scores are the same: spread them out, so that there is a best one
    nn.init.normal_(detector.head.classification_head.cls_logits.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    return detector.eval()


def images(
    count: int, seed: int = 0, sizes: tuple[tuple[int, int], ...] = ((48, 64), (64, 48), (40, 64))
) -> list[Tensor]:
    """Photographs of several sizes, smooth enough to have something on them."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        coarse = torch.rand((1, 3, 6, 8), generator=generator)
        found.append(nn.functional.interpolate(coarse, sizes[i % len(sizes)], mode="bilinear")[0])
    return found
