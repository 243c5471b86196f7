"""torchvision imports, and its operators work, beside whatever torch there is."""

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikecal.vision import BOXES, nms, roi_align, vision


def brute_force(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        a = boxes[i]
        for j in kept:
            b = boxes[j]
            width = max(0.0, min(a[2].item(), b[2].item()) - max(a[0].item(), b[0].item()))
            height = max(0.0, min(a[3].item(), b[3].item()) - max(a[1].item(), b[1].item()))
            area = sum(((x[2] - x[0]) * (x[3] - x[1])).item() for x in (a, b))
            if width * height > threshold * (area - width * height):
                break
        else:
            kept.append(i)
    return kept


def test_code_of_users_may_import_torchvision(tmp_path: Path) -> None:
    """In a process that has not imported it yet."""
    (tmp_path / "mine.py").write_text(
        "from torchvision.datasets import FakeData\n\ndef data(split):\n    return FakeData(3, (3, 8, 8), 2)\n"
    )
    code = "from spikecal.data.sources import load_data; print(len(load_data('mine.py:data', 'train')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr


def test_torchvision_imports_and_its_nms_is_ours_or_agrees_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(80, 4, generator=generator)
    boxes[:, 2:] += boxes[:, :2] + 0.05
    scores = torch.rand(80, generator=generator)
    expected = brute_force(boxes, scores, 0.4)
    assert 5 < len(expected) < 60
    assert nms(boxes, scores, 0.4).tolist() == expected
    assert vision("torchvision.ops").nms(boxes, scores, 0.4).tolist() == expected


@given(st.integers(0, 40), st.integers(0, 2**16), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
@settings(max_examples=30, deadline=None)
def test_nms_of_boxes_that_touch_are_equal_or_have_no_area(count: int, seed: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.randint(0, 8, (count, 4), generator=generator).double()
    boxes = torch.cat([torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])], dim=1)
    scores = torch.randperm(count, generator=generator).double()
    assert nms(boxes, scores, threshold).tolist() == brute_force(boxes, scores, threshold)


def test_nms_of_more_boxes_than_are_compared_at_a_time() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 2 * BOXES + 50
    boxes = torch.rand(count, 4, generator=generator) * 4
    boxes[:, 2:] = boxes[:, :2] + 1
    scores = torch.rand(count, generator=generator)
    expected = brute_force(boxes, scores, 0.3)
    assert 30 < len(expected) < count / 4
    assert nms(boxes, scores, 0.3).tolist() == expected


def test_each_box_of_a_chain_drops_the_next_but_one() -> None:
    """Of boxes that overlap only their neighbours, every other one stays; that takes one round per box."""
    left = torch.arange(101.0)
    boxes = torch.stack([left, torch.zeros(101), left + 1.5, torch.ones(101)], dim=1)
    assert nms(boxes, -left, 0.1).tolist() == list(range(0, 101, 2))


def test_no_boxes() -> None:
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []
    assert roi_align(torch.rand(2, 3, 8, 8), torch.zeros(0, 5), 1.0, 7, 5, 2, False).shape == (0, 3, 7, 5)


def test_a_detector_runs() -> None:
    detection = vision("torchvision.models.detection")
    torch.manual_seed(0)
    detector = detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).eval()
    with torch.no_grad():
        found = detector([torch.rand(3, 64, 80)])[0]
    assert found["boxes"].shape[1] == 4


def test_roi_align_averages_bilinear_samples() -> None:
    """Of a plane, which interpolation gives back exactly, the pool of a box is the plane at its bins' centres."""
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(20.0), indexing="ij")
    plane = (3 * rows + 2 * columns)[None, None].requires_grad_()
    pooled = vision("torchvision.ops").roi_align(plane, [torch.tensor([[4.0, 2.0, 12.0, 10.0]])], 4, sampling_ratio=2)
    centres = torch.arange(4) * 2.0 + 1
    expected = 3 * (2 + centres)[:, None] + 2 * (4 + centres)[None]
    assert torch.allclose(pooled[0, 0], expected, atol=1e-4)
    pooled.sum().backward()
    assert plane.grad is not None and float(plane.grad.sum()) == 16


def torchvisions() -> Callable[..., Tensor]:
    """torchvision's own roi_align in Python, not compiled."""
    vision()
    spec = importlib.util.find_spec("torchvision.ops.roi_align")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)  # of its own: in the one that is imported it may be ours
    spec.loader.exec_module(module)
    found: Callable[..., Tensor] = module._roi_align.__wrapped__
    return found


def random_boxes(count: int, seed: int, low: float, high: float) -> Tensor:
    """In two images; corners from `low` to `high`, some without width or height."""
    generator = torch.Generator().manual_seed(seed)
    corners = low + (high - low) * torch.rand(count, 2, 2, generator=generator, dtype=torch.float64)
    corners = corners.sort(dim=1).values
    flat = torch.rand(count, 2, generator=generator) < 0.1
    corners[:, 1] = torch.where(flat, corners[:, 0], corners[:, 1])
    return torch.cat([torch.randint(2, (count, 1), generator=generator), corners.flatten(1)], dim=1)


@pytest.mark.parametrize("ratio", [1, 2, 3, -1])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align_is_torchvisions_inside_the_image(ratio: int, aligned: bool) -> None:
    own = torchvisions()
    for seed, (dtype, tolerance) in enumerate([(torch.float64, 1e-11), (torch.float32, 1e-5)]):
        generator = torch.Generator().manual_seed(seed)
        maps = torch.rand(2, 3, 14, 20, generator=generator).to(dtype)
        boxes = random_boxes(60, seed, 0.0, 52.0).to(dtype)
        if aligned and ratio < 0:  # without area they have no samples, and torchvision's gradients are no numbers
            boxes = boxes[(boxes[:, 3:] > boxes[:, 1:3]).all(1)]
        weights = torch.rand(len(boxes), 3, 5, 7, generator=generator).to(dtype)
        found = []
        for align in (own, roi_align):
            given_maps = maps.clone().requires_grad_()
            pooled = align(given_maps, boxes, 0.25, 5, 7, ratio, aligned)
            (pooled * weights).sum().backward()
            assert given_maps.grad is not None
            found.append((pooled.detach(), given_maps.grad))
        for expected, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def sampled(plane: Tensor, y: float, x: float) -> float:
    """A bilinear sample, by the rules of the compiled operator."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    i, j = math.floor(y), math.floor(x)
    near = [(i, 1 - (y - i)), (min(i + 1, height - 1), y - i)], [(j, 1 - (x - j)), (min(j + 1, width - 1), x - j)]
    return sum(plane[r, c].item() * a * b for (r, a), (c, b) in product(*near))


@given(
    seed=st.integers(0, 2**16), ratio=st.integers(-1, 3), aligned=st.booleans(), scale=st.sampled_from([1.0, 0.5, 0.3])
)
@settings(max_examples=20, deadline=None)
def test_roi_align_of_boxes_anywhere_is_a_mean_of_samples(seed: int, ratio: int, aligned: bool, scale: float) -> None:
    maps = torch.rand(2, 1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    boxes = random_boxes(4, seed, -6.0, 14.0)
    pooled = roi_align(maps, boxes, scale, 2, 3, ratio, aligned)
    for box, found in zip(boxes.tolist(), pooled, strict=True):
        x0, y0, x1, y1 = (corner * scale - (0.5 if aligned else 0.0) for corner in box[1:])
        width, height = (x1 - x0, y1 - y0) if aligned else (max(x1 - x0, 1.0), max(y1 - y0, 1.0))
        down, across = (ratio, ratio) if ratio > 0 else (math.ceil(height / 2), math.ceil(width / 3))
        for row, column in product(range(2), range(3)):
            values = [
                sampled(maps[int(box[0]), 0], y0 + (row + (i + 0.5) / down) * height / 2, x)
                for i in range(down)
                for x in (x0 + (column + (j + 0.5) / across) * width / 3 for j in range(across))
            ]
            expected = sum(values) / len(values) if values else 0.0
            assert found[0, row, column].item() == pytest.approx(expected, abs=1e-10)


def test_torchvisions_roi_align_is_ours_or_agrees_with_it() -> None:
    maps = torch.rand(2, 3, 12, 16, generator=torch.Generator().manual_seed(0))
    boxes = random_boxes(20, 0, -20.0, 80.0).float()
    expected = roi_align(maps, boxes, 0.25, 7, 7, 2, False)
    torch.testing.assert_close(vision("torchvision.ops").roi_align(maps, boxes, 7, 0.25, 2), expected)
