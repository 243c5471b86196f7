"""Weights in closed form: ridge regression from the actual mean incoming spikes to the ANN's pre-activations."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.calibration.calibrators import Calibrator, mean_values
from spikecal.calibration.update import Update
from spikecal.calibration.view import StageView
from spikecal.errors import ConfigError
from spikecal.graph.graph import Node
from spikecal.graph.ops import Add, ChannelAffine, Conv, Linear, Op, SignedSpike, Spike
from spikecal.graph.stages import Stage
from spikecal.tensors import channels_last

ROWS = 50_000  # most positions that weights are fitted to; F features cost F / ROWS of the remaining error
ROW_FLOATS = 1 << 25  # most numbers in all features of these positions together
ROWS_PER_FEATURE = 8  # lack of room never reduces them below this
PART = 8192  # rows summed at once in the features' own precision; parts are added in float64


@dataclass(frozen=True, kw_only=True)
class ClosedFormWeights(Calibrator):
    """`W = W0 + (Z - P0)' X/n (X'X/n + c I)^-1`, c being `ridge` times the mean of the diagonal of X'X/n.

    Ridge regression. A row of X is what the weights see at one position (im2col) of the mean incoming spikes, minus
    the mean of all rows; the mean remainder of Z - P0 goes into the bias, without a penalty. P0 is what arrives
    with the current weights W0, and Z what should: the ANN's pre-activation z. Where z <= 0, every current P <= 0 is as
    right, so Z = min(P, 0); where z >= theta, the most that neurons emit, Z = max(P, theta). P changes with the
    weights, so Z is recomputed in each of several `rounds`, with the same factor, and the error falls in each of them.

    Weights whose results are summed are fitted together, to the whole sum: they make up for errors of a skip
    connection. Weights with anything else, such as a pool, between them and the stage's end than sums and channel
    scales are left alone.
    """

    images: int = 1024
    ridge: float = 1e-2
    rounds: int = 4
    label = "closed-form weights"
    guarded = True
    learns = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise ConfigError(f"the ridge of {self.label} calibration must be positive, not {self.ridge}")
        if self.rounds < 1:
            raise ConfigError(f"{self.label} calibration needs at least one round, not {self.rounds}")

    def applies(self, stage: Stage) -> bool:
        return bool(stage.weighted())

    def passes(self, images: int, T: int) -> float:
        return 16.0 * min(images, self.images)

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        blocks = blocks_of(view)
        fitted = {branch.node.name for block in blocks for branch in block.branches}
        left = [node.name for node in view.stage.weighted() if node.name not in fitted]
        if left:
            view.notes.append(
                f"{', '.join(left)}: not a plain term of the sum at the stage's end, weights left unchanged"
            )
        if not blocks:
            return Update()
        rows = gather(view, blocks, self.images)
        shifts = has_bias(view, blocks[0].dim)
        fits = [Fit(block, features, self.ridge, shifts) for block, features in zip(blocks, rows.features, strict=True)]
        predicted = rows.predicted
        for _ in range(self.rounds):
            for fit in fits:
                others = predicted - fit.predicted
                fit.improve(rows.wanted(predicted) - others)
                predicted = others + fit.predicted
        bias = torch.stack([fit.bias for fit in fits]).sum(0) if shifts else None
        weights = {name: weight for fit in fits for name, weight in fit.weights()}
        return Update(weights=weights, bias=None if bias is None else bias.to(next(iter(weights.values())).dtype))


# -- which weights -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """A node with weights, and the factors of its output channels on their way to the stage's end."""

    node: Node
    gain: Tensor  # [O]

    @property
    def op(self) -> Conv | Linear:
        assert isinstance(self.node.op, (Conv, Linear))
        return self.node.op


@dataclass(frozen=True)
class Block:
    """Branches fitted together: with equally many groups, and channels at the same dimension (from the end)."""

    branches: tuple[Branch, ...]
    groups: int
    dim: int


def blocks_of(view: StageView) -> list[Block]:
    """The weights of a stage that can be fitted, grouped by kind."""
    found: dict[tuple[int, int], list[Branch]] = defaultdict(list)
    end = view.stage.name
    for node, gain in gains(view.stage):
        weight = node.op.tensors()["weight"]
        dim, channels, scale = output_dim(node.op), len(weight), torch.as_tensor(gain, device=weight.device)
        same = all(tuple(shapes[node.name][1:]) == tuple(shapes[end][1:]) for shapes in view.shapes)
        if same and (scale.numel() == 1 or scale.numel() == scale.shape[dim] == channels):
            groups = node.op.groups if isinstance(node.op, Conv) else 1
            found[dim, groups].append(Branch(node, scale.flatten().expand(channels).double()))
    dims = [dim for dim, _ in found]
    return [Block(tuple(branches), groups, dim) for (dim, groups), branches in found.items() if dim == dims[0]]


def gains(stage: Stage) -> Iterator[tuple[Node, Tensor | float]]:
    """The nodes with weights that reach the stage's end through sums and channel scales alone, and their factors."""
    reads = Counter(name for node in stage.nodes for name in node.inputs)
    found: dict[str, list[Tensor | float]] = defaultdict(list)
    found[stage.end.inputs[0]].append(1.0)
    for node in reversed(stage.nodes[:-1]):
        op, known = node.op, found[node.name]
        if len(known) != reads[node.name]:
            continue  # something else reads it as well
        gain = sum(known[1:], known[0])
        if isinstance(op, Add):
            for name, coefficient in zip(node.inputs, op.coefficients, strict=True):
                found[name].append(gain * coefficient)
        elif isinstance(op, ChannelAffine):
            found[node.inputs[0]].append(gain if op.scale is None else gain * op.scale)
        elif isinstance(op, (Conv, Linear)):
            yield node, gain


def output_dim(op: Op) -> int:
    """The dimension of the output channels, from the end."""
    return 1 - op.weight.ndim if isinstance(op, Conv) else -1


def has_bias(view: StageView, dim: int) -> bool:
    """Whether the stage's end has a bias for channels at dimension `dim` that takes effect wherever the stage is read.

    An output that is itself an activation is read without the bias of its neurons.
    """
    ndim = len(view.shapes[0][view.stage.name])
    return dim % ndim == view.channel % ndim and not (view.output and view.stage.spiking)


# -- what they are fitted to -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Some positions of all images: features `[groups, n, F]` of each block, and the sum at the end there.

    `predicted` `[n, O]` is what arrives with the current weights; all values from `low` to `high` are equally right.
    """

    features: list[Tensor]
    predicted: Tensor
    low: Tensor
    high: Tensor

    def wanted(self, predicted: Tensor) -> Tensor:
        """The right values nearest to these."""
        return predicted.clamp(self.low, self.high)


def gather(view: StageView, blocks: Sequence[Block], images: int) -> Rows:
    """Rows of positions drawn with the stage's seed, as many as memory and time allow, evenly from all images."""
    calls, dim = view.first_calls_of_all(images), blocks[0].dim
    sizes = [positions(view, call, dim) for call in calls]
    total, generator = sum(map(prod, sizes)), torch.Generator().manual_seed(view.seed)
    wanted = row_count(blocks, total)
    found, passed = [_no_rows(blocks, view.like)], 0
    for call, size in zip(calls, sizes, strict=True):
        before, passed = passed, passed + prod(size)
        share = passed * wanted // total - before * wanted // total
        chosen = torch.randperm(prod(size), generator=generator)[:share].sort().values
        if view.has(call):
            found.append(_rows(view, blocks, call, torch.unravel_index(chosen.to(view.cache.device), size)))
    *features, predicted, low, high = (view.collected(torch.cat(parts, -2), -2) for parts in zip(*found, strict=True))
    return Rows(features, predicted.double(), low.double(), high.double())


def _no_rows(blocks: Sequence[Block], like: Tensor) -> list[Tensor]:
    """The result of `_rows` for a rank without images."""
    wide = [sum(branch.op.weight[0].numel() for branch in block.branches) for block in blocks]
    features = [like.new_empty(block.groups, 0, width) for block, width in zip(blocks, wide, strict=True)]
    return [*features, *[like.new_empty(0, like.shape[blocks[0].dim])] * 3]


def _rows(view: StageView, blocks: Sequence[Block], call: range, where: tuple[Tensor, ...]) -> list[Tensor]:
    """For one call: the features of every block, the prediction, and the bounds of right values."""
    stage = view.stage
    inputs = {name: view.mean_value(name, call) for name in stage.inputs}
    values = mean_values(stage, inputs, view.shapes[call.start])
    rows = [features(block, values, where) for block in blocks]
    ends = at_the_end(view, call, values[stage.end.inputs[0]])
    return [*rows, *(value.movedim(blocks[0].dim, -1)[where] for value in ends)]


def positions(view: StageView, call: range, dim: int) -> tuple[int, ...]:
    """How many images a call has, and positions along each dimension except the channels."""
    shape = list(view.shapes[call.start][view.stage.name])
    shape[0] = sum(view.counts[batch] for batch in call)
    del shape[dim]
    return tuple(shape)


def row_count(blocks: Sequence[Block], available: int) -> int:
    """The number of rows: all, or as many as fit with their features."""
    columns = [sum(branch.op.weight[0].numel() for branch in block.branches) for block in blocks]
    width = sum(block.groups * count for block, count in zip(blocks, columns, strict=True))
    return min(available, ROWS, max(ROW_FLOATS // width, ROWS_PER_FEATURE * max(columns)))


def at_the_end(view: StageView, call: range, current: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The effective mean current, and the least and greatest that are as right as the ANN's value.

    Neurons emit `theta/T floor((T I + own charge) / theta)`, which loses half a step of theta/T on average; those
    that round lose nothing. They emit nothing below 0, or -theta if they are signed, and theta at most. An
    output of the network is read as the activation of its current alone.
    """
    end = view.stage.end.op
    if not isinstance(end, Spike):
        target = view.target(call)
        return end(current), target, target
    z, cells = view.ann_current(call), end.cells(current.ndim)
    most: Tensor | float = math.inf if end.clip is None else end.clip
    if not view.output:
        most = end.neuron.alphabet[-1] * cells.theta
        lost = cells.theta / 2 if end.neuron.floors else 0
        current = current + (cells.own_charge(view.T) - lost) / view.T
    highest = torch.as_tensor(most).to(z)
    linear = isinstance(end, SignedSpike)
    lowest = -highest if linear else torch.zeros_like(highest)
    undershoot = end.neuron.alphabet[0] < 0 and not linear  # neurons of a ReLU must not undershoot, even if they can
    low = torch.where(z > lowest, torch.minimum(z, highest), z if undershoot else -torch.inf)
    return current, low, torch.where(z < highest, torch.maximum(z, lowest), torch.inf)


def features(block: Block, values: dict[str, Tensor], where: tuple[Tensor, ...]) -> Tensor:
    """`[groups, n, F]`: what the weights of a block see at these positions."""
    seen = []
    for branch in block.branches:
        rows = patches(branch.op, values[branch.node.inputs[0]])[where]
        seen.append(rows.reshape(len(rows), block.groups, -1))
    return torch.cat(seen, 2).transpose(0, 1)


def patches(op: Conv | Linear, x: Tensor) -> Tensor:
    """`[N, *positions, C, *kernel]`, a view: what each output of a convolution sees; for a linear layer x itself."""
    if isinstance(op, Linear):
        return x
    x = F.pad(x, [amount for pad in reversed(op.padding) for amount in (pad, pad)])
    kernel = op.weight.shape[2:]
    for d, (size, stride, dilation) in enumerate(zip(kernel, op.stride, op.dilation, strict=True), 2):
        x = x.unfold(d, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return x.movedim(1, 1 + len(kernel))


# -- fitting them ------------------------------------------------------------------------------------------------------


class Fit:
    """Ridge regression on the features of one block; `predicted` `[n, O]` is what the change adds to the current."""

    def __init__(self, block: Block, features: Tensor, ridge: float, shifts: bool) -> None:
        """`shifts`: whether there is also a bias to fit. The features are changed in place."""
        self.block, self.shifts, self._rows = block, shifts, features.shape[1]
        self._features = features
        self._mean = _added(part.sum(1, keepdim=True).double() for _, part in self._parts()) / self._rows
        if not shifts:
            self._mean.zero_()
        features.sub_(self._mean.to(features.dtype))
        self._change = self._mean.new_zeros(())
        self._shift = self._mean.new_zeros(())
        self.predicted = self._mean.new_zeros(())
        self._factor = self._factored(ridge)

    @property
    def _dual(self) -> bool:
        """With fewer rows than features, the smaller matrix XX' does: `(X'X + c I)^-1 X' = X' (XX' + c I)^-1`."""
        return self._rows < self._features.shape[2]

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self._rows, PART):
            some = slice(start, start + PART)
            yield some, self._features[:, some]

    def _factored(self, ridge: float) -> Tensor:
        if self._dual:
            whole = self._features.double()
            gram = whole @ whole.mT
        else:
            gram = _added((part.mT @ part).double() for _, part in self._parts())
        gram /= self._rows
        variance = gram.diagonal(dim1=1, dim2=2).sum(1) / self._features.shape[2]
        lost = torch.finfo(self._features.dtype).eps * self._mean.square().mean((1, 2))
        penalty = torch.where(variance > lost, ridge * variance, 1.0)  # else the input is constant or zero
        gram.diagonal(dim1=1, dim2=2).add_(penalty.unsqueeze(1))
        return torch.linalg.cholesky(gram)

    def improve(self, wanted: Tensor) -> None:
        """The best change of the original weights for these values `[n, O]`, whatever the change before."""
        split = self._split(wanted)
        if self._dual:
            inner = torch.cholesky_solve(split / self._rows, self._factor)
            self._change = self._features.double().mT @ inner
        else:
            moment = _added((part.mT @ split[:, some].to(part.dtype)).double() for some, part in self._parts())
            self._change = torch.cholesky_solve(moment / self._rows, self._factor)
        self._shift = split.mean(1, keepdim=True) if self.shifts else self._shift
        predicted = self._features @ self._change.to(self._features.dtype) + self._shift
        self.predicted = predicted.transpose(0, 1).flatten(1)

    def _split(self, values: Tensor) -> Tensor:
        """`[n, O]` split into groups, `[groups, n, O / groups]`."""
        return values.reshape(self._rows, self.block.groups, -1).transpose(0, 1)

    @property
    def bias(self) -> Tensor:
        """[O]: what is added to the current at every position."""
        return (self._shift - self._mean @ self._change).flatten()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """New weights of every branch, by the name of its node."""
        change = self._change.mT.flatten(0, 1)  # [O, F]
        sizes = [branch.op.weight[0].numel() for branch in self.block.branches]
        for branch, part in zip(self.block.branches, change.split(sizes, 1), strict=True):
            weight = branch.op.weight
            gain = branch.gain.unsqueeze(1)
            moved = torch.where(gain == 0, 0, part / gain).reshape(weight.shape)
            yield branch.node.name, channels_last((weight + moved).to(weight.dtype))


def _added(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total += part
    return total
