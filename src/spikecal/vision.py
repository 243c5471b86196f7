"""torchvision, even with a CPU-only torch.

PyPI's torchvision is built for a CUDA torch. With a CPU-only one, its compiled operators do not load, and even
`import torchvision` fails with "operator torchvision::nms does not exist". `declare()` declares the two operators that
the import asks for; `prepare()` also implements `nms` and `roi_align` by tensor operations. If the real operators
load, both do nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.errors import ConfigError

OUTSIDE = -2.0  # where a map of any size is zero
BOXES = 256  # that nms compares at a time

_library: torch.library.Library | None = None  # operators live as long as this object


def vision(module: str = "torchvision") -> ModuleType:
    """Import torchvision, or one of its modules; `ConfigError` if it is not installed."""
    try:
        prepare()
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchvision":
            raise
        raise ConfigError("this needs torchvision, which is not installed: pip install torchvision") from error


def declare() -> bool:
    """Make `import torchvision` work, for code that does it itself; returns whether that was needed."""
    global _library
    found = find_spec("torchvision") if _library is None else None
    if found is None or found.origin is None or _loads(Path(found.origin).parent):
        return _library is not None
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        _library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.impl("nms", nms, "CompositeExplicitAutograd")
    return True


def prepare() -> None:
    """Import torchvision with working operators, also for packages that use it themselves."""
    if not declare():
        return
    # These refuse to go on without compiled operators; with the function above, nms needs none.
    import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None  # type: ignore[attr-defined]
    pooling: Any = import_module("torchvision.ops.roi_align")
    pooling._assert_has_ops = lambda: None
    # torchvision's own version in Python is slow, and compiles on first use, which takes minutes if it works at all.
    pooling._roi_align = roi_align


def _loads(package: Path) -> bool:
    """Whether the compiled operators of the torchvision in `package` fit this torch."""
    try:
        for library in (*package.glob("_C*.so"), *package.glob("_C*.pyd")):
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes to keep, best first: a kept box drops those that overlap it by more than the threshold."""
    order = scores.argsort(descending=True, stable=True)
    kept = order[:0]
    for some in order.split(BOXES):
        some = some[~_overlap(boxes[kept], boxes[some], iou_threshold).any(0)]
        drops = _overlap(boxes[some], boxes[some], iou_threshold).triu(1)
        kept = torch.cat([kept, some[_undropped(drops)]])
    return kept


def _undropped(drops: Tensor) -> Tensor:
    """Which of n items stay, if one that stays drops those in its row of `drops` [n, n], all of them after it.

    Whether an item stays depends only on those before it. So each round settles at least one more, and what a round
    does not change is the answer.
    """
    stays = torch.ones(len(drops), dtype=torch.bool, device=drops.device)
    while not torch.equal(settled := ~drops[stays].any(0), stays):
        stays = settled
    return stays


def _overlap(some: Tensor, others: Tensor, threshold: float) -> Tensor:
    """Which boxes [n, 4] overlap which others [m, 4] by more than `threshold` of their union."""
    left, top, right, bottom = some.T[:, :, None]
    lefts, tops, rights, bottoms = others.T[:, None, :]
    width = torch.minimum(right, rights) - torch.maximum(left, lefts)
    height = torch.minimum(bottom, bottoms) - torch.maximum(top, tops)
    shared = width.clamp(min=0) * height.clamp(min=0)
    areas = (right - left) * (bottom - top) + (rights - lefts) * (bottoms - tops)
    return shared > threshold * (areas - shared)


def roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Means over the bins of boxes in feature maps, by bilinear samples, as torchvision's operator.

    `features` [N, C, H, W], `rois` [K, 5] (image, x0, y0, x1, y1); returns [K, C, pooled_height, pooled_width]. A
    sample more than a pixel beyond a map is zero, as in the compiled operator; torchvision's own in Python takes the
    border's value there. Boxes of one image with equally many samples per bin are sampled in one call.
    """
    corners = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    bins = (size if aligned else size.clamp(min=1.0)) / size.new_tensor([pooled_width, pooled_height])
    samples = bins.ceil().clamp(min=0) if sampling_ratio <= 0 else torch.full_like(bins, sampling_ratio)
    alike = torch.cat([rois[:, :1], samples], dim=1)
    pooled = features.new_zeros(len(rois), features.shape[1], pooled_height, pooled_width)
    for group in alike.unique(dim=0):
        chosen = (alike == group).all(1).nonzero()[:, 0]
        image, across, down = group.int().tolist()
        if across * down == 0:  # a box of no area has no samples
            continue
        x = _places(start[chosen, 0], bins[chosen, 0], pooled_width, across, features.shape[3])
        y = _places(start[chosen, 1], bins[chosen, 1], pooled_height, down, features.shape[2])
        grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=3)  # [k, rows, columns, 2]
        values = F.grid_sample(features[image : image + 1], grid.flatten(0, 1)[None], align_corners=False)
        means = F.avg_pool2d(values, (down, across))[0].unflatten(1, (-1, pooled_height))  # [C, k, ...]
        pooled[chosen] = means.transpose(0, 1)
    return pooled


def _places(start: Tensor, bins: Tensor, count: int, samples: int, size: int) -> Tensor:
    """Positions of the samples [k, count * samples] of boxes along one side, from -1 to 1 across the map."""
    steps = (torch.arange(count * samples, dtype=bins.dtype, device=bins.device) + 0.5) / samples
    places = start[:, None] + steps * bins[:, None]
    inside = (places >= -1) & (places <= size)
    return torch.where(inside, (2 * places.clamp(0, size - 1) + 1) / size - 1, OUTSIDE)
