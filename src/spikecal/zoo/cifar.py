"""CIFAR networks of the paper: residual networks and VGG-16, for 32x32 images, with and without BN."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

DROPOUT = 0.25  # in networks without BN


def norm(channels: int, bn: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if bn else nn.Identity()


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, bn: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not bn)
        self.bn1 = norm(outputs, bn)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=not bn)
        self.bn2 = norm(outputs, bn)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=not bn), norm(outputs, bn))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + self.skip(x))


def basic_blocks(inputs: int, plan: Iterable[tuple[int, int]], bn: bool) -> list[BasicBlock]:
    """Groups with these numbers of channels and blocks; each except the first halves the size."""
    blocks: list[BasicBlock] = []
    for group, (width, count) in enumerate(plan):
        for block in range(count):
            blocks.append(BasicBlock(inputs, width, 2 if group > 0 and block == 0 else 1, bn))
            inputs = width
    return blocks


class ResNet(nn.Module):
    """He et al.'s CIFAR residual network: depth = 6 * blocks + 2."""

    def __init__(
        self, blocks: int, widths: Sequence[int] = (16, 32, 64), classes: int = 10, *, bn: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=not bn)
        self.bn1 = norm(widths[0], bn)
        self.relu1 = nn.ReLU()
        layers = basic_blocks(widths[0], [(width, blocks) for width in widths], bn)
        self.blocks = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Identity() if bn else nn.Dropout(DROPOUT)
        self.fc = nn.Linear(widths[-1], classes)
        initialise(self)
        if not bn:
            quiet_branches(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu1(self.bn1(self.conv1(x))))
        return self.fc(self.dropout(torch.flatten(self.pool(x), 1)))


class VGG16(nn.Module):
    """VGG-16 for 32x32 images: thirteen 3x3 convolutions, average pooling, one linear layer."""

    PLAN = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)

    def __init__(self, width: float = 1.0, classes: int = 10, *, bn: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in self.PLAN:
            if outputs == 0:
                layers += [nn.AvgPool2d(2)] if bn else [nn.AvgPool2d(2), nn.Dropout(DROPOUT)]
                continue
            outputs = int(outputs * width)
            layers += [
                nn.Conv2d(inputs, outputs, 3, 1, 1, bias=not bn),
                *([nn.BatchNorm2d(outputs)] if bn else []),
                nn.ReLU(),
            ]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)
        # scaled by outputs, a plain network of this depth starts out so quiet that it never learns
        initialise(self, "fan_out" if bn else "fan_in")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def initialise(model: nn.Module, by: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Kaiming initialisation of the convolutions, as in the residual-network paper."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=by, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def quiet_branches(blocks: Sequence[BasicBlock]) -> None:
    """Without BN, every block would double the variance: start each branch with its share of the sum instead."""
    for block in blocks:
        block.conv2.weight.mul_(len(blocks) ** -0.5)
