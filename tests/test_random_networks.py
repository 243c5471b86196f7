"""Random networks, drawn from the closed set, converted, and compared with their originals."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from spikecal import SpikingNetwork
from spikecal.calibration.threshold import MaxAct
from spikecal.graph.graph import Graph
from spikecal.graph.joints import Joints, analog_readers, staged
from spikecal.graph.ops import AdaptiveAvgPool, Add, Joint, MaxPool, Pad, Reduce, SignedSpike, frozen
from spikecal.phases import closing_reach

LARGE = (448, 1792)  # T: errors fall like 1/T, so what the first does not bring below 2 %, the second must
FEW = 5  # steps that are run one by one
IMAGES, CLASSES, PIXELS, CHANNELS = 8, 4, 6, (4, 6, 8)
PIPELINES = {per: spikecal.Pipeline(threshold=MaxAct(per=per, images=IMAGES)) for per in ("layer", "channel")}


PARTS = (
    "plain", "point", "grouped", "depthwise", "dilated", "transposed", "norm", "again", "hidden", "relu", "relu6",
    "hardtanh", "skip", "subtract", "trunk", "joint", "signed", "cat", "average", "max-pool", "max-pool alone",
    "max-pool read twice", "max-pool current", "pool of spikes", "pad", "slice", "shuffle", "chunk", "scale",
    "upsample", "dropout",
)  # fmt: skip


class Drawn(nn.Module):
    """A straight program: every line calls a function or a layer on values of the lines before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.program: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = []

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for function, sources in self.program:
            values.append(function(*(values[i] for i in sources)))
        return values[-1]


class Drawing:
    """Writes such a program, and runs it on the images while it is written, to give weights a sensible scale."""

    def __init__(self, draw: Callable[[Any], Any], images: Tensor) -> None:
        self.draw, self.values, self.model, self.parts = draw, [images], Drawn(), Counter[str]()

    def choose(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def put(self, function: Callable[..., Tensor], *sources: int) -> int:
        if isinstance(function, nn.Module) and function not in self.model.layers:
            self.model.layers.append(function.eval().requires_grad_(False))
        self.model.program.append((function, sources))
        self.values.append(function(*(self.values[i] for i in sources)))
        return len(self.values) - 1

    def shape(self, i: int) -> torch.Size:
        return self.values[i].shape

    # -- layers ------------------------------------------------------------------------------------------------

    def weighted(self, layer: nn.Conv2d | nn.ConvTranspose2d | nn.Linear, i: int, centred: float = 0.5) -> int:
        """A layer scaled so that its outputs are about 1, on both sides of zero."""
        layer.requires_grad_(False)
        if layer.bias is not None:
            layer.bias.zero_()
        found = layer(self.values[i])
        size = found.square().mean().sqrt().clamp(min=1e-3)
        layer.weight.div_(size)
        if layer.bias is not None:
            mean = found.transpose(0, 1).flatten(1).mean(1)
            layer.bias.uniform_(0, 0.4).sub_(mean / size, alpha=centred)
        return self.put(layer, i)

    def conv(self, i: int, out: int | None = None, stride: int = 1, bias: bool = True) -> int:
        """Any convolution that keeps the size (but for its stride)."""
        channels = self.shape(i)[1]
        kind = self.choose("plain", "plain", "point", "grouped", "depthwise", "dilated")
        out = out or (channels if kind == "depthwise" else self.choose(*CHANNELS))
        if (kind == "depthwise" and out % channels) or (kind == "grouped" and (channels % 2 or out % 2)):
            kind = "plain"
        groups = {"depthwise": channels, "grouped": 2}.get(kind, 1)
        self.parts[kind] += 1
        kernel, spread = (1, 1) if kind == "point" else (3, 2 if kind == "dilated" else 1)
        padding = spread if kernel == 3 else 0
        mode = self.choose("zeros", "zeros", "zeros", "replicate", "circular")
        if kernel == 1 or min(self.shape(i)[2:]) <= padding:
            mode = "zeros"
        layer = nn.Conv2d(channels, out, kernel, stride, padding, spread, groups, bias, padding_mode=mode)
        return self.weighted(layer, i)

    def matching(self, i: int, like: int) -> int:
        """A convolution to the channels of another value of the same size."""
        self.parts["point"] += 1
        return self.weighted(nn.Conv2d(self.shape(i)[1], self.shape(like)[1], 1), i)

    def norm(self, i: int) -> int:
        self.parts["norm"] += 1
        layer = nn.BatchNorm2d(self.shape(i)[1], affine=self.draw(st.booleans())).requires_grad_(False).eval()
        value = self.values[i]
        layer.running_mean.uniform_(-0.4, 0).add_(value.mean((0, 2, 3)), alpha=0.5)  # type: ignore[union-attr]
        layer.running_var.uniform_(0.6, 1.5).mul_(value.square().mean())  # type: ignore[union-attr]
        if layer.affine:
            layer.weight.uniform_(0.6, 1.4)
            layer.bias.uniform_(-0.3, 0.3)
        return self.put(layer, i)

    def activation(self, i: int) -> int:
        kind = self.choose("relu", "relu", "relu", "relu6", "hardtanh")
        self.parts[kind] += 1
        return self.put({"relu": F.relu, "relu6": F.relu6, "hardtanh": nn.Hardtanh(0, 2)}[kind], i)

    def block(self, i: int) -> int:
        """Convolution, perhaps a norm, activation."""
        stride = 2 if self.shape(i)[2] > 4 and self.draw(st.booleans()) else 1
        if self.draw(st.booleans()):
            return self.activation(self.norm(self.conv(i, stride=stride, bias=self.draw(st.booleans()))))
        return self.activation(self.conv(i, stride=stride))

    # -- motifs: each takes a value and gives another ------------------------------------------------------------

    def skip(self, i: int) -> int:
        body = self.conv(self.activation(self.conv(i)), self.shape(i)[1])
        side = self.matching(i, body) if self.draw(st.booleans()) else i
        self.parts["skip"] += 1
        if self.draw(st.integers(0, 3)) == 0:
            self.parts["subtract"] += 1
            both = self.put(lambda a, b: a - b, body, side)
        else:
            both = self.put(lambda a, b: a + b, body, side)
        both = self.norm(both) if self.draw(st.integers(0, 3)) == 0 else both
        return self.activation(both)

    def inverted(self, i: int) -> int:
        """A linear trunk with a linear skip, as in MobileNetV2."""
        trunk = self.conv(i, self.choose(4, 6))
        self.parts["trunk"] += 1
        inner = self.activation(self.conv(trunk))
        self.parts["skip"] += 1
        return self.activation(self.put(lambda a, b: a + b, self.matching(inner, trunk), trunk))

    def fork(self, i: int) -> int:
        """A linear value that two branches read."""
        trunk = self.conv(i, 4)
        self.parts["trunk"] += 1
        left = self.activation(self.conv(trunk, 4))
        right = self.activation(trunk if self.draw(st.booleans()) else self.norm(trunk))
        return self.joined(left, right)

    def dense(self, i: int) -> int:
        if self.shape(i)[1] > 8:
            i = self.activation(self.conv(i, 4))
        both = self.joined(i, self.activation(self.conv(i, 4)))
        if self.draw(st.booleans()):  # two stages read the cat
            return self.joined(self.activation(self.conv(both, 4)), self.activation(self.conv(both, 4)))
        return both

    def joined(self, a: int, b: int) -> int:
        if self.shape(a) == self.shape(b) and self.draw(st.booleans()):
            self.parts["skip"] += 1
            return self.put(torch.add, a, b)
        self.parts["cat"] += 1
        both = self.put(lambda a, b: torch.cat([a, b], 1), a, b)
        return self.max_pool(both) if self.shape(both)[2] > 2 and self.draw(st.booleans()) else both

    def max_pool(self, i: int) -> int:
        self.parts["max-pool"] += 1
        kernel, stride, padding = self.choose((2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 1, 1))
        return self.put(nn.MaxPool2d(kernel, stride, padding, ceil_mode=self.draw(st.booleans())), i)

    def pooled(self, i: int) -> int:
        """A max-pool of a ReLU, of a ReLU that has other readers, or of a current."""
        if self.shape(i)[2] <= 2:
            return self.block(i)
        kind = self.choose("alone", "read twice", "current")
        self.parts[f"max-pool {kind}"] += 1
        if kind == "alone":
            return self.max_pool(self.convolved(i))
        if kind == "current":
            return self.activation(self.conv(self.max_pool(self.conv(i))))
        i = self.convolved(i)
        self.parts["max-pool"] += 1
        both = [self.put(nn.MaxPool2d(2), i), self.put(nn.AvgPool2d(2), i)]
        join: Callable[..., Tensor] = torch.add if self.shape(i)[1] == 8 else lambda a, b: torch.cat([a, b], 1)
        return self.put(join, *both)

    def convolved(self, i: int) -> int:
        return self.activation(self.conv(i))

    def average(self, i: int) -> int:
        self.parts["average"] += 1
        if self.shape(i)[2] <= 2:
            return self.put(nn.AvgPool2d(3, 1, 1, count_include_pad=self.draw(st.booleans())), i)
        pools = (nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool2d((3, 2)))
        return self.put(self.choose(*pools), i)

    def resized(self, i: int) -> int:
        """Smaller or larger without a pool; no neuron."""
        channels, height = self.shape(i)[1], self.shape(i)[2]
        kind = self.choose("pad", "slice") if height > 3 else self.choose("pad", "transposed", "upsample")
        self.parts[kind] += 1
        if kind == "transposed":
            return self.weighted(nn.ConvTranspose2d(channels, 4, 2, 2, groups=1 if channels % 2 else 2), i)
        if kind == "upsample":
            mode = self.choose("nearest", "bilinear")
            return self.put(lambda x: F.interpolate(x, scale_factor=2, mode=mode), i)
        if kind == "slice":
            return self.put(lambda x: x[:, :, ::2, 1:], i)
        mode, value = self.choose(("constant", 0.0), ("constant", 0.5), ("replicate", None))
        return self.put(lambda x: F.pad(x, (1, 0, 0, 1), mode, value), i)

    def rearranged(self, i: int) -> int:
        kind = self.choose("dropout", "scale", *(["shuffle", "chunk"] if self.shape(i)[1] % 2 == 0 else []))
        self.parts[kind] += 1
        if kind == "chunk":
            return self.activation(self.put(lambda x: x.chunk(2, 1)[0] - 0.5 * x.chunk(2, 1)[1], i))
        return self.put({"shuffle": shuffled, "scale": lambda x: 0.7 * x + 0.1, "dropout": nn.Dropout(0.3)}[kind], i)

    def again(self, i: int) -> int:
        """One layer called twice."""
        self.parts["again"] += 1
        i = self.activation(self.conv(i, self.shape(i)[1]))
        layer = self.model.layers[-1]
        if not isinstance(layer, nn.Conv2d) or layer.in_channels != layer.out_channels:
            return i
        return self.activation(self.put(layer, i))

    def head(self, i: int) -> None:
        kind = self.choose("mean", "flatten", "adaptive")
        if kind == "flatten":
            i = self.put(lambda x: x.flatten(1), i)
        elif kind == "mean":
            i = self.put(lambda x: x.mean((2, 3)), i)
        else:
            i = self.put(lambda x: F.adaptive_avg_pool2d(x, 1).reshape(x.shape[0], -1), i)
        if self.draw(st.booleans()):
            self.parts["hidden"] += 1
            i = self.activation(self.weighted(nn.Linear(self.shape(i)[1], 8), i))
        self.weighted(nn.Linear(self.shape(i)[1], CLASSES), i, centred=0)


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


MOTIFS = (
    Drawing.block, Drawing.skip, Drawing.inverted, Drawing.fork, Drawing.dense, Drawing.pooled, Drawing.pooled,
    Drawing.average, Drawing.resized, Drawing.resized, Drawing.rearranged, Drawing.rearranged, Drawing.again,
)  # fmt: skip


@st.composite
def drawings(draw: Callable[[Any], Any]) -> tuple[Drawn, Tensor, Counter[str]]:
    """A network, the images it is calibrated on, and what it is made of."""
    with torch.random.fork_rng():
        torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
        images = 0.7 * torch.randn(IMAGES, 3, PIXELS, PIXELS) + torch.randn(IMAGES, 3, 1, 1)
        drawing = Drawing(draw, images)
        i = drawing.block(0) if draw(st.integers(0, 3)) else 0
        for _ in range(draw(st.integers(2, 3))):
            i = drawing.choose(*MOTIFS)(drawing, i)
        drawing.head(i)
    return drawing.model.eval().requires_grad_(False), images, drawing.parts


class Totals:
    """What all networks together show."""

    def __init__(self) -> None:
        self.networks, self.parts = set[tuple[str, float]](), Counter[str]()
        self.agreeing = self.answers = 0
        self.moved = self.slots = self.late = 0
        self.errors: dict[int, list[float]] = {T: [] for T in LARGE}


def check(model: Drawn, x: Tensor, per: str, totals: Totals) -> None:
    joints: Joints = "signed" if len(totals.networks) % 2 else "analog"
    expected = model(x)
    for T in LARGE:
        snn = spikecal.convert(model, x, T=T, pipeline=PIPELINES[per], joints=joints).snn
        found = snn(x)
        error = float((found - expected).norm() / expected.norm())
        totals.errors[T].append(error)
        if error < 0.02:
            break
    assert error < 0.02
    totals.agreeing += int((found.argmax(1) == expected.argmax(1)).sum())
    totals.answers += len(x)
    totals.parts["joint"] += sum(isinstance(s.end.op, Joint) for s in snn.stages[:-1])
    if joints == "signed":
        assert not analog_readers(snn.graph)
        totals.parts["signed"] += sum(isinstance(s.end.op, SignedSpike) for s in snn.stages)
    torch.testing.assert_close(staged(model, (x,), joints="merge").run(x), expected, rtol=1e-3, atol=1e-3)
    totals.parts["pool of spikes"] += any(
        isinstance(n.op, MaxPool) and n.op.of == "spikes" for n in snn.graph.nodes.values()
    )
    same_spikes(SpikingNetwork(for_few_steps(snn), FEW).double(), x[:2].double(), totals)
    same_bits(snn, x[:2].double(), totals)


def for_few_steps(snn: SpikingNetwork) -> Graph:
    """A copy of the graph whose signed neurons have a dead zone for few steps."""
    graph = snn.graph.clone()
    for op in (node.op for node in graph.nodes.values()):
        if isinstance(op, SignedSpike) and op.theta is not None:
            op.reach = frozen(closing_reach(op.theta, FEW))
    return graph


def same_spikes(snn: SpikingNetwork, x: Tensor, totals: Totals) -> None:
    """In double precision almost no spike is on the edge, so all three ways to run a network give the same spikes."""
    run, unit = snn.run(x), snn.normalized().run(x)
    assert run.spikes.keys() == unit.spikes.keys()
    totals.slots += FEW * sum(s.numel() for s in run.spikes.values())
    totals.moved += sum(int((run.spikes[n] - unit.spikes[n]).abs().sum()) for n in run.spikes)
    snn.reset()
    stepwise = torch.stack([snn.step(x) for _ in range(FEW)])
    torch.testing.assert_close(stepwise, run.outputs, rtol=1e-9, atol=1e-9)


def same_bits(snn: SpikingNetwork, x: Tensor, totals: Totals) -> None:
    """With random waits and numbers of few bits, where every sum is exact, stepwise is layerwise to the bit."""
    names = [stage.name for stage in snn.stages if stage.spiking]
    if not names:  # the mean of equal steps is rounded, where they are no numbers of few bits
        return
    waits = dict(zip(names, torch.randint(0, FEW, (len(names),)).tolist(), strict=True))
    late = SpikingNetwork(for_few_steps(snn), FEW, waits).double()
    for name, tensor in late.named_parameters():
        few = tensor.log2().round().exp2() if name.endswith("theta") else (64 * tensor).round() / 64
        tensor.data = few.clamp(-1024, 1024)
    for op in (node.op for node in late.graph.nodes.values()):
        if isinstance(op, Add):
            op.coefficients = tuple(round(8 * c) / 8 for c in op.coefficients)
        if isinstance(op, Pad):
            op.value = round(8 * op.value) / 8
    x = (8 * x).round() / 8
    expected = late.run(x).outputs
    late.reset()
    found = [late.step(x) for _ in range(late.latency)]
    start = late.latency - FEW
    assert found[:start] == [None] * start
    totals.late += start > 0
    # means over a number of positions that is not a power of two are rounded, differently for one step and many
    means = any(isinstance(node.op, Reduce | AdaptiveAvgPool) for node in late.graph.nodes.values())
    torch.testing.assert_close(torch.stack(found[start:]), expected, rtol=0, atol=1e-12 if means else 0)


def test_networks_from_the_closed_set_convert_and_give_the_anns_answers() -> None:
    totals = Totals()

    @settings(max_examples=260, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawings(), st.sampled_from(sorted(PIPELINES)))
    def one(drawing: tuple[Drawn, Tensor, Counter[str]], per: str) -> None:
        model, x, parts = drawing
        key = (str(model), float(model(x).sum()))
        if key not in totals.networks:  # hypothesis repeats examples
            check(model, x, per, totals)
            totals.networks.add(key)
            totals.parts += parts

    one()
    assert len(totals.networks) >= 200
    missing = [part for part in PARTS if totals.parts[part] == 0]
    assert not missing, totals.parts
    often = ("joint", "signed", "cat", "max-pool", "depthwise", "skip")
    assert min(totals.parts[part] for part in often) >= 30, totals.parts
    assert len(totals.errors[LARGE[1]]) <= 0.1 * len(totals.networks)
    assert totals.agreeing >= 0.99 * totals.answers
    assert totals.moved <= totals.slots / 1e4
    assert totals.late > 0.9 * len(totals.networks)
