"""Sets with boxes: both formats, every layout, and files that are not what they should be."""

import json
from pathlib import Path

import pytest
import torch
from detection.scenes import coco, picture, scene, voc, voc_xml, write_coco
from PIL import Image

from spikecal.data.images import UnreadableImage
from spikecal.detection import load_boxes
from spikecal.detection.boxes import clip
from spikecal.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def test_voc_boxes_and_classes(tmp_path: Path) -> None:
    data = load_boxes(f"voc:{voc(tmp_path)}", "train")
    assert len(data) == 6 and dict(data.classes) == {1: "bar", 2: "square"} and data.labels == 3
    for i, target in enumerate(data.targets):
        wanted = scene(i)
        assert target.boxes.tolist() == [list(box[1:]) for box in wanted]
        assert [data.classes[label] for label in target.labels.tolist()] == [box[0] for box in wanted]
    assert data.image(0).shape == (3, 48, 64) and float(data.image(0).max()) <= 1
    assert data.faults.counts() == {"left_out": 0, "empty": 0, "clipped": 0, "dropped": 0}


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
    assert data.faults.counts() == {"left_out": 3, "empty": 1, "clipped": 1, "dropped": 3}
    assert {Path(file).stem for file in data.faults.left_out} == {"scene0", "scene1", "scene2"}
    assert data.targets[1].boxes.tolist() == [[0.0, 4.0, 20.0, 20.0]]
    assert len(data.targets[2].boxes) == 1
    assert len(data.faults.sentences()) == 4


def test_a_listed_image_that_is_not_there(tmp_path: Path) -> None:
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
        7,
    ]
    path.write_text(json.dumps(whole))
    data = load_boxes(f"coco:{tmp_path}", "val")
    assert len(data) == 3
    assert data.faults.counts() == {"left_out": 2, "empty": 0, "clipped": 1, "dropped": 1}
    assert data.targets[0].boxes[2].tolist() == [60, 2, 64, 11]
    assert data.targets[1].ignored.tolist() == [False, False, True]


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
def test_what_is_not_there_is_said(tmp_path: Path, spec: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_boxes(spec.format(tmp_path), "train")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"images": [], "annotations": []}', '{"images":[],"annotations":[],"categories":[{}]}']
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


def test_a_turned_photograph_has_the_size_it_is_read_in(tmp_path: Path) -> None:
    voc(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(tmp_path / "JPEGImages" / "scene0.jpg") as image:
        image.save(tmp_path / "JPEGImages" / "scene0.jpg", exif=exif)
    voc_xml(tmp_path / "Annotations" / "scene0.xml", [("bar", 2, 50, 40, 63)])
    data = load_boxes(f"voc:{tmp_path}", "train")
    assert data.image(0).shape == (3, 64, 48)
    assert data.targets[0].boxes.tolist() == [[2, 50, 40, 63]] and not data.faults.clipped


def test_a_pixel_outside_is_cut_without_a_word() -> None:
    assert clip([[-1.0, 0.0, 10.0, 48.5]], (48, 64)) == ([[0.0, 0.0, 10.0, 48.0]], [0], 0)


def test_samples_are_drawn_by_the_seed(tmp_path: Path) -> None:
    data = load_boxes(f"voc:{voc(tmp_path)}", "train")
    first, same, other = data.sample(3, 0), data.sample(3, 0), data.sample(3, 1)
    assert first.images == same.images != other.images and len(first) == 3
    assert all(torch.equal(a.boxes, data.targets[data.images.paths.index(p)].boxes)
               for a, p in zip(first.targets, first.images.paths, strict=True))  # fmt: skip
    assert data.sample(None, 0) is data is data.sample(99, 0)
