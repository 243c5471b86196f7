"""Arithmetic and shapes, for values of the network, their sizes and constants alike."""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.nn import functional as F

from spikecal.zoo.onnx.calls import OPERATORS, Call, Unknown, Value, check_constant, reads

MOST_INDICES = 1 << 16  # of one Gather: indices become part of the network's code
END = 1 << 31  # from here on, a slice ends with the dimension

# -- arithmetic --------------------------------------------------------------------------------------------------------


def _quotient(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Any:
    """Integer division, rounded towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    # of values, of sizes, of constants
    "Add": (torch.add, operator.add, np.add),
    "Sub": (torch.sub, operator.sub, np.subtract),
    "Mul": (torch.mul, operator.mul, np.multiply),
    "Div": (torch.div, operator.floordiv, lambda a, b: _quotient(a, b) if a.dtype.kind in "iu" else a / b),
    "Min": (torch.minimum, min, np.minimum),
    "Max": (torch.maximum, max, np.maximum),
}


def _arithmetic(c: Call) -> Value:
    a, b = c.inputs
    of_values, of_sizes, of_constants = FUNCTIONS[c.kind]
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return c.call(of_values, c.operand(a), c.operand(b))
    if isinstance(a, list) or isinstance(b, list):
        left, right = (v if isinstance(v, list) else np.atleast_1d(v).tolist() for v in (a, b))
        longest = max(len(left), len(right))
        left, right = (v * longest if len(v) == 1 else v for v in (left, right))
        return [_sized(c, of_sizes, *pair) for pair in zip(left, right, strict=True)]
    check_constant(c.kind, prod(np.broadcast_shapes(np.shape(a), np.shape(b))))
    return of_constants(a, b)


OPERATORS.update(dict.fromkeys(FUNCTIONS, _arithmetic))


def _sized(c: Call, function: Callable[..., Any], a: Any, b: Any) -> Any:
    return function(int(a), int(b)) if not {type(a), type(b)} & {fx.Node} else c.call(function, a, b)


@reads("Sum")
def total(c: Call) -> fx.Node:
    found = c.x
    for value in c.inputs[1:]:
        found = c.call(torch.add, found, c.operand(value))
    return found


ALONE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # of values, of constants
    "Neg": (torch.neg, np.negative),
    "Sqrt": (torch.sqrt, np.sqrt),
    "Reciprocal": (torch.reciprocal, np.reciprocal),
}


def _alone(c: Call) -> Value:
    of_values, of_constants = ALONE[c.kind]
    return c.computed(of_constants) if c.is_constant else c.call(of_values, c.x)


OPERATORS.update(dict.fromkeys(ALONE, _alone))


# -- shapes ------------------------------------------------------------------------------------------------------------


@reads("Constant")
def constant(c: Call) -> Value:
    (value,) = c.attributes.values()
    return np.asarray(value)


@reads("ConstantOfShape")
def constant_of_shape(c: Call) -> Value:
    shape, value = c.constant(0), c.attributes.get("value", np.zeros(1, np.float32))
    if shape is None:
        raise Unknown("a ConstantOfShape without a shape")
    check_constant(c.kind, prod(shape.tolist()))
    return np.full(shape.tolist(), value.item(), value.dtype)


@reads("Shape")
def shape(c: Call) -> Value:
    if not isinstance(c.inputs[0], fx.Node):
        return np.array(np.shape(c.inputs[0]))
    start, end = c.attributes.get("start", 0), c.attributes.get("end", c.rank())
    return [_size(c, d) for d in range(c.rank())][start:end]


def _size(c: Call, dim: int) -> Any:
    """A size of the first input: a number if the file states it, except for the batch, which is never fixed."""
    known = (c.target.shapes.get(c.names[0]) or [None] * (dim + 1))[dim]
    if known is not None and dim > 0:
        return known
    return c.target.graph.call_method("size", (c.x, dim))


@reads("Cast")
def cast(c: Call) -> Value:
    wanted = {1: np.float32, 6: np.int32, 7: np.int64}.get(c.attributes["to"], np.float32)
    if isinstance(c.inputs[0], np.ndarray) or (c.is_constant and wanted is np.float32):
        return np.asarray(c.inputs[0]).astype(wanted)  # sizes as well: as floats they are divided exactly
    return c.inputs[0]  # floats keep the network's dtype, sizes are integers


@reads("Floor", "Ceil", "Round")
def rounded(c: Call) -> Value:
    if isinstance(c.inputs[0], list) and not c.is_constant and c.kind != "Floor":
        raise Unknown(
            f"the operator {c.kind} on a size that the file leaves open"
        )  # division has already rounded it down
    if isinstance(c.inputs[0], list):
        return c.inputs[0]  # sizes are integers
    if c.is_constant:
        return c.computed({"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}[c.kind])
    functions = {"Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round}
    return c.call(functions[c.kind], c.x)


@reads("Gather")
def gather(c: Call) -> Value:
    source, index, axis = c.inputs[0], c.constant(1), c.attributes.get("axis", 0)
    if index is None:
        raise Unknown("a Gather without an index")
    if isinstance(source, list):
        chosen = [source[i] for i in np.atleast_1d(index).tolist()]
        return np.array(chosen[0]) if index.ndim == 0 and type(chosen[0]) is int else chosen
    if isinstance(source, np.ndarray):
        check_constant(c.kind, index.size * source.size // max(1, source.shape[axis]))
        return np.take(source, index, axis)
    if index.size > MOST_INDICES:
        raise Unknown(f"a Gather with an index of {index.size:,} numbers")
    where = (slice(None),) * (axis % c.rank())
    places = int(index) if index.ndim == 0 else index.tolist()
    return c.call(operator.getitem, c.x, (*where, places))


@reads("Unsqueeze", "Squeeze")
def squeezed(c: Call) -> Value:
    axes = c.setting("axes", 1)
    value = c.inputs[0]
    if isinstance(value, list):
        return value  # one size or several: both are lists here
    if isinstance(value, np.ndarray):
        return np.expand_dims(value, tuple(axes)) if c.kind == "Unsqueeze" else np.squeeze(value, tuple(axes or ()))
    found = value
    for axis in sorted(axes or (), reverse=c.kind == "Squeeze"):
        found = c.call(torch.unsqueeze if c.kind == "Unsqueeze" else torch.squeeze, found, axis)
    return found


@reads("Concat")
def concat(c: Call) -> Value:
    axis = c.attributes["axis"]
    if any(isinstance(value, list) for value in c.inputs):
        return [n for value in c.inputs for n in (value if isinstance(value, list) else np.atleast_1d(value).tolist())]
    if all(isinstance(value, np.ndarray) for value in c.inputs):
        check_constant(c.kind, sum(value.size for value in c.inputs))
        return np.concatenate(c.inputs, axis)
    return c.call(torch.cat, tuple(c.tensor(i) for i in range(len(c.inputs))), axis)


@reads("Reshape")
def reshape(c: Call) -> Value:
    value, sizes = c.inputs[0], c.inputs[1]
    wanted = list(sizes) if isinstance(sizes, list) else [int(n) for n in sizes]
    if isinstance(value, np.ndarray):
        return value.reshape([value.shape[d] if n == 0 else n for d, n in enumerate(wanted)])
    if isinstance(value, list):  # sizes; torch.onnx turns pads into a matrix and back
        return np.asarray(value).reshape(wanted) if c.is_constant and len(wanted) > 1 else value
    if c.target.batch is not None and wanted and wanted[0] == c.target.batch:
        wanted[0] = 0  # written for one batch size, but meant for all
    kept = [_size(c, d) if type(n) is int and n == 0 else n for d, n in enumerate(wanted)]
    return c.call(torch.reshape, c.x, tuple(kept))


@reads("Transpose")
def transpose(c: Call) -> Value:
    order = c.attributes.get("perm") or list(reversed(range(c.rank())))
    if isinstance(c.inputs[0], np.ndarray):
        return np.transpose(c.inputs[0], order)
    return c.call(torch.permute, c.x, tuple(order))


@reads("Slice")
def sliced(c: Call) -> Value:
    starts, ends = (c.setting(name, i) for i, name in enumerate(("starts", "ends"), start=1))
    axes = c.setting("axes", 3) or list(range(len(starts)))
    steps = c.setting("steps", 4) or [1] * len(starts)
    ends = [None if isinstance(end, int) and abs(end) >= END else end for end in ends]
    cuts = {a: slice(s, e, k) for a, s, e, k in zip(axes, starts, ends, steps, strict=True)}
    if isinstance(c.inputs[0], list):
        return c.inputs[0][cuts[0]]
    if isinstance(c.inputs[0], np.ndarray):
        rank = c.inputs[0].ndim
        return c.inputs[0][tuple(cuts.get(d, cuts.get(d - rank, slice(None))) for d in range(rank))]
    index = tuple(cuts.get(d, cuts.get(d - c.rank(), slice(None))) for d in range(c.rank()))
    return c.call(operator.getitem, c.x, index)


@reads("Split")
def split(c: Call) -> Value:
    axis, sizes = c.attributes.get("axis", 0), c.setting("split", 1)
    if sizes is None:
        whole = (c.target.shapes.get(c.names[0]) or [])[axis]
        if whole is None or whole % c.outputs:
            raise Unknown("a Split of a value whose size the file does not state")
        sizes = [whole // c.outputs] * c.outputs
    found = c.call(torch.split, c.x, tuple(sizes), axis)
    parts = [c.call(operator.getitem, found, i) for i in range(c.outputs)]
    return parts if c.outputs > 1 else parts[0]


@reads("Pad")
def pad(c: Call) -> fx.Node:
    pads, value = c.setting("pads", 1), c.setting("value", 2) or 0.0
    axes = c.constant(3)
    rank = c.rank()
    before, after = [0] * rank, [0] * rank
    count = len(pads) // 2
    for i, axis in enumerate(range(rank) if axes is None else axes.tolist()):
        before[axis], after[axis] = int(pads[i]), int(pads[count + i])
    first = next((d for d in range(rank) if before[d] or after[d]), rank)
    if first >= rank:
        return c.x
    pairs = [n for d in reversed(range(first, rank)) for n in (before[d], after[d])]
    mode = c.attributes.get("mode", "constant")
    mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    return c.call(F.pad, c.x, tuple(pairs), mode, *((float(value),) if mode == "constant" else ()))
