"""torchvision imports, and its operators work, beside whatever torch there is."""

import torch
from torch import Tensor

from spikecal.vision import nms, vision


def brute_force(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        a = boxes[i]
        for j in kept:
            b = boxes[j]
            width = max(0.0, min(a[2].item(), b[2].item()) - max(a[0].item(), b[0].item()))
            height = max(0.0, min(a[3].item(), b[3].item()) - max(a[1].item(), b[1].item()))
            area = sum(((x[2] - x[0]) * (x[3] - x[1])).item() for x in (a, b))
            if width * height / (area - width * height) > threshold:
                break
        else:
            kept.append(i)
    return kept


def test_torchvision_imports_and_its_nms_is_ours_or_agrees_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(80, 4, generator=generator)
    boxes[:, 2:] += boxes[:, :2] + 0.05
    scores = torch.rand(80, generator=generator)
    expected = brute_force(boxes, scores, 0.4)
    assert 5 < len(expected) < 60
    assert nms(boxes, scores, 0.4).tolist() == expected
    assert vision("torchvision.ops").nms(boxes, scores, 0.4).tolist() == expected


def test_no_boxes() -> None:
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


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
