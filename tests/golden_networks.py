"""Small networks under every preset, and what became of them: recorded once, compared ever after.

    python tests/golden_networks.py     writes tests/golden/results.safetensors anew

That is for a change that is meant to change figures. Everything is float64 and weights are multiples of 1/64, so that
first layers are exact and processors that add in another order do not flip spikes.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import Pipeline, Weights
from spikecal.pipeline import PRESETS

RESULTS = Path(__file__).parent / "golden" / "results.safetensors"
CALIBRATION, TESTED, SIZE, T = 24, 3, 6, 4


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, stride=2, padding=1)
        self.c, self.fc = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        return self.fc(F.relu(self.c(x.mean((2, 3)))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c, self.skip, self.fc = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(4, 6, 1, 2), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.relu(self.b(F.relu(self.a(x))) + x)
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.c(x) + self.skip(x)), 1).flatten(1))


class Joints(nn.Module):
    """Inverted residuals: a linear trunk that several stages read, depthwise convolutions, ReLU6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.expand, self.project = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        self.depth, self.bn = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.last, self.fc = nn.Conv2d(4, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        trunk = self.stem(x)
        y = F.relu6(self.bn(self.depth(F.relu6(self.expand(trunk)))))
        return self.fc(F.relu(self.last(trunk + self.project(y))).mean((2, 3)))


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(6, 3, 1)
        self.bn, self.fc = nn.BatchNorm2d(6), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = torch.cat([x, F.relu(self.b(x))], 1)
        x = torch.cat([x, F.relu(self.c(F.relu(self.bn(x))))], 1)
        return self.fc(F.avg_pool2d(x, SIZE).flatten(1))


class MaxPools(nn.Module):
    """Of a current, of spikes that are read again, and of spikes that were put together."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 5, 1)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        y = F.relu(self.b(x))
        z = F.max_pool2d(torch.cat([x, y], 1), 2)
        return self.fc(F.max_pool2d(self.c(z), 3).flatten(1)) + F.max_pool2d(y, SIZE).flatten(1)


class Body(nn.Module):
    """What a detector has in front of its pyramid: several maps, which are activations, from images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 6, 3, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.relu(self.a(x) + x)
        return {"0": x, "1": F.relu(self.b(x))}


NETWORKS = {kind.__name__.lower(): kind for kind in (Plain, Residual, Joints, Concat, MaxPools, Body)}


def network(name: str) -> nn.Module:
    generator = torch.Generator().manual_seed(7)
    model = NETWORKS[name]().double().eval().requires_grad_(False)
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            low = 32 if key.endswith("running_var") else -48  # a variance is positive
            value.copy_(torch.randint(low, 49, value.shape, generator=generator) / 64)
    return model


def images(name: str, count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(SIZE, SIZE)] if name != "body" else [(24, 16), (16, 24)]
    return [
        torch.randint(-32, 65, (3, *sizes[i % len(sizes)]), generator=generator).double() / 32 for i in range(count)
    ]


def pipeline(preset: str) -> Pipeline:
    return PRESETS[preset].changed(Weights, iterations=20, batch=8, lr=1e-4)


def converted(name: str, preset: str, steps: list[int]) -> spikecal.Result:
    seen = images(name, CALIBRATION, 1)
    return spikecal.convert(network(name), seen, T=steps, pipeline=pipeline(preset), joints="analog")


def measured(name: str, preset: str) -> Iterator[tuple[str, Tensor]]:
    """Everything a conversion gives: parameters, errors by stage, outputs after every step, spikes of every layer."""
    result = converted(name, preset, [T])
    for node in result.snn.graph.nodes.values():
        for kind, value in node.op.tensors().items():
            if kind != "weight" or preset == "acp":
                yield f"{node.name}:{kind}", value.detach()
    yield "errors", torch.tensor([e for record in result.records for _, e in record.errors], dtype=torch.float64)
    yield from ran(name, result.snn)


def ran(name: str, snn: spikecal.SpikingNetwork) -> Iterator[tuple[str, Tensor]]:
    """Outputs after every step and spikes of every layer."""
    for i, image in enumerate(images(name, TESTED, 2)):
        run = snn.run(image.unsqueeze(0))
        outputs = run.outputs if isinstance(run.outputs, dict) else {"": run.outputs}
        yield from ((f"output {i} {key}", value) for key, value in outputs.items())
        yield from ((f"spikes {i} {key}", value.to(torch.uint8)) for key, value in run.spikes.items())


def main() -> None:
    found = {
        f"{name}/{preset}/{key}": value.contiguous()
        for name in NETWORKS
        for preset in PRESETS
        for key, value in measured(name, preset)
    }
    save_file(found, RESULTS)


if __name__ == "__main__":
    main()
