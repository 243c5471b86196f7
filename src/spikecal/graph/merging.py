"""Merge two linear maps: a convolution or linear layer that is the only reader of another one."""

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod

import torch
from torch import Tensor

from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops import Conv, ConvTranspose, Linear, Op

Sizes = Mapping[str, Sequence[int]]  # node -> shape of its value


def merged_maps(graph: Graph, sizes: Sizes, readers: Callable[[Graph], Sequence[str]]) -> Graph:
    """The graph with each of `readers` merged with the map before it, if that saves multiply-adds."""
    graph = graph.clone()
    while (found := _cheaper(graph, sizes, readers(graph))) is not None:
        first, second, op = found
        second.op, second.inputs = op, first.inputs
        del graph.nodes[first.name]
    return graph


def _cheaper(graph: Graph, sizes: Sizes, readers: Sequence[str]) -> tuple[Node, Node, Op] | None:
    """The first pair of maps that a single map replaces with fewer multiply-adds, and that map."""
    users = graph.users()
    only_shape = {name for node in graph.nodes.values() for name in node.shape_refs}
    for name in readers:
        second = graph.nodes[name]
        first = graph.nodes[second.inputs[0]]
        if users[first.name] != [name] or first.name in only_shape:
            continue
        op = composed(first.op, second.op)
        if op is None:
            continue
        apart = multiply_adds(first.op, sizes[first.name]) + multiply_adds(second.op, sizes[name])
        if multiply_adds(op, sizes[name]) < apart:
            return first, second, op
    return None


def multiply_adds(op: Op, shape: Sequence[int]) -> int:
    """Multiply-adds of one image, including those with the zeros of padding; `shape` is that of the result."""
    weight = op.tensors()["weight"]
    channels = weight.shape[1] * op.groups if isinstance(op, ConvTranspose) else weight.shape[0]
    return prod(shape[1:]) // channels * weight.numel()


def composed(first: Op, second: Op) -> Op | None:
    """`second` of `first` as one operation, computed in float64; None if it is neither of the two kinds."""
    if isinstance(first, Linear) and isinstance(second, Linear):
        weight = second.weight.double() @ first.weight.double()
        return Linear(weight=_like(weight, first), bias=_bias(first, second, second.weight.double()))
    if isinstance(first, Conv) and isinstance(second, Conv) and first.weight.ndim == second.weight.ndim:
        return _convolutions(first, second)
    return None


def _convolutions(first: Conv, second: Conv) -> Conv | None:
    """Merge if one of them has a kernel of 1: else borders differ, and larger kernels are rarely cheaper."""
    if _pointwise(second):
        place = {
            "stride": tuple(a * b for a, b in zip(first.stride, second.stride, strict=True)),
            "padding": first.padding,
            "dilation": first.dilation,
        }
    elif _pointwise(first) and set(first.stride) == {1} and (first.bias is None or not any(second.padding)):
        # with a bias, the second reads 0 at its borders, not what the first computes from 0
        place = {"stride": second.stride, "padding": second.padding, "dilation": second.dilation}
    else:
        return None
    groups = gcd(first.groups, second.groups)
    inner, outer = (_blocks(op, groups) for op in (first, second))
    kernel = max(first.weight.shape[2:], second.weight.shape[2:], key=prod)
    weight = torch.einsum("gomb,gmia->goiab", outer.flatten(3), inner.flatten(3))
    weight = weight.reshape(-1, weight.shape[2], *kernel)
    summed = torch.block_diag(*outer.flatten(3).sum(3))
    return Conv(**place, groups=groups, weight=_like(weight, first), bias=_bias(first, second, summed))


def _pointwise(op: Conv) -> bool:
    return set(op.weight.shape[2:]) == {1} and not any(op.padding)


def _blocks(op: Conv, groups: int) -> Tensor:
    """`[groups, O, I, *kernel]` in float64: the weights of a convolution with more groups, with zeros between them."""
    weight = op.weight.double()
    inside, outputs, inputs = op.groups // groups, weight.shape[0] // op.groups, weight.shape[1]
    parts = weight.reshape(groups, inside, outputs, inputs, *weight.shape[2:])
    blocks = weight.new_zeros(groups, inside, outputs, inside, inputs, *weight.shape[2:])
    for i in range(inside):
        blocks[:, i, :, i] = parts[:, i]
    return blocks.flatten(3, 4).flatten(1, 2)


def _bias(first: Op, second: Op, weight: Tensor) -> Tensor | None:
    """The combined bias, `weight` `[O, M]` being the effect of the second on a constant."""
    inner, outer = (op.tensors().get("bias") for op in (first, second))
    if inner is None:
        return outer
    total = weight @ inner.double()
    return _like(total if outer is None else total + outer.double(), first)


def _like(value: Tensor, op: Op) -> Tensor:
    return value.to(op.tensors()["weight"].dtype)
