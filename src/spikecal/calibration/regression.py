"""Weights in closed form: ridge regression from the mean spikes that really arrive to the ANN's pre-activations."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.calibration.calibrators import Calibrator, Update, mean_values
from spikecal.calibration.view import StageView
from spikecal.errors import ConfigError
from spikecal.graph.graph import Node
from spikecal.graph.ops import Add, ChannelAffine, Conv, Linear, Op, Spike
from spikecal.graph.stages import Stage
from spikecal.tensors import channels_last

ROWS = 200_000  # positions that weights are fitted to, at most
ROW_FLOATS = 1 << 25  # numbers that all features of these positions may hold together
ROWS_PER_FEATURE = 8  # never fewer than these for lack of room
PART = 8192  # rows that are multiplied at once in float64


@dataclass(frozen=True, kw_only=True)
class ClosedFormWeights(Calibrator):
    """`W = W0 + (Z* - P0)' X/n (X'X/n + ridge mean(diag X'X/n) I)^-1`: ridge regression of a stage's weights.

    The rows of X are what the weights see of the mean spikes at one position (im2col), centred; what that leaves goes
    into the bias, which is not penalised. P0 is the current that arrives with the present weights W0, with what the
    neuron adds of its own but for the half step of rounding, and Z* the ANN's pre-activation. Where that is not
    positive, any prediction P <= 0 is as good: Z* = min(P, 0). Likewise Z* = max(P, theta) where it is above
    theta, the most that neurons can emit. So Z* is taken anew `rounds` times, on the same factor; each time the error falls.

    Weights that are summed are fitted together: what a skip connection gets wrong is corrected by its partner. Weights
    behind which there is more than sums and channel scales, such as a pool, are left as they are.
    """

    images: int = 1024
    ridge: float = 1e-3
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

    @torch.no_grad()
    def solve(self, view: StageView) -> Update:
        blocks = blocks_of(view)
        fitted = {branch.node.name for block in blocks for branch in block.branches}
        left = [node.name for node in view.stage.weighted() if node.name not in fitted]
        if left:
            view.notes.append(f"{', '.join(left)}: not a plain term of the sum at the stage's end, weights left as they are")
        if not blocks:
            return Update()
        rows = gather(view, blocks, self.images)
        shifts = blocks[0].dim == view.channel_from_end
        fits = [Fit(block, features, self.ridge, shifts) for block, features in zip(blocks, rows.features, strict=True)]
        predicted = rows.predicted
        for _ in range(self.rounds):
            for fit in fits:
                others = predicted - fit.predicted
                fit.improve(rows.wanted(predicted) - others)
                predicted = others + fit.predicted
        bias = torch.stack([fit.bias for fit in fits]).sum(0) if shifts else None
        weights = {name: weight for fit in fits for name, weight in fit.weights()}
        dtype = view.target(view.calls[0]).dtype
        return Update(weights=weights, bias=None if bias is None else bias.to(dtype))


# -- which weights -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """A node with weights, and what its output channels are multiplied by on their way to the stage's end."""

    node: Node
    gain: Tensor  # [O]

    @property
    def op(self) -> Conv | Linear:
        assert isinstance(self.node.op, (Conv, Linear))
        return self.node.op


@dataclass(frozen=True)
class Block:
    """Branches that are fitted together: of as many groups, with channels at the same dimension (from the end)."""

    branches: tuple[Branch, ...]
    groups: int
    dim: int


def blocks_of(view: StageView) -> list[Block]:
    """The weights of a stage that can be fitted, those of one kind together."""
    found: dict[tuple[int, int], list[Branch]] = defaultdict(list)
    end = view.stage.name
    for node, gain in gains(view.stage):
        dim, scale = output_dim(node.op), torch.as_tensor(gain)
        channels = node.op.tensors()["weight"].shape[0]
        same = all(tuple(shapes[node.name][1:]) == tuple(shapes[end][1:]) for shapes in view.shapes)
        if same and (scale.numel() == 1 or scale.numel() == scale.shape[dim] == channels):
            groups = node.op.groups if isinstance(node.op, Conv) else 1
            found[dim, groups].append(Branch(node, scale.flatten().expand(channels).double()))
    dims = [dim for dim, _ in found]
    return [Block(tuple(branches), groups, dim) for (dim, groups), branches in found.items() if dim == dims[0]]


def gains(stage: Stage) -> Iterator[tuple[Node, Tensor | float]]:
    """The nodes with weights that reach the stage's end by sums and channel scales alone, and their factors."""
    reads = Counter(name for node in stage.nodes for name in node.inputs)
    found: dict[str, list[Tensor | float]] = defaultdict(list)
    found[stage.end.inputs[0]].append(1.0)
    for node in reversed(stage.nodes[:-1]):
        op, known = node.op, found[node.name]
        if len(known) != reads[node.name]:
            continue  # something else reads it, too
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


# -- what they are fitted to -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Some positions of all images: features `[groups, n, F]` of each block, `[n, O]` predicted and in the ANN."""

    features: list[Tensor]
    predicted: Tensor
    ann: Tensor
    most: Tensor | None  # [O]: what neurons can emit

    def wanted(self, predicted: Tensor) -> Tensor:
        """The nearest values to the predicted ones that are as good as the ANN's."""
        if self.most is None:
            return self.ann
        wanted = torch.where(self.ann > 0, self.ann, predicted.clamp(max=0))
        return torch.where(self.ann < self.most, wanted, torch.maximum(predicted, self.most))


def gather(view: StageView, blocks: Sequence[Block], images: int) -> Rows:
    """Features and values at positions drawn by the stage's seed, as many of each image as memory and time allow."""
    stage, dim, end = view.stage, blocks[0].dim, view.stage.end.op
    calls = view.first_calls(images)
    generator = torch.Generator().manual_seed(view.seed)
    available = [prod(positions(view, call, dim)) for call in calls]
    wanted = row_count(blocks, sum(available))
    parts: list[list[Tensor]] = []
    before = 0
    for call, count in zip(calls, available, strict=True):
        share = (before + count) * wanted // sum(available) - before * wanted // sum(available)
        before += count
        chosen = torch.randperm(count, generator=generator)[:share].sort().values
        where = torch.unravel_index(chosen.to(view.cache.device), positions(view, call, dim))
        inputs = {name: view.mean_value(name, call) for name in stage.inputs}
        values = mean_values(stage, inputs, view.shapes[call.start])
        arriving = values[stage.end.inputs[0]]
        predicted, ann = effective(end, arriving, view.T), view.ann_current(call)
        if not isinstance(end, Spike):
            ann = view.ann.end.op(ann)
        found = [features(block, values, where) for block in blocks]
        parts.append([*found, *(value.movedim(dim, -1)[where] for value in (predicted, ann))])
    *seen, predicted, ann = (torch.cat(some, -2) for some in zip(*parts, strict=True))
    most = None
    if isinstance(end, Spike):
        most = end.neuron.alphabet[-1] * end.height(ann.ndim).double()
    return Rows(seen, predicted.double(), ann.double(), most)


def positions(view: StageView, call: range, dim: int) -> tuple[int, ...]:
    """Images of a call, and positions of each."""
    shape = list(view.shapes[call.start][view.stage.name])
    shape[0] = sum(view.counts[batch] for batch in call)
    del shape[dim]
    return tuple(shape)


def row_count(blocks: Sequence[Block], available: int) -> int:
    columns = [sum(branch.op.weight[0].numel() for branch in block.branches) for block in blocks]
    width = sum(block.groups * count for block, count in zip(blocks, columns, strict=True))
    return min(available, ROWS, max(ROW_FLOATS // width, ROWS_PER_FEATURE * max(columns)))


def effective(end: Op, current: Tensor, T: int) -> Tensor:
    """The mean current as a neuron takes it that would pass it on but for rounding; a joint does pass it on.

    The neuron emits `theta/T floor((T I + own charge) / theta)`. A floor takes half a step, on average.
    """
    if not isinstance(end, Spike):
        return end(current)
    cells = end.cells(current.ndim)
    return current + (cells.own_charge(T) - cells.theta / 2) / T


def features(block: Block, values: dict[str, Tensor], where: tuple[Tensor, ...]) -> Tensor:
    """`[groups, n, F]`: what the weights of a block see at these positions."""
    seen = []
    for branch in block.branches:
        rows = patches(branch.op, values[branch.node.inputs[0]])[where]
        seen.append(rows.reshape(len(rows), block.groups, -1))
    return torch.cat(seen, 2).transpose(0, 1)


def patches(op: Conv | Linear, x: Tensor) -> Tensor:
    """`[N, *positions, C, *kernel]`, a view: what each output of a convolution sees; of a linear layer x itself."""
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
        """`shifts`: whether there is a bias to fit, too."""
        self.block, self.shifts, self._rows = block, shifts, features.shape[1]
        self._mean = features.mean(1, keepdim=True, dtype=torch.float64)
        if not shifts:
            self._mean.zero_()
        self._features = features - self._mean.to(features.dtype)
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
            yield some, self._features[:, some].double()

    def _factored(self, ridge: float) -> Tensor:
        if self._dual:
            whole = self._features.double()
            gram = whole @ whole.mT
        else:
            gram = torch.stack([part.mT @ part for _, part in self._parts()]).sum(0)
        gram /= self._rows
        penalty = ridge * gram.diagonal(dim1=1, dim2=2).sum(1) / self._features.shape[2]
        penalty[penalty == 0] = 1.0  # nothing ever arrives
        gram.diagonal(dim1=1, dim2=2).add_(penalty.unsqueeze(1))
        return torch.linalg.cholesky(gram)

    def improve(self, wanted: Tensor) -> None:
        """The best change of the present weights, whatever it was before, for these values `[n, O]`."""
        split = self._split(wanted)
        if self._dual:
            inner = torch.cholesky_solve(split / self._rows, self._factor)
            self._change = self._features.double().mT @ inner
        else:
            moment = sum(part.mT @ split[:, some] for some, part in self._parts())
            self._change = torch.cholesky_solve(moment / self._rows, self._factor)
        self._shift = split.mean(1, keepdim=True) if self.shifts else self._shift
        predicted = torch.cat([part @ self._change for _, part in self._parts()], 1) + self._shift
        self.predicted = predicted.transpose(0, 1).flatten(1)

    def _split(self, values: Tensor) -> Tensor:
        """`[n, O]` by groups, `[groups, n, O / groups]`."""
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
