"""Small networks for CIFAR-10 of kinds that the paper does not have, to test AUTO and joints.

    spikecal train bench/small_networks.py:mobilenet --data cifar10 --config weights/small.toml --half -o FILE

trains one of them, and likewise the others of `NETWORKS`; weights/ has them. They take images of 32 pixels, and smaller
ones. Nothing was tuned on them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64)
CLASSES = 10


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size (divided by its stride), and BN."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def head(inputs: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]


class Inverted(nn.Module):
    """MobileNetV2's block: expansion, depthwise convolution, linear projection; a skip if the shape stays."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        kernel: int = 3,
        expansion: int = 4,
        act: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        self.layers = nn.Sequential(
            *convolution(inputs, inner, 1), act(),
            *convolution(inner, inner, kernel, stride, groups=inner), act(),
            *convolution(inner, outputs, 1),
        )  # fmt: skip
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.same else self.layers(x)


def mobilenet() -> nn.Module:
    """MobileNetV2-like: depthwise convolutions, ReLU6, linear values between blocks."""
    blocks = [
        Inverted(inputs, outputs, stride, act=nn.ReLU6)
        for inputs, outputs, stride in ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1))
    ]
    return nn.Sequential(*convolution(3, 16), nn.ReLU6(), *blocks, *convolution(48, 192, 1), nn.ReLU6(), *head(192))


def mnasnet() -> nn.Module:
    """MNASNet-like: plain ReLU, kernels of 3 and 5, expansions of 3."""
    blocks = [
        Inverted(inputs, outputs, stride, kernel=kernel, expansion=3, act=nn.ReLU)
        for inputs, outputs, stride, kernel in (
            (16, 16, 1, 3), (16, 24, 2, 3), (24, 24, 1, 3), (24, 48, 2, 5), (48, 48, 1, 5),
        )
    ]  # fmt: skip
    return nn.Sequential(*convolution(3, 16), nn.ReLU(), *blocks, *convolution(48, 160, 1), nn.ReLU(), *head(160))


class PreActivation(nn.Module):
    """He et al.'s second residual block: BN and ReLU before each convolution, nothing after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )  # fmt: skip
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.layers(y) + (x if self.skip is None else self.skip(y))


def preact() -> nn.Module:
    """A pre-activation ResNet-14."""
    blocks, inputs = [], WIDTHS[0]
    for group, width in enumerate(WIDTHS):
        for block in range(2):
            blocks.append(PreActivation(inputs, width, 2 if group and not block else 1))
            inputs = width
    return nn.Sequential(
        nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), *blocks, nn.BatchNorm2d(inputs), nn.ReLU(), *head(inputs)
    )


class Dense(nn.Module):
    """DenseNet's layer: its output is appended to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, 1, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet(growth: int = 12, layers: int = 4) -> nn.Module:
    """DenseNet-like: three groups of concatenating layers, average pools between them."""
    found: list[nn.Module] = [nn.Conv2d(3, 24, 3, 1, 1, bias=False)]
    channels = 24
    for group in range(3):
        for _ in range(layers):
            found.append(Dense(channels, growth))
            channels += growth
        found += [nn.BatchNorm2d(channels), nn.ReLU()]
        if group < 2:
            found += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*found, *head(channels))


def plain() -> nn.Module:
    """Six convolutions without BN, and max-pools."""
    layers: list[nn.Module] = []
    for inputs, outputs, pool in ((3, 32, 0), (32, 32, 1), (32, 64, 0), (64, 64, 1), (64, 96, 0), (96, 96, 0)):
        conv = nn.Conv2d(inputs, outputs, 3, 1, 1)
        nn.init.kaiming_normal_(conv.weight)
        layers += [conv, nn.ReLU(), *[nn.MaxPool2d(2)] * pool]
    return nn.Sequential(*layers, *head(96))


class Branches(nn.Module):
    """Inception's block: convolutions of 1, 3 and 3 after 3, and a pooled one, side by side."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        relu = nn.ReLU
        self.one = nn.Sequential(*convolution(inputs, width, 1), relu())
        self.three = nn.Sequential(*convolution(inputs, width, 1), relu(), *convolution(width, width), relu())
        self.five = nn.Sequential(
            *convolution(inputs, width, 1), relu(),
            *convolution(width, width), relu(), *convolution(width, width), relu(),
        )  # fmt: skip
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), *convolution(inputs, width, 1), relu())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def inception() -> nn.Module:
    """Inception-like: branches of unequal depth, concatenated; max-pools with overlap."""
    return nn.Sequential(
        *convolution(3, 32), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Branches(32, 16), Branches(64, 16), nn.MaxPool2d(3, 2, 1), Branches(64, 24), *head(96),
    )  # fmt: skip


NETWORKS = {function.__name__: function for function in (mobilenet, mnasnet, preact, densenet, plain, inception)}
