"""Linear values that weights read: where they are, and what they become."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import dyadic, dyadic_images, images
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal import ConfigError
from spikecal.graph.graph import Graph
from spikecal.graph.joints import JOINTS, analog_readers, analog_values, linear_values, staged
from spikecal.graph.lowering.lower import lower
from spikecal.graph.merging import composed, multiply_adds
from spikecal.graph.ops import Conv, ConvTranspose, Linear, MaxPool, Op, SignedSpike
from spikecal.graph.stages import partition


class Network(nn.Module):
    """A stem of spikes, and layers to read values with."""

    def __init__(self, body: Callable[["Network", Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.linear, self.next, self.other = (nn.Conv2d(n, 4, 3, padding=1) for n in (3, 4, 4, 4))
        self.wide, self.norm, self.fc = nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.norm.running_mean = torch.rand(4)
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self, F.relu(self.stem(x)))


def inside(n: Network, x: Tensor) -> Tensor:
    return n.next(n.linear(x))


def joint(n: Network, x: Tensor) -> Tensor:
    y = n.linear(x)
    return F.relu(n.next(y)) + F.relu(n.other(y))


def trunk(n: Network, x: Tensor) -> Tensor:
    y = n.linear(x)
    return n.next(y + n.other(F.relu(n.next(y))))


def summed(n: Network, x: Tensor) -> Tensor:
    return n.next(n.linear(x) + x)


def averaged(n: Network, x: Tensor) -> Tensor:
    return n.next(F.avg_pool2d(n.linear(x), 2))


def normed(n: Network, x: Tensor) -> Tensor:
    y = n.linear(x)
    return n.next(n.norm(y)) + y  # BN does not fold into what has another reader


def concatenated(n: Network, x: Tensor) -> Tensor:
    return n.wide(torch.cat([n.linear(x), x], 1))


def pooled(n: Network, x: Tensor) -> Tensor:
    return n.next(F.max_pool2d(n.linear(x), 2))


def repeated(n: Network, x: Tensor) -> Tensor:
    return n.next(F.interpolate(n.linear(x), scale_factor=2))


def flattened(n: Network, x: Tensor) -> Tensor:
    return n.fc(n.linear(x).mean((2, 3)))


def of_spikes(n: Network, x: Tensor) -> Tensor:
    """Pools, sums, scales and concatenations of spikes are still spikes, one by one."""
    y = F.relu(n.linear(x))
    return n.next(n.norm(F.avg_pool2d(x + y, 2))) + n.wide(torch.cat([x, F.max_pool2d(y, 3, 1, 1)], 1))[:, :, ::2, ::2]


def of_the_image(n: Network, x: Tensor) -> Tensor:
    return n.fc(F.relu(n.other(x)).mean((2, 3)))


def neurons_only(n: Network, x: Tensor) -> Tensor:
    """A pre-activation trunk: no weighted layer reads it."""
    y = n.linear(x)
    y = y + n.next(F.relu(n.norm(y)))
    return n.fc(F.relu(y).mean((2, 3)))


CASES = [
    (inside, ["linear"], 0),
    (joint, ["linear"], 1),
    (trunk, ["linear", "add"], 1),
    (summed, ["add"], 0),
    (averaged, ["avg_pool2d"], 0),
    (normed, ["linear"], 0),
    (concatenated, ["linear"], 0),
    (pooled, ["max_pool2d"], 0),
    (repeated, ["linear"], 0),
    (flattened, ["mean"], 0),
    (of_spikes, [], 0),
    (of_the_image, [], 0),
    (neurons_only, [], 0),
]


@pytest.mark.parametrize(("body", "where", "joints"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_signed_neurons_go_to_linear_values_that_weights_read(body: Any, where: list[str], joints: int) -> None:
    model, x = Network(body).eval().requires_grad_(False), images(2)
    lowered = lower(model, (x,))
    assert analog_values(lowered) == where
    assert linear_values(lowered, (x,)).at_joints == joints
    graph = staged(model, (x,), joints="signed")
    assert [n.inputs[0] for n in graph.nodes.values() if isinstance(n.op, SignedSpike)] == where
    assert analog_readers(graph) == [] and bool(analog_readers(staged(model, (x,), joints="analog"))) == bool(where)
    torch.testing.assert_close(graph.run(x), model(x), rtol=1e-4, atol=1e-4)
    assert {stage.kind for stage in partition(graph)} == {"neurons", "joint", *(["signed neurons"] if where else [])}


def test_everything_reads_the_spikes_but_an_output() -> None:
    def output_too(n: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        y = n.linear(x)
        return y, n.next(y) + y

    model, x = Network(output_too).eval().requires_grad_(False), images(2)
    graph = staged(model, (x,), joints="signed")
    assert graph.output == ("linear.joint", "add.joint")
    readers = [n.name for n in graph.nodes.values() if "linear.signed" in n.inputs]
    assert readers == ["next", "add"] and graph.nodes["linear.signed"].inputs == ("linear.joint",)


def test_an_image_beside_spikes_is_sent_as_spikes() -> None:
    """A layer that reads both would otherwise multiply at every step."""

    class Beside(Network):
        def forward(self, x: Tensor) -> Tensor:
            return self.wide(torch.cat([x, x[:, :1], F.relu(self.stem(x))], 1))  # type: ignore[no-any-return]

    graph = staged(Beside(inside), (images(2),), joints="signed")
    (signed,) = (n for n in graph.nodes.values() if isinstance(n.op, SignedSpike))
    assert signed.inputs == (graph.inputs()[0],) and not analog_readers(graph)


def test_a_max_pool_behind_signed_spikes_pools_what_has_arrived() -> None:
    """No pool mistakes signed spikes for plain ones, whose levels are 0 and 1; signed neurons follow the pool."""

    def both(n: Network, x: Tensor) -> Tensor:
        y = n.linear(x)
        return n.next(y) + F.interpolate(n.other(F.max_pool2d(y, 2)), scale_factor=2)

    graph = staged(Network(both), (images(2),), joints="signed")
    signed = [n.inputs[0] for n in graph.nodes.values() if isinstance(n.op, SignedSpike)]
    assert signed == ["linear", "max_pool2d"] and graph.nodes["max_pool2d"].inputs == ("linear.signed",)
    assert [n.op.of for n in graph.nodes.values() if isinstance(n.op, MaxPool)] == ["current"]


def test_joints_are_one_of_three() -> None:
    with pytest.raises(ConfigError, match="analog, signed, merge, not 'spiking'"):
        staged(dyadic(), (dyadic_images(2),), joints="spiking")  # type: ignore[arg-type]
    assert JOINTS == ("analog", "signed", "merge")


# -- merging -----------------------------------------------------------------------------------------------------------


def conv(inputs: int, outputs: int, kernel: int = 1, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, **settings)


PAIRS = {
    "wide in the middle": (conv(4, 32), conv(32, 4), True),
    "narrow in the middle": (conv(32, 4), conv(4, 32), False),
    "3x3 then 1x1": (conv(4, 16, 3, padding=1, stride=2, dilation=2), conv(16, 4), True),
    "1x1 with stride": (conv(4, 4, 3, padding=1), conv(4, 4, stride=2), True),
    "1x1 then 3x3": (conv(4, 32, bias=False), conv(32, 4, 3, padding=1, stride=2), True),
    "1x1 then 3x3 without padding": (conv(4, 32), conv(32, 4, 3), True),
    "a bias that borders would show": (conv(4, 32), conv(32, 4, 3, padding=1), False),
    "depthwise then 1x1": (conv(4, 4, 3, padding=1, groups=4), conv(4, 8), False),
    "in groups": (conv(8, 32, groups=4), conv(32, 8, groups=2), True),
    "two kernels": (conv(4, 32, 3, bias=False), conv(32, 4, 3, bias=False), False),
}


@pytest.mark.parametrize(("first", "second", "cheaper"), PAIRS.values(), ids=PAIRS)
def test_two_maps_become_one_where_that_saves_multiply_adds(first: nn.Module, second: nn.Module, cheaper: bool) -> None:
    with torch.no_grad():
        for p in (*first.parameters(), *second.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    stem = nn.Conv2d(3, first.in_channels, 3, padding=1)  # type: ignore[arg-type]
    model = nn.Sequential(stem, nn.ReLU(), first, second, nn.ReLU()).eval().requires_grad_(False)
    x = images(2)
    graph, plain = (staged(model, (x,), joints=joints) for joints in ("merge", "analog"))  # type: ignore[arg-type]
    torch.testing.assert_close(graph.run(x), model(x), rtol=1e-4, atol=1e-4)
    assert costs(graph, x) < costs(plain, x) if cheaper else len(graph.nodes) == len(plain.nodes)
    found = linear_values(lower(model, (x,)), (x,))
    assert (found.merged, found.left) == ((1, 0) if cheaper else (0, 1))


def costs(graph: Graph, x: Tensor) -> int:
    kinds = (Conv, ConvTranspose, Linear)
    return sum(
        multiply_adds(graph.nodes[name].op, value.shape)
        for name, value in graph.walk(x[:1])
        if isinstance(graph.nodes[name].op, kinds)
    )


def test_linear_layers_merge_in_chains_and_only_with_one_reader() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *(nn.Linear(a, b) for a, b in ((8, 64), (64, 64), (64, 4))))
    x = torch.randn(2, 4)
    graph = staged(model, (x,), joints="merge")
    assert [type(n.op).__name__ for n in graph.nodes.values()] == ["Input", "Linear", "Spike", "Linear", "Joint"]
    torch.testing.assert_close(graph.run(x), model(x).detach())

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Tensor:
            y = self.layers[2](F.relu(self.layers[0](x)))
            return y.sum(1, keepdim=True) + self.layers[4](self.layers[3](y))

    graph = staged(Shared(), (x,), joints="merge")
    assert sum(isinstance(n.op, Linear) for n in graph.nodes.values()) == 3  # the last two are one


def test_other_operations_do_not_compose() -> None:
    transposed = ConvTranspose(
        stride=(1,), padding=(0,), output_padding=(0,), dilation=(1,), weight=torch.ones(1, 1, 1)
    )
    line: Op = Linear(weight=torch.ones(1, 1))
    assert composed(transposed, transposed) is None and composed(line, transposed) is None
    one, two = (
        Conv(stride=(1,) * d, padding=(0,) * d, dilation=(1,) * d, weight=torch.ones(1, 1, *(1,) * d)) for d in (1, 2)
    )
    assert composed(one, two) is None
