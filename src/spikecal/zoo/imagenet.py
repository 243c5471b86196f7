"""ImageNet networks of the paper. All use average pools, as there: a maximum over spikes is no longer spikes."""

import math
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor, nn

from spikecal.zoo.cifar import DROPOUT, VGG16, basic_blocks, initialise, norm, quiet_branches

CLASSES = 1000


def unit(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, bn: bool = True, relu: bool = True
) -> Iterator[nn.Module]:
    """A convolution that keeps the size except for its stride, with norm and activation."""
    yield nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=not bn)
    yield norm(outputs, bn)
    if relu:
        yield nn.ReLU()


class ResNet34(nn.Module):
    """ResNet-34 with a deep stem: three 3x3 convolutions instead of one 7x7 (He et al. 2019, ResNet-C)."""

    PLAN = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels and blocks of each group

    def __init__(self, classes: int = CLASSES, *, bn: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *unit(3, 32, 3, 2, bn=bn), *unit(32, 32, 3, bn=bn), *unit(32, 64, 3, bn=bn), nn.AvgPool2d(3, 2, 1)
        )
        blocks = basic_blocks(64, self.PLAN, bn)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Identity() if bn else nn.Dropout(DROPOUT)
        self.fc = nn.Linear(self.PLAN[-1][0], classes)
        initialise(self)
        if not bn:
            quiet_branches(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.blocks(self.stem(x)))
        return self.fc(self.dropout(torch.flatten(x, 1)))


class VGG16ImageNet(nn.Module):
    """VGG-16 with its three linear layers; other sizes than 224 are averaged to their 7x7.

    Modules are numbered as in torchvision, so that its checkpoints fit (though trained with max-pooling).
    """

    def __init__(self, classes: int = CLASSES, *, bn: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in VGG16.PLAN:
            if outputs == 0:
                layers.append(nn.AvgPool2d(2))
                continue
            layers.append(nn.Conv2d(inputs, outputs, 3, 1, 1))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()] if bn else [nn.ReLU()]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * 7 * 7, 4096), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(4096, classes),
        )  # fmt: skip
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class MobileNet(nn.Module):
    """MobileNet v1 (Howard et al. 2017, table 1): alternating depthwise 3x3 and pointwise convolutions."""

    PLAN = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        layers = [*unit(3, 32, 3, 2)]
        inputs = 32
        for width, stride in self.PLAN:
            layers += [*unit(inputs, inputs, 3, stride, groups=inputs), *unit(inputs, width)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.features(x)), 1))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; a skip if the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.skips = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *unit(inputs, wide), *unit(wide, wide, kernel, stride, groups=wide), *unit(wide, outputs, relu=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.skips else self.layers(x)


class MNASNet(nn.Module):
    """MNASNet-B1 (Tan et al. 2019) with all layers except the last `width` times as wide; torchvision's names."""

    # channels, kernel, stride, expansion, blocks
    PLAN = (
        (24, 3, 2, 3, 3),
        (40, 5, 2, 3, 3),
        (80, 5, 2, 6, 3),
        (96, 3, 1, 6, 2),
        (192, 5, 2, 6, 4),
        (320, 3, 1, 6, 1),
    )

    _version = 2  # torchvision's version with this layout: in its first, the stem had a fixed width

    def __init__(self, width: float = 2.0, classes: int = CLASSES) -> None:
        super().__init__()
        stem, inputs = scaled(32, width), scaled(16, width)
        layers = [*unit(3, stem, 3, 2), *unit(stem, stem, 3, groups=stem), *unit(stem, inputs, relu=False)]
        for channels, kernel, stride, expansion, count in self.PLAN:
            blocks = []
            for block in range(count):
                outputs = scaled(channels, width)
                blocks.append(InvertedResidual(inputs, outputs, kernel, stride if block == 0 else 1, expansion))
                inputs = outputs
            layers.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*layers, *unit(inputs, 1280))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layers(x).mean((2, 3)))


def scaled(channels: int, width: float) -> int:
    """The multiple of 8 nearest to `channels * width`, but at least nine tenths of it."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * exact else rounded + 8


class XBlock(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions of one width, and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int, group_width: int) -> None:
        super().__init__()
        grouped = unit(outputs, outputs, 3, stride, groups=outputs // group_width)
        self.layers = nn.Sequential(*unit(inputs, outputs), *grouped, *unit(outputs, outputs, relu=False))
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(*unit(inputs, outputs, 1, stride, relu=False))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.layers(x) + self.skip(x))


class RegNetX(nn.Module):
    """RegNetX (Radosavovic et al. 2020) from its parameters; the defaults are those of RegNetX-4GF."""

    def __init__(
        self,
        depth: int = 23,
        initial: int = 96,
        slope: float = 38.65,
        step: float = 2.43,
        group_width: int = 40,
        classes: int = CLASSES,
    ) -> None:
        super().__init__()
        layers = [*unit(3, 32, 3, 2)]
        inputs = 32
        for width, count in regnet_stages(depth, initial, slope, step, group_width):
            for block in range(count):
                layers.append(XBlock(inputs, width, 2 if block == 0 else 1, group_width))
                inputs = width
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(x)), 1))


def regnet_stages(depth: int, initial: int, slope: float, step: float, group_width: int) -> list[tuple[int, int]]:
    """Width and number of blocks of each stage.

    Block j has width u = w_0 + w_a j, moved to the nearest w_0 w_m^s with integer s, to a multiple of 8, and to one of
    the group width (section 3.3 and appendix B there).
    """
    widths = []
    for j in range(depth):
        s = round(math.log((initial + slope * j) / initial) / math.log(step))
        multiple = round(initial * step**s / 8) * 8
        group = min(group_width, multiple)
        widths.append((multiple + group // 2) // group * group)
    return [(width, len(list(blocks))) for width, blocks in groupby(widths)]
