"""Small versions of architectures people have, with the habits of their code."""

import torch
from torch import nn
from torch.nn import functional as F

from spikecal.graph.ops import Cat, ChannelAffine, Conv, Pad, Spike, Upsample


def count(graph, kind):
    return sum(isinstance(node.op, kind) for node in graph.nodes.values())


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class BasicBlock(nn.Module):
    """With the parameter-free shortcut of the CIFAR ResNets."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            wide = channels // 4
            self.shortcut = Lambda(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, wide, wide), "constant", 0))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class CifarResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layers = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
        self.linear = nn.Linear(16, 10)

    def forward(self, x):
        out = self.layers(F.relu(self.bn1(self.conv1(x))))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


def test_resnet_with_padded_shortcut(agree):
    graph = agree(CifarResNet(), (3, 8, 8), (3, 12, 12))
    assert (count(graph, Conv), count(graph, ChannelAffine), count(graph, Spike), count(graph, Pad)) == (5, 0, 5, 1)
    assert graph.nodes["layers.1.relu_2"].inputs == ("layers.1.add",)


class PreActivation(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.down = nn.Conv2d(inputs, channels, 1, stride) if stride > 1 else None

    def forward(self, x):
        out = self.relu(self.bn1(x))
        shortcut = self.down(out) if self.down is not None else x
        out = self.conv2(self.relu(self.bn2(self.conv1(out))))
        return out + shortcut


def test_pre_activation_resnet(agree):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), PreActivation(8, 8, 1), PreActivation(8, 12, 2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    graph = agree(model, (3, 8, 8), (3, 10, 6))
    assert count(graph, ChannelAffine) == 3  # of values that something else reads as well


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.drop = 0.2

    def forward(self, inputs):
        features = [inputs] if not isinstance(inputs, list) else inputs
        bottleneck = self.conv1(self.relu(self.norm1(torch.cat(features, 1))))
        new = self.conv2(self.relu(self.norm2(bottleneck)))
        return F.dropout(new, p=self.drop, training=self.training)


class DenseBlock(nn.ModuleDict):
    def __init__(self, layers, inputs, growth):
        super().__init__()
        for i in range(layers):
            self[f"layer{i}"] = DenseLayer(inputs + i * growth, growth)

    def forward(self, x):
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


def test_densenet(agree):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), DenseBlock(3, 4, 2), nn.BatchNorm2d(10), nn.ReLU(True), nn.Conv2d(10, 5, 1),
        nn.AvgPool2d(2, 2), DenseBlock(2, 5, 2), nn.BatchNorm2d(9), nn.ReLU(True),
    )  # fmt: skip
    assert count(agree(model, (3, 8, 8), (3, 6, 10)), Cat) == 5


class Inception(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.one = nn.Conv2d(inputs, 4, 1)
        self.three_a, self.three_b = nn.Conv2d(inputs, 2, 1), nn.Conv2d(2, 4, (3, 1), padding=(1, 0))
        self.pool = nn.Conv2d(inputs, 3, 1)

    def forward(self, x):
        one = F.relu(self.one(x), inplace=True)
        three = F.relu(self.three_b(F.relu(self.three_a(x))), inplace=True)
        pooled = F.relu(self.pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)), inplace=True)
        most = F.max_pool2d(x, kernel_size=3, stride=1, padding=1)
        return torch.cat([one, three, pooled, most], 1)


def test_inception(agree):
    agree(nn.Sequential(Inception(3), Inception(14), nn.Conv2d(25, 4, 1)), (3, 7, 7), (3, 6, 9))


class ShuffleUnit(nn.Module):
    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        out = torch.cat((x1, self.branch(x2)), dim=1)
        b, c, h, w = out.size()
        out = out.view(b, 2, c // 2, h, w)
        return torch.transpose(out, 1, 2).contiguous().view(b, c, h, w)


def test_shufflenet(agree):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), ShuffleUnit(8), ShuffleUnit(8))
    agree(model, (3, 16, 16), (3, 20, 12))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        hidden = inputs * 2
        self.use_res_connect = stride == 1 and inputs == channels
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True), nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            InvertedResidual(3, 4, 2), InvertedResidual(4, 4, 1), InvertedResidual(4, 4, 1), nn.Conv2d(4, 8, 1)
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 5))

    def forward(self, x):
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1))
        return self.classifier(torch.flatten(x, 1))


def test_mobilenet(agree):
    graph = agree(MobileNet(), (3, 8, 8), (3, 12, 6))
    assert all(node.op.clip == 6 for node in graph.nodes.values() if isinstance(node.op, Spike))
    assert count(graph, ChannelAffine) == 0


class Fusion(nn.Module):
    """High resolution networks bring every branch to the size of each other."""

    def __init__(self):
        super().__init__()
        self.high, self.low = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, 2, 1)
        self.up, self.down = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        high, low = self.relu(self.high(x)), self.relu(self.low(x))
        height, width = high.shape[-2], high.shape[-1]
        up = F.interpolate(self.up(low), size=[height, width], mode="bilinear", align_corners=False)
        return [self.relu(high + up), self.relu(self.down(high) + low)]


def test_branches_at_several_resolutions(agree):
    graph = agree(Fusion(), (3, 9, 9), (3, 7, 12))
    (up,) = (node for node in graph.nodes.values() if isinstance(node.op, Upsample))
    assert up.shape_refs == ("high",)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.leave = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x):
        high = F.relu(self.enter(x))
        low = F.relu(self.down(F.max_pool2d(high, 2)))
        up = self.up(low)
        dy, dx = high.size()[2] - up.size()[2], high.size()[3] - up.size()[3]
        up = F.pad(up, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.leave(torch.cat([high, up], dim=1))


def test_unet_with_sizes_that_do_not_divide(agree):
    agree(UNet(), (3, 9, 8), (3, 12, 11))


class Pyramid(nn.Module):
    """A feature pyramid: a dictionary in, a dictionary out, added from the top down."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 2, 1)])
        self.inner = nn.ModuleList([nn.Conv2d(c, 4, 1) for c in (4, 6, 8)])
        self.layer = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)])

    def forward(self, x):
        features = {}
        for i, stage in enumerate(self.stages):
            x = F.relu(stage(x))
            features[f"{i}"] = x
        names, values = list(features.keys()), list(features.values())
        last = self.inner[-1](values[-1])
        results = [self.layer[-1](last)]
        for i in range(len(values) - 2, -1, -1):
            inner = self.inner[i](values[i])
            last = inner + F.interpolate(last, size=inner.shape[-2:], mode="nearest")
            results.insert(0, self.layer[i](last))
        names.append("pool")
        results.append(F.max_pool2d(results[-1], 1, 2, 0))
        return dict(zip(names, results, strict=True))


def test_feature_pyramid(agree):
    graph = agree(Pyramid(), (3, 17, 17), (3, 24, 14))
    assert list(graph.output) == ["0", "1", "2", "pool"]
    assert [n.shape_refs for n in graph.nodes.values() if isinstance(n.op, Upsample)] == [("inner.1",), ("inner.0",)]


class Res2(nn.Module):
    def __init__(self, channels=8, scale=4):
        super().__init__()
        self.width = channels // scale
        self.convs = nn.ModuleList([nn.Conv2d(self.width, self.width, 3, padding=1) for _ in range(scale - 1)])

    def forward(self, x):
        parts = torch.split(x, self.width, 1)
        part = parts[0]
        outputs = []
        for i, conv in enumerate(self.convs):
            part = part if i == 0 else part + parts[i]
            part = F.relu(conv(part))
            outputs.append(part)
        return torch.cat([*outputs, parts[-1]], 1)


def test_split_and_joined_scales(agree):
    agree(nn.Sequential(nn.Conv2d(3, 8, 1), Res2()), (3, 6, 6), (3, 5, 8))
