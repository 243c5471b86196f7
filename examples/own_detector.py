"""Your own detector with a spiking body: what spikecal needs of it, converted, saved, loaded and measured.

python examples/own_detector.py
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from spikecal import detection


class GridDetector(nn.Module):
    """One box for each cell of a grid: a body that spikes, a head that stays analog, and decoding in Python."""

    spiking_body = "body"  # the part to convert

    def __init__(self, labels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Conv2d(32, 4 + labels, 1)

    def prepared(self, image: Tensor) -> Tensor:
        """An image [3, H, W] in 0..1 as it reaches the body; leave this out if that is the image itself."""
        return (image - 0.5) / 0.25

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        """What torchvision's detectors return: boxes, labels and scores of each image."""
        return [self.decoded(self.head(self.body(self.prepared(image)[None]))[0]) for image in images]

    def decoded(self, cells: Tensor) -> dict[str, Tensor]:
        size, scores = 8 * cells[:4].exp(), cells[4:].softmax(0)
        rows, columns = torch.meshgrid(*(8.0 * torch.arange(n) + 4 for n in cells.shape[1:]), indexing="ij")
        boxes = torch.stack([columns - size[0], rows - size[1], columns + size[2], rows + size[3]], dim=-1)
        best, labels = scores[1:].max(0)  # label 0 is the background
        return {"boxes": boxes.flatten(0, 1), "labels": labels.flatten() + 1, "scores": best.flatten()}


def main(folder: Path) -> detection.Precision:
    torch.manual_seed(0)
    detector = GridDetector().eval()
    images = list(torch.rand(12, 3, 48, 64))
    made = detection.convert(detector, images, T=16, pipeline="lcp")
    made.save(folder / "detector.snn")  # the spiking body; the rest of the detector is yours
    spiking = detection.load(folder / "detector.snn", detector)
    target = {"boxes": torch.tensor([[8.0, 8.0, 24.0, 24.0]]), "labels": torch.tensor([1])}
    return detection.evaluate(spiking, [(image, target) for image in images])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = main(Path(folder))
    print(f"mAP {found.map:.3f}, {found.energy.ratio:.2f} of the analog body's energy" if found.energy else found)
