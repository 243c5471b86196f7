"""mAP against cases whose value is known by hand."""

import pytest
import torch
from torch import Tensor

from spikecal.detection.boxes import Target
from spikecal.detection.precision import Detections, average_precision, redrawn
from spikecal.errors import DataError

CLASSES = {1: "a", 2: "b"}
BOX = [10.0, 10.0, 50.0, 50.0]


def truth(boxes: list[list[float]], labels: list[int], ignored: list[bool] | None = None) -> Target:
    marks = torch.tensor(ignored or [False] * len(boxes), dtype=torch.bool)
    return Target(boxes=torch.tensor(boxes).reshape(-1, 4), labels=torch.tensor(labels), ignored=marks)


def found(boxes: list[list[float]], labels: list[int], scores: list[float]) -> Detections:
    rows: Tensor = torch.tensor(boxes).reshape(-1, 4)
    return {"boxes": rows, "labels": torch.tensor(labels), "scores": torch.tensor(scores)}


def test_the_truth_itself_is_perfect() -> None:
    precision = average_precision([found([BOX], [1], [0.3])], [truth([BOX], [1])], CLASSES)
    assert precision.map == pytest.approx(1) and precision.map50 == pytest.approx(1)
    assert precision.classes == {"a": pytest.approx(1)}


def test_an_overlap_of_three_quarters_counts_up_to_there() -> None:
    precision = average_precision([found([[10.0, 10.0, 50.0, 42.0]], [1], [0.3])], [truth([BOX], [1])], CLASSES)
    assert precision.map50 == pytest.approx(1)
    assert precision.map == pytest.approx(0.7)  # 0.8 is not above the overlaps 0.85, 0.9 and 0.95


def test_a_wrong_box_in_front_halves_the_precision() -> None:
    boxes = found([[100.0, 100.0, 140.0, 140.0], BOX], [1, 1], [0.9, 0.5])
    assert average_precision([boxes], [truth([BOX], [1])], CLASSES).map50 == pytest.approx(0.5)


def test_a_missed_class_counts_and_an_absent_one_does_not() -> None:
    precision = average_precision([found([BOX], [1], [0.9])], [truth([BOX, BOX], [1, 2])], CLASSES)
    assert precision.classes == {"a": pytest.approx(1), "b": pytest.approx(0)}
    assert precision.map50 == pytest.approx(0.5)


OTHER = [100.0, 100.0, 140.0, 140.0]


def test_finding_an_ignored_box_is_not_a_mistake() -> None:
    boxes = found([OTHER, BOX], [1, 1], [0.9, 0.5])
    target = truth([BOX, OTHER], [1, 1], [False, True])
    assert average_precision([boxes], [target], CLASSES).map50 == pytest.approx(1)
    assert average_precision([boxes], [truth([BOX], [1])], CLASSES).map50 == pytest.approx(0.5)  # not there, it is one


def test_missing_an_ignored_box_is_not_a_miss() -> None:
    boxes = found([BOX], [1], [0.9])
    target = truth([BOX, OTHER], [1, 1], [False, True])
    assert average_precision([boxes], [target], CLASSES).map50 == pytest.approx(1)
    missed = truth([BOX, OTHER], [1, 1])
    assert average_precision([boxes], [missed], CLASSES).map50 == pytest.approx(0.5, abs=0.01)


def test_an_ignored_box_is_not_a_hit() -> None:
    """Found before the true one is missed: as a hit it would be worth half."""
    target = truth([BOX, OTHER], [1, 1], [False, True])
    assert average_precision([found([OTHER], [1], [0.9])], [target], CLASSES).map50 == 0


def test_nothing_found_is_nothing() -> None:
    precision = average_precision([found([], [], [])], [truth([BOX], [1])], CLASSES)
    assert (precision.map, precision.map50, precision.classes) == (0, 0, {"a": 0})


def test_labels_outside_all_classes_do_not_count() -> None:
    """The detectors of COCO have labels that no category has."""
    alone = average_precision([found([BOX], [17], [0.9])], [truth([BOX], [1])], CLASSES)
    assert (alone.map, alone.classes) == (0, {"a": 0})
    beside = average_precision([found([BOX, OTHER, BOX], [17, 0, 1], [0.9, 0.8, 0.5])], [truth([BOX], [1])], CLASSES)
    assert beside.map == pytest.approx(1) and beside.classes == {"a": pytest.approx(1)}


def test_no_boxes_to_measure_by() -> None:
    with pytest.raises(DataError, match="no boxes"):
        average_precision([found([BOX], [1], [0.9])], [truth([], [])], CLASSES)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    average_precision([found([BOX], [1], [0.9])], [truth([BOX], [1])], CLASSES)
    assert capsys.readouterr().out == ""


def test_redrawn_images_are_measured_as_a_set_of_their_own() -> None:
    """Against the mAP of the same images, each counted as often as it was drawn."""
    generator = torch.Generator().manual_seed(3)
    images = []
    for i in range(6):
        boxes = torch.rand(4, 4, generator=generator) * 40
        boxes[:, 2:] += boxes[:, :2] + 4
        labels = torch.randint(1, 3, (4,), generator=generator)
        there = truth(boxes.tolist(), labels.tolist()) if i else truth([], [])  # an image without boxes
        moved = boxes + 3 * torch.rand(4, 4, generator=generator)
        images.append((found(moved.tolist(), labels.tolist(), torch.rand(4, generator=generator).tolist()), there))
    ours = redrawn([f for f, _ in images], [t for _, t in images], CLASSES, 8, seed=5)
    generator = torch.Generator().manual_seed(5)
    for figure in ours:
        chosen = [images[i] for i in torch.randint(6, (6,), generator=generator).tolist()]
        assert figure == pytest.approx(average_precision([f for f, _ in chosen], [t for _, t in chosen], CLASSES).map)
    assert len(set(ours)) > 4


def test_a_draw_without_boxes_is_drawn_again() -> None:
    images = [(found([BOX], [1], [0.9]), truth([BOX], [1])), (found([], [], []), truth([], []))]
    assert redrawn([f for f, _ in images], [t for _, t in images], CLASSES, 20, 0) == pytest.approx([1.0] * 20)
    assert redrawn([found([], [], [])] * 2, [t for _, t in images], CLASSES, 3, 0) == [0, 0, 0]
