"""torchvision, also beside a CPU-only torch.

PyPI's torchvision is built for a CUDA torch. Beside a CPU-only one its compiled operators do not load, and even
`import torchvision` fails with "operator torchvision::nms does not exist". `prepare()` declares the two operators that
the import asks for and gives `nms` a body of tensor operations. Where the real operators load, it does nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_library: torch.library.Library | None = None  # operators live as long as the object that declared them


def vision(module: str = "torchvision") -> ModuleType:
    """Import torchvision, or one of its modules."""
    prepare()
    return import_module(module)


def prepare() -> None:
    """Make `import torchvision` work, for packages that do it themselves; nothing where it does already."""
    global _library
    found = find_spec("torchvision")
    if _library is not None or found is None or found.origin is None or _loads(Path(found.origin).parent):
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        _library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.impl("nms", nms, "CompositeExplicitAutograd")
    # These refuse to go on without compiled operators; with the body above nms has no need of them.
    import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None  # type: ignore[attr-defined]
    pooling: Any = import_module("torchvision.ops.roi_align")
    pooling._assert_has_ops = lambda: None
    # torchvision compiles its own roi_align on first use, which takes minutes where it works at all.
    pooling._roi_align = getattr(pooling._roi_align, "__wrapped__", pooling._roi_align)


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
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    kept = []
    for i in range(len(boxes)):
        if not alive[i]:
            continue
        kept.append(i)
        low, high = torch.maximum(boxes[i, :2], boxes[i + 1 :, :2]), torch.minimum(boxes[i, 2:], boxes[i + 1 :, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        alive[i + 1 :] &= shared <= iou_threshold * (areas[i] + areas[i + 1 :] - shared)
    return order[kept]
