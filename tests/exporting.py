"""Spiking networks to export: random parameters of few bits, with which every sum is exact in float32."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal import SpikingNetwork
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Spike, frozen
from spikecal.graph.stages import with_joints
from spikecal.neurons import SignedIntegrateAndFire

T, SIZE = 6, 8


def images(n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (n, 2, SIZE, SIZE), generator=generator) / 8


class Plain(nn.Module):
    """Convolutions one after the other, one of them with groups, then linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, groups=2), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """An identity skip, a skip with a strided convolution, one that drops positions and adds channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, (3, 1), padding=(1, 0))
        self.two = nn.Conv2d(4, 4, (1, 3), padding=(0, 1))
        self.down, self.side = nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(4, 8, 1, 2)
        self.last = nn.Conv2d(8, 16, 3, 2, 1)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.two(F.relu(self.one(x))) + x)
        x = F.relu(self.down(x) + self.side(x))
        x = F.relu(self.last(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4)))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """Average pools of three kinds, the first of the image itself, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 1),
        )
        self.last, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.stem(F.avg_pool2d(x, 2, 1, 1)[:, :, ::2, ::2])), 2, 1, 1)
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        x = F.relu(self.last(F.pad(x, (1, 0, 0, 1))))
        return self.fc(F.adaptive_avg_pool2d(F.avg_pool2d(x, 2, 2), 1).flatten(1))  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """A linear value with a bias that two layers read, a max-pool of spikes and one of a current."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.trunk = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.left, self.right = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        trunk = self.trunk(F.max_pool2d(x, 2)) + F.avg_pool2d(x, 2)
        x = F.relu(F.max_pool2d(self.left(trunk), 3, 2, 1)) + F.relu(F.avg_pool2d(self.right(trunk), 2))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class Sum(nn.Module):
    """A linear value of two inputs, of which one begins earlier, that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more, self.left, self.right = (nn.Conv2d(channels, 4, 1) for channels in (2, 4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.more(x))
        x = F.relu(self.left(x)) + F.relu(self.right(x))
        return x.mean((2, 3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"plain": Plain, "residual": Residual, "pooled": Pooled}


def spiking(
    model: nn.Module, example: Tensor, *, wait: Callable[[int], int] = lambda place: 0, seed: int = 0
) -> SpikingNetwork:
    """The network with random numbers of few bits for everything; `wait` says how long the n-th layer waits."""
    generator = torch.Generator().manual_seed(seed)

    def few(shape: tuple[int, ...]) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator) / 16

    model = model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(few(tuple(parameter.shape)))
    graph = with_joints(lower(model, (example,)))
    layers = [node for node in graph.nodes.values() if isinstance(node.op, Spike)]
    shapes = {name: value.shape for name, value in graph.walk(example)}
    for node in layers:
        channels, op = shapes[node.name][1], node.op
        assert isinstance(op, Spike)
        op.theta = frozen(2.0 ** torch.randint(-1, 2, (channels,), generator=generator))
        op.v_init, op.bias = frozen(few((channels,))), frozen(few((channels,)))
        op.step_bias = frozen(few((T, channels)))
    return SpikingNetwork(graph, T, {node.name: wait(place) for place, node in enumerate(layers)})


def with_signed(snn: SpikingNetwork) -> SpikingNetwork:
    """The network with signed neurons in its first two layers."""
    layers = [node.op for node in snn.graph.nodes.values() if isinstance(node.op, Spike)]
    for op in layers[:2]:
        op.neuron = SignedIntegrateAndFire()
    return snn
