"""Datasets with boxes: both formats, every layout, and damaged files."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from detection.scenes import coco, picture, scene, tiny_detector, voc, voc_xml, write_coco
from PIL import Image

from spikecal.data.images import UnreadableImage
from spikecal.detection import load_boxes
from spikecal.detection.boxes import Faults, clip
from spikecal.detection.precision import readable_images
from spikecal.errors import DataError
from spikecal.pipeline import BASELINE, Pipeline
from spikecal.reproduce.cells import Cell
from spikecal.reproduce.detectors import Detector
from spikecal.reproduce.subjects import Wish

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def test_voc_boxes_and_classes(tmp_path: Path) -> None:
    data = load_boxes(f"voc:{voc(tmp_path)}", "train")
    assert len(data) == 6 and dict(data.classes) == {1: "bar", 2: "square"} and data.labels == 3
    for i, target in enumerate(data.targets):
        wanted = scene(i)
        assert target.boxes.tolist() == [list(box[1:]) for box in wanted]
        assert [data.classes[label] for label in target.labels.tolist()] == [box[0] for box in wanted]
    assert data.image(0).shape == (3, 48, 64) and float(data.image(0).max()) <= 1
    assert not any(data.faults.counts().values()) and not data.faults.sentences()


def test_a_split_has_the_labels_of_the_whole_set(tmp_path: Path) -> None:
    voc(tmp_path)
    voc_xml(tmp_path / "Annotations" / "scene7.xml", [("aardvark", 1, 1, 9, 9)])  # a test image
    assert dict(load_boxes(f"voc:{tmp_path}", "train").classes) == {1: "aardvark", 2: "bar", 3: "square"}


def test_test_images_are_the_val_list_where_there_is_no_other(tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / "ImageSets" / "test.txt").rename(tmp_path / "ImageSets" / "val.txt")
    assert len(load_boxes(f"voc:{tmp_path}", "test")) == len(load_boxes(f"voc:{tmp_path}", "val")) == 3


@pytest.mark.parametrize("split", ["train", "valid"])
def test_xml_beside_images(tmp_path: Path, split: str) -> None:
    picture(tmp_path / split / "a.PNG", scene(0))
    voc_xml(tmp_path / split / "a.xml", scene(0))
    found = load_boxes(f"voc:{tmp_path}", "train" if split == "train" else "test")
    assert len(found) == 1 and len(found.targets[0].boxes) == 2
    assert len(load_boxes(f"voc:{tmp_path / split}", "train")) == 1


def test_coco_keeps_category_numbers(tmp_path: Path) -> None:
    data = load_boxes(f"coco:{coco(tmp_path)}", "test")
    assert dict(data.classes) == {3: "bar", 7: "square"} and data.labels == 8
    assert data.targets[1].boxes.tolist() == [list(box[1:]) for box in scene(1)]
    assert data.targets[1].labels.tolist() == [7, 3]


def test_coco_beside_its_images(tmp_path: Path) -> None:
    coco(tmp_path, "train")
    (tmp_path / "annotations" / "instances_train.json").rename(tmp_path / "train" / "_annotations.coco.json")
    assert len(load_boxes(f"coco:{tmp_path}", "train")) == 3


def test_broken_voc_files_are_counted_and_survived(tmp_path: Path) -> None:
    voc(tmp_path)
    annotations, photographs = tmp_path / "Annotations", tmp_path / "JPEGImages"
    (annotations / "scene0.xml").write_text("<annotation><object>")
    (photographs / "scene1.jpg").write_bytes(b"no image")
    (photographs / "scene2.jpg").unlink()
    voc_xml(annotations / "scene3.xml", [])
    outside = [("square", -20.0, 4.0, 20.0, 20.0), ("bar", 70.0, 2.0, 90.0, 9.0), ("bar", 9.0, 9.0, 5.0, 12.0)]
    voc_xml(annotations / "scene4.xml", outside)
    xml = (annotations / "scene5.xml").read_text().replace("<xmax>", "<xmax>wide", 1)
    (annotations / "scene5.xml").write_text(xml)
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert len(data) == 3
    assert data.faults.counts() == {"left_out": 3, "empty": 1, "clipped": 1, "missized": 0, "dropped": 3}
    assert {Path(file).stem for file in data.faults.left_out} == {"scene0", "scene1", "scene2"}
    assert data.targets[1].boxes.tolist() == [[0.0, 4.0, 20.0, 20.0]]
    assert len(data.targets[2].boxes) == 1
    assert len(data.faults.sentences()) == 4


def test_a_listed_image_that_is_missing(tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / "ImageSets" / "train.txt").write_text("scene0\nnobody\n\n")
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert len(data) == 1 and list(data.faults.left_out.values()) == ["no such file"]


def test_an_image_whose_pixels_are_cut_off_is_found_when_it_is_read(tmp_path: Path) -> None:
    voc(tmp_path)
    path = tmp_path / "JPEGImages" / "scene0.jpg"
    path.write_bytes(path.read_bytes()[:900])
    data = load_boxes(f"voc:{tmp_path}", "train")
    with pytest.raises(UnreadableImage, match="scene0"):
        data.image(0)
    with pytest.raises(DataError, match="its only image cannot be read; .*scene0"):
        list(readable_images(data.take([0]), {}))


def test_broken_coco_entries_are_counted_and_survived(tmp_path: Path) -> None:
    coco(tmp_path)
    path = tmp_path / "annotations" / "instances_val2017.json"
    whole = json.loads(path.read_text())
    whole["images"].append({"id": 5, "file_name": "gone.jpg"})
    whole["images"].append("not an image")
    whole["images"][2] |= {"height": None}
    whole["annotations"] += [
        {"image_id": 100, "category_id": 3, "bbox": [60, 2, 50, 9]},
        {"image_id": 100, "category_id": 3, "bbox": [1, 2, 3]},
        {"image_id": 100, "category_id": 99, "bbox": [1, 2, 3, 4]},
        {"image_id": 101, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 1},
        {"image_id": 101, "category_id": 3, "bbox": [1, 2, 10**400, 4]},
        {"image_id": 101, "category_id": [3], "bbox": [1, 2, 3, 4]},
        {"image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4]},  # of the image that is left out
        {"image_id": 4, "category_id": 3, "bbox": [1, 2, 3, 4]},
        {"image_id": [100], "category_id": 3, "bbox": [1, 2, 3, 4]},
        7,
    ]
    path.write_text(json.dumps(whole))
    data = load_boxes(f"coco:{tmp_path}", "val")
    assert len(data) == 3
    assert data.faults.counts() == {"left_out": 2, "empty": 0, "clipped": 1, "missized": 0, "dropped": 7}
    pictures = tmp_path / "val2017"
    assert data.faults.dropped == {
        str(path): 3,  # no image
        str(pictures / "000000000000.jpg"): 2,  # no box, no such class
        str(pictures / "000000000001.jpg"): 2,
    }
    assert data.targets[0].boxes[2].tolist() == [60, 2, 64, 11]
    assert data.targets[1].ignored.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([{"id": [1], "file_name": "a.jpg"}], "its id is missing"),
        ([{"file_name": "a.jpg"}], "its id is missing"),
        ([{"id": 1, "file_name": "b.jpg"}, {"id": 1, "file_name": "a.jpg"}], "that of another image"),
        ([{"id": 1, "file_name": "a" * 5000}], "there is no such image"),
        ([{"id": 1, "file_name": "a\0.jpg"}], "there is no such image"),
    ],
)
def test_damaged_entries_of_images_are_left_out(tmp_path: Path, images: list[Any], words: str) -> None:
    good = {"id": 9, "file_name": "good.jpg"}
    write_coco(tmp_path, "train", [good, *images], [{"image_id": [1], "category_id": 3, "bbox": [1, 2, 3, 4]}])
    for name in ("a", "b", "good"):
        picture(tmp_path / "train" / f"{name}.jpg", [])
    data = load_boxes(f"coco:{tmp_path}", "train")
    assert len(data) == len(images)
    (reason,) = data.faults.left_out.values()
    assert words in reason and sum(data.faults.dropped.values()) == 1


def test_categories_from_0_make_room_for_the_background(tmp_path: Path) -> None:
    path = write_coco(tmp_path, "train", [{"id": 1, "file_name": "a.jpg"}], [])
    picture(tmp_path / "train" / "a.jpg", [])
    whole = json.loads(path.read_text()) | {"categories": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]}
    path.write_text(json.dumps(whole))
    assert dict(load_boxes(f"coco:{tmp_path}", "train").classes) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("voc:{}/nothing", "there is no folder"),
        ("voc:{}", "neither Annotations nor XML"),
        ("coco:{}", "instances_train"),
        ("bccd", "for detection give voc:PATH, coco:PATH"),
    ],
)
def test_missing_files_are_reported(tmp_path: Path, spec: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_boxes(spec.format(tmp_path), "train")


def test_two_categories_with_one_number(tmp_path: Path) -> None:
    path = write_coco(tmp_path, "train", [], [])
    whole = json.loads(path.read_text())
    whole["categories"].append({"id": 7, "name": "disc"})
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError, match="two categories with the id 7"):
        load_boxes(f"coco:{tmp_path}", "train")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"images": [], "annotations": []}',
        '{"images":[],"annotations":[],"categories":[{}]}',
        '{"images":[],"annotations":[],"categories":[{"id":-1}]}',
        '{"images":[],"annotations":[],"categories":[{"id":[1]}]}',
    ],
)
def test_a_json_file_that_is_not_coco(tmp_path: Path, text: str) -> None:
    write_coco(tmp_path, "train", [], []).write_text(text)
    with pytest.raises(DataError, match="not"):
        load_boxes(f"coco:{tmp_path}", "train")


def test_a_set_with_nothing_left_says_why(tmp_path: Path) -> None:
    voc(tmp_path, train=1, test=1)
    (tmp_path / "JPEGImages" / "scene0.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="scene0.jpg"):
        load_boxes(f"voc:{tmp_path}", "train")


def turned(path: Path, form: str = "jpg") -> None:
    """Save a picture with EXIF data that turn it by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.save(path.with_suffix(f".{form}"), exif=exif)


def behind_its_pixels(path: Path) -> None:
    """Move the EXIF data of a PNG to its end, where other programs write them."""
    stored = path.read_bytes()
    start = stored.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(stored[start : start + 4], "big")
    path.write_bytes(stored[:start] + stored[end:-12] + stored[start:end] + stored[-12:])


@pytest.mark.parametrize("form", ["jpg", "png", "png, at its end", "tiff", "webp"])
def test_a_turned_photograph_has_the_size_it_is_read_in(tmp_path: Path, form: str) -> None:
    voc(tmp_path)
    path = tmp_path / "JPEGImages" / "scene0.jpg"
    turned(path, form.partition(",")[0])
    if form != "jpg":
        path.unlink()
    if form == "png, at its end":
        behind_its_pixels(path.with_suffix(".png"))
    voc_xml(tmp_path / "Annotations" / "scene0.xml", [("bar", 2, 50, 40, 63)], size=(64, 48))
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert data.image(0).shape == (3, 64, 48)
    assert data.targets[0].boxes.tolist() == [[2, 50, 40, 63]]
    assert not any(data.faults.counts().values())


def test_annotations_of_the_unturned_photograph_are_counted(tmp_path: Path) -> None:
    voc(tmp_path / "voc", train=1, test=1)
    turned(tmp_path / "voc" / "JPEGImages" / "scene0.jpg")
    voc_xml(tmp_path / "voc" / "Annotations" / "scene0.xml", [("bar", 20, 2, 60, 40)])
    coco(tmp_path / "coco", "train", count=1)
    turned(tmp_path / "coco" / "train" / "000000000000.jpg")
    for kind in ("voc", "coco"):
        data = load_boxes(f"{kind}:{tmp_path / kind}", "train")
        assert data.faults.missized == {data.images.paths[0]: ((48, 64), (64, 48))}
        assert data.faults.counts()["clipped"] == 1 and float(data.targets[0].boxes[:, 2].max()) == 48


def test_pixels_and_exif_data_may_be_damaged_if_the_header_is_whole(tmp_path: Path) -> None:
    voc(tmp_path, train=2, test=1)
    photographs = tmp_path / "JPEGImages"
    with Image.open(photographs / "scene0.jpg") as image:
        image.save(photographs / "scene0.png")
    (photographs / "scene0.jpg").unlink()
    cut = photographs / "scene0.png"
    cut.write_bytes(cut.read_bytes()[:900])
    with Image.open(photographs / "scene1.jpg") as image:
        image.save(photographs / "scene1.jpg", exif=b"Exif\0\0no TIFF header")
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert len(data) == 2 and not data.faults.left_out
    assert data.image(1).shape == (3, 48, 64)
    with pytest.raises(UnreadableImage):
        data.image(0)


def test_sizes_are_those_of_the_images_whatever_is_stated(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a.jpg", [])
    image = {"id": 1, "file_name": "a.jpg", "height": 480, "width": 640}
    boxes = [[300, 200, 100, 100], [50, 40, 100, 100], [1, 2, 3, 4]]
    write_coco(tmp_path, "train", [image], [{"image_id": 1, "category_id": 3, "bbox": box} for box in boxes])
    data = load_boxes(f"coco:{tmp_path}", "train")
    assert data.targets[0].boxes.tolist() == [[50, 40, 64, 48], [1, 2, 4, 6]]
    assert data.faults.counts() == {"left_out": 0, "empty": 0, "clipped": 1, "missized": 1, "dropped": 1}
    path = str(tmp_path / "train" / "a.jpg")
    assert data.faults.to_dict()["missized"] == [{"file": path, "stated": [480, 640], "found": [48, 64]}]
    assert f"1 image whose size differs from its annotation: {path} (64 x 48, not 640 x 480)" in (
        data.faults.sentences()
    )


@pytest.mark.parametrize(("size", "missized"), [((48, 64), 0), ((0, 0), 0), ((480, 640), 1)])
def test_a_size_in_xml_is_ignored(tmp_path: Path, size: tuple[int, int], missized: int) -> None:
    voc(tmp_path, train=1, test=1)
    voc_xml(tmp_path / "Annotations" / "scene0.xml", [("bar", 50, 2, 100, 9)], size=size)
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert data.targets[0].boxes.tolist() == [[50, 2, 64, 9]] and data.faults.counts()["missized"] == missized


def test_a_single_fault_is_in_the_singular() -> None:
    size = ((4, 3), (3, 4))
    one = Faults({"a": "gone"}, ["b"], {"c": 1}, {"e": size}, {"d": 1}).sentences()
    assert one == [
        "1 left out as unusable: a (gone)",
        "1 image without a box, kept: b",
        "1 image whose size differs from its annotation: e (4 x 3, not 3 x 4)",
        "1 box clipped at the border of its image: c",
        "1 box dropped, as it has no area in its image, or no class or image: d",
    ]
    two = Faults({"a": "", "b": ""}, ["b", "c"], {"c": 2}, {"e": size, "f": size}, {"d": 1, "e": 1}).sentences()
    assert [sentence.split()[:3] for sentence in two] == [
        ["2", "left", "out"],
        ["2", "images", "without"],
        ["2", "images", "whose"],
        ["2", "boxes", "clipped"],
        ["2", "boxes", "dropped,"],
    ]


def test_faults_are_not_logged_as_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command line prints warnings itself; logging them would repeat everything."""
    voc(tmp_path, train=1, test=1)
    voc_xml(tmp_path / "Annotations" / "scene0.xml", [])
    with caplog.at_level(logging.INFO):
        load_boxes(f"voc:{tmp_path}", "train")
    assert [(record.levelname, "1 image without a box" in record.message) for record in caplog.records] == [
        ("INFO", True)
    ]


def test_a_table_warns_of_faults_in_both_sets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    voc(tmp_path, train=1, test=1)
    for name in ("scene0", "scene1"):
        voc_xml(tmp_path / "Annotations" / f"{name}.xml", [])
    Detector.load("retinanet-r18-quarter", None, Wish(data=f"voc:{tmp_path}"))
    assert [record.message.partition(": ")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        f"voc:{tmp_path}, train",
        f"voc:{tmp_path}, test",
    ]


@pytest.mark.parametrize("pipeline", [None, BASELINE])
def test_a_strict_table_refuses_images_that_turn_out_unreadable(tmp_path: Path, pipeline: Pipeline | None) -> None:
    data = f"voc:{voc(tmp_path, train=2, test=2)}"
    train, test = load_boxes(data, "train"), load_boxes(data, "test")
    subject = Detector(spec="tiny", network=tiny_detector(), data=data, train=train, test=test, strict=True)
    damaged = "scene3" if pipeline is None else "scene1"
    (tmp_path / "JPEGImages" / f"{damaged}.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=rf"{damaged}\.jpg.*leave out --strict"):
        subject.measure(Cell(kind="detection", model="tiny", pipeline=pipeline, T=2, images=2))


def test_a_pixel_outside_is_clipped_silently() -> None:
    assert clip([[-1.0, 0.0, 10.0, 48.5]], (48, 64)) == ([[0.0, 0.0, 10.0, 48.0]], [0], 0)


def test_samples_are_drawn_by_the_seed(tmp_path: Path) -> None:
    data = load_boxes(f"voc:{voc(tmp_path)}", "train")
    first, same, other = data.sample(3, 0), data.sample(3, 0), data.sample(3, 1)
    assert first.images == same.images != other.images and len(first) == 3
    assert all(torch.equal(a.boxes, data.targets[data.images.paths.index(p)].boxes)
               for a, p in zip(first.targets, first.images.paths, strict=True))  # fmt: skip
    assert data.sample(None, 0) is data is data.sample(99, 0)
