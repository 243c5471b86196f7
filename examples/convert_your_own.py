"""Convert your own network: F.relu, a skip connection and max-pooling, none of it prepared for spikes.

    python examples/convert_your_own.py

Trains a small network on striped images for a few seconds, converts it, shows what every stage lost, saves and loads.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal

CLASSES, SIZE = 12, 16
STEPS = (2, 4, 8, 16)


class Net(nn.Module):
    def __init__(self, width: int = 16, blocks: int = 4) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(blocks))
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)) + x)
        return self.classifier(x.mean((2, 3)))


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy stripes; the class is their direction."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    angle = labels.view(-1, 1, 1) * (torch.pi / CLASSES)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    waves = torch.sin(0.9 * (angle.cos() * rows + angle.sin() * columns) + phase)
    return (waves + 0.8 * torch.randn(waves.shape, generator=generator)).unsqueeze(1), labels


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(150):
        batch = slice(step * 64 % len(images), step * 64 % len(images) + 64)
        optimiser.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimiser.step()
    model.eval()


def main() -> None:
    torch.manual_seed(0)
    images, labels = stripes(3200, seed=0)
    test_images, test_labels = stripes(1000, seed=1)
    model = Net()
    train(model, images, labels)
    with torch.no_grad():
        print(f"{'ANN':22s} {(model(test_images).argmax(1) == test_labels).float().mean():.3f}")

    # Presets by name, and a pipeline of your own. With very few steps, none is always best: measure.
    own = spikecal.Pipeline(rounding="potential", sweeps=((spikecal.Bias(),),))
    for name, pipeline in {"maxact": "maxact", "baseline": "baseline", "lcp": "lcp", "round by potential": own}.items():
        result = spikecal.convert(model, images, T=STEPS, pipeline=pipeline)  # labels are not needed
        accuracy = [spikecal.evaluate(result.at(T), (test_images, test_labels)).accuracy[-1] for T in STEPS]
        print(f"{name:22s} " + "   ".join(f"T={T} {share:.3f}" for T, share in zip(STEPS, accuracy, strict=True)))

    print(f"\nthe stages of the last one, at T={STEPS[-1]}")
    for record in result.records:
        if record.T == STEPS[-1]:
            errors = ", ".join(f"{label} {error:.4f}" for label, error in record.errors)
            rate = "no neurons" if record.rate is None else f"firing rate {record.rate:.2f}"
            print(f"  {record.stage:18s} relative error {errors}; {rate}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.snn")
        result.save(path)
        snn = spikecal.load(path, T=2)  # no Net and no pickle needed
        same = torch.equal(snn(test_images), result.at(2)(test_images))
        print(f"\nsaved {path.stat().st_size:,} bytes; the same outputs after loading: {same}")

    try:
        spikecal.convert(nn.Sequential(model.stem, nn.GELU()), images, T=4)
    except spikecal.ConversionError as error:
        print(f"\nrefused: {error}")


if __name__ == "__main__":
    main()
