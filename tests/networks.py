"""Small networks that several tests convert. With dyadic weights every sum in them is exact in float32."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """BN, a skip with a 1x1 convolution, a max-pool, a linear trunk that two branches read, cat, average pool."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.skip = nn.Conv2d(8, 8, 1)
        self.trunk = nn.Conv2d(8, 8, 1)
        self.left = nn.Conv2d(8, 4, 3, padding=1, groups=4)
        self.right = nn.Conv2d(8, 4, 1)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.max_pool2d(F.relu(self.body(x) + self.skip(x)), 2)
        trunk = self.trunk(x)
        x = torch.cat([F.relu(self.left(trunk)), F.relu(self.right(trunk))], 1)
        return self.fc(x.mean((2, 3)))


def residual(seed: int = 0) -> Residual:
    torch.manual_seed(seed)
    model = Residual()
    model.bn.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
    model.bn.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return model.eval().requires_grad_(False)


class Dyadic(nn.Module):
    """The same parts without BN; its average pool divides by a power of two."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.trunk = nn.Conv2d(4, 4, 1)
        self.left = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.depthwise(x) + x)
        pooled = F.max_pool2d(x, 2)  # of spikes: x is read again
        trunk = self.trunk(pooled) + F.avg_pool2d(x, 2)
        x = torch.cat([F.max_pool2d(F.relu(self.left(trunk)), 2), F.relu(self.right(F.avg_pool2d(trunk, 2)))], 1)
        return self.fc(x.mean((2, 3)))


def dyadic(seed: int = 0) -> Dyadic:
    generator = torch.Generator().manual_seed(seed)
    model = Dyadic().eval().requires_grad_(False)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-8, 9, p.shape, generator=generator) / 16)
    return model


def dyadic_images(n: int, size: int = 8, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (n, 2, size, size), generator=generator) / 8


def images(n: int, size: int = 8, channels: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


class Deep(nn.Module):
    """Narrow and deep, with skips: what spikes distort most."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for first, second in zip(self.first, self.second, strict=True):
            x = F.relu(second(F.relu(first(x))) + x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def deep() -> Deep:
    torch.manual_seed(3)
    model = Deep().eval().requires_grad_(False)
    model.fc.weight.mul_(40)  # so that answers differ
    return model


class Function(nn.Module):
    """What a function makes of a convolution."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.conv(x))
