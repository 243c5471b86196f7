"""Values on their way through a netlist: sums of nodes with scaled or mixed channels, plus a constant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spikecal.export.netlist import Conv, Linear

Shape = tuple[int, ...]  # of one image's value: channels first


@dataclass(frozen=True)
class Term:
    """A node's value, its channels mixed: `mix` `[C]` has a factor per channel, `[out, in]` is a matrix."""

    node: str
    mix: Tensor

    @property
    def plain(self) -> bool:
        """Whether it is the node's value itself."""
        return self.mix.ndim == 1 and bool((self.mix == 1).all())


@dataclass(frozen=True)
class Value:
    """The sum of `terms` and of `constant` `[latency, C]`, which depends on the step and the channel alone."""

    terms: tuple[Term, ...]
    shape: Shape
    constant: Tensor | None = None

    def plus(self, constant: Tensor | None) -> "Value":
        if constant is None or self.constant is None:
            return replace(self, constant=constant if self.constant is None else self.constant)
        return replace(self, constant=self.constant + constant)

    def scaled(self, factor: Tensor) -> "Value":
        """Multiply each channel by a factor."""
        terms = (Term(t.node, t.mix * (factor if t.mix.ndim == 1 else factor[:, None])) for t in self.terms)
        return Value(tuple(terms), self.shape, None if self.constant is None else self.constant * factor)

    def mixed(self, matrix: Tensor) -> "Value":
        """Mix channels by `matrix` `[out, in]`."""
        terms = (Term(t.node, matrix * t.mix if t.mix.ndim == 1 else matrix @ t.mix) for t in self.terms)
        constant = None if self.constant is None else self.constant @ matrix.T
        return Value(tuple(terms), (len(matrix), *self.shape[1:]), constant)


def total(values: Iterable[Value], shape: Shape) -> Value:
    """The sum of values of one shape; terms of the same node are merged."""
    found, mixes = Value((), shape), dict[str, Tensor]()
    for value in values:
        found = found.plus(value.constant)
        for term in value.terms:
            before = mixes.get(term.node)
            mixes[term.node] = term.mix if before is None else _matching(before, term.mix)
    return replace(found, terms=tuple(Term(node, mix) for node, mix in mixes.items()))


def _matching(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two mixes; a factor per channel is a diagonal matrix."""
    if a.ndim != b.ndim:
        a, b = (torch.diag(mix) if mix.ndim == 1 else mix for mix in (a, b))
    return a + b


def ones(channels: int) -> Tensor:
    return torch.ones(channels, dtype=torch.double)


def by_channel(values: Tensor, channels: int) -> Tensor:
    """Numbers `[C]`, or one for all channels `[1]`, as `[C]` in float64."""
    return values.detach().double().reshape(-1).expand(channels)


def mixing(name: str, inputs: tuple[str, ...], mix: Tensor, shape: Shape) -> Conv | Linear:
    """The node that mixes channels: a 1x1 convolution, with one group per channel if diagonal."""
    if len(shape) == 1:
        return Linear(name=name, inputs=inputs, shape=shape, weight=torch.diag(mix) if mix.ndim == 1 else mix)
    groups = len(mix) if mix.ndim == 1 else 1
    weight = mix.reshape(len(mix), -1, 1, 1)
    return Conv(name=name, inputs=inputs, shape=shape, weight=weight, groups=groups)
