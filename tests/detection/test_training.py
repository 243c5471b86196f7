"""Training detectors: a recipe of its own, checkpoints that resume to the same bits, weights that find their place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from detection.scenes import scene, tiny_detector, voc, voc_xml
from torch import nn

from spikecal.detection import load_boxes
from spikecal.detection.feed import BoxFeed
from spikecal.detection.training import train
from spikecal.errors import ConfigError, FileError
from spikecal.training.export import export
from spikecal.training.recipes import COCO, QUICK, QUICK_DETECT, DetectionRecipe
from spikecal.zoo.detectors import DETECTORS, build_detector, is_detector, load_body, load_detector

RECIPE = QUICK_DETECT.changed(epochs=2, batch=2, lr=1e-3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return voc(tmp_path / "voc", train=4, test=2)


def trained(folder: Path, checkpoint: Path, recipe: DetectionRecipe = RECIPE, **settings: Any) -> nn.Module:
    detector = tiny_detector()
    train(detector, "tiny", load_boxes(f"voc:{folder}", "train"), recipe, checkpoint, **settings)
    return detector


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Stop(Exception):
    pass


class StopsAfter:
    """Progress that ends the training after some steps, like a kill."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stop


def test_killed_it_resumes_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    whole = trained(folder, tmp_path / "a")
    with pytest.raises(Stop):
        trained(folder, tmp_path / "b", progress=StopsAfter(3), every=0.0)
    assert same(trained(folder, tmp_path / "b"), whole)
    assert not same(tiny_detector(), whole)


def test_training_lowers_the_loss_and_measures(folder: Path, tmp_path: Path) -> None:
    data = load_boxes(f"voc:{folder}", "train")
    recipe = RECIPE.changed(epochs=12, lr=5e-3, augment=("flip",))
    training = train(tiny_detector(), "tiny", data, recipe, tmp_path / "c", validation=data)
    losses = [record.loss for record in training.history]
    assert losses[-1] < 0.7 * losses[0]
    assert all(record.score is not None and 0 <= record.score <= 1 for record in training.history)


def test_another_set_of_boxes_is_refused(folder: Path, tmp_path: Path) -> None:
    trained(folder, tmp_path / "c")
    with pytest.raises(ConfigError, match="different images"):
        trained(voc(tmp_path / "other", train=5, test=1), tmp_path / "c")


@pytest.mark.parametrize("name", ["flip", "vertical-flip", "colour-jitter", "zoom-out", "iou-crop"])
def test_boxes_move_with_their_image(folder: Path, name: str) -> None:
    """A bright square: whatever happens to the image, it stays inside its box and nowhere else."""
    feed = BoxFeed(load_boxes(f"voc:{folder}", "train"), "x", RECIPE.changed(augment=(name,)), torch.device("cpu"))
    for image, target in (item for epoch in range(3) for batch in feed.batches(epoch) for item in batch):
        for box, label in zip(target["boxes"].round().int().tolist(), target["labels"].tolist(), strict=True):
            inside = image[:, box[1] : box[3], box[0] : box[2]]
            middle = inside[:, inside.shape[1] // 2, inside.shape[2] // 2].mean()
            assert middle > 0.6 if label == 2 else middle < 0.2


def test_ignored_boxes_are_not_learned(folder: Path) -> None:
    """Difficult ones: without them a detector is taught by the other images alone."""
    voc_xml(folder / "Annotations" / "scene1.xml", scene(1), difficult=1)
    data = load_boxes(f"voc:{folder}", "train")
    assert data.targets[1].ignored.tolist() == [True, True]
    feed = BoxFeed(data, "x", RECIPE.changed(augment=()), torch.device("cpu"))
    learned = [target["boxes"].tolist() for batch in feed.batches(0) for _, target in batch]
    assert sorted(learned) == sorted([[list(box[1:]) for box in scene(i)] for i in (0, 2, 3)] + [[]])


def test_too_few_images_for_a_batch(folder: Path) -> None:
    data = load_boxes(f"voc:{folder}", "train")
    with pytest.raises(ConfigError, match="has 1 image to train on"):
        BoxFeed(data.sample(1, 0), "x", RECIPE, torch.device("cpu"))


def test_a_damaged_image_is_replaced_by_the_next(folder: Path) -> None:
    path = folder / "JPEGImages" / "scene1.jpg"
    path.write_bytes(path.read_bytes()[:900])
    feed = BoxFeed(load_boxes(f"voc:{folder}", "train"), "x", RECIPE, torch.device("cpu"))
    assert sum(len(batch) for batch in feed.batches(0)) == 4


def test_the_paper_recipe() -> None:
    assert (COCO.epochs, COCO.lr, COCO.momentum, COCO.weight_decay, COCO.milestones) == (
        12,
        0.000625,
        0.9,
        1e-4,
        (8, 11),
    )
    total = 12 * 100
    rates = [COCO.learning_rate(epoch * 100, total) for epoch in range(12)]
    assert COCO.learning_rate(0, total) == pytest.approx(COCO.lr / 100)
    assert rates[1:8] == [COCO.lr] * 7
    assert rates[8:] == pytest.approx([COCO.lr / 10] * 3 + [COCO.lr / 100])
    assert COCO.learning_rate(99, total) == COCO.lr


@pytest.mark.parametrize(
    "changes", [{"optimiser": "lion"}, {"milestones": [8, 3]}, {"augment": ["cutout"]}, {"label_smoothing": 0.1}]
)
def test_nonsensical_recipes(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        COCO.changed(**changes)


def test_a_classifiers_recipe_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="for classifiers"):
        train(tiny_detector(), "tiny", load_boxes(f"voc:{folder}", "train"), replace(QUICK, batch=2), tmp_path / "c")


@pytest.mark.parametrize("name", ["retinanet-r18-quarter", "fasterrcnn-r18-quarter"])
def test_weights_say_how_many_labels_there_are(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    detector = build_detector(name, 6)
    assert export(detector, tmp_path / "w.safetensors", None) == "float32"
    assert same(load_detector(name, tmp_path / "w.safetensors"), detector)
    with pytest.raises(ConfigError, match="--weights"):
        load_detector("retinanet-r18")


def test_the_paper_detectors_freeze_stem_and_bn() -> None:
    detector = build_detector("retinanet-r50")
    learned = {name for name, p in detector.named_parameters() if p.requires_grad}
    assert not any("bn" in name or "body.conv1" in name or "body.layer1" in name for name in learned)
    assert any("body.layer2" in name for name in learned)
    resnet = torch.nn.Module()
    with pytest.raises(FileError, match="does not fit"):
        load_body(detector, resnet.state_dict(), "nothing")


def test_a_body_starts_from_a_classifier() -> None:
    from spikecal.vision import vision

    torch.manual_seed(1)
    classifier = vision("torchvision.models").resnet50(weights=None)
    detector = build_detector("fasterrcnn-r50")
    load_body(detector, classifier.state_dict(), "resnet50")
    assert torch.equal(detector.backbone.body.layer4[0].conv1.weight, classifier.layer4[0].conv1.weight)  # type: ignore


def test_names_of_detectors() -> None:
    assert all(is_detector(name) for name in DETECTORS)
    assert is_detector("torchvision:fcos_resnet50_fpn") and not is_detector("torchvision:resnet50")
    assert not is_detector("resnet20") and not is_detector("file.py:make")
