"""Places in a traced model: which nodes matter, their names, and what they do."""

import builtins
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from spikecal.graph.lowering.build import unique
from spikecal.graph.lowering.trace import Like, Traced
from spikecal.graph.lowering.values import find

NAMESPACES: tuple[Any, ...] = (F, torch, torch._C._nn, operator, builtins)
SHORT_NAMES = {"iadd": "add", "isub": "sub", "imul": "mul", "truediv": "div", "itruediv": "div", "getitem": "slice"}


def live_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The nodes an output depends on, in running order, without asserts and what only they read."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        changed = [other for other, _ in (*node.meta.get("changes", ()), *node.meta.get("spoils", ()))]
        if node.op in ("output", "placeholder") or node in live or not live.isdisjoint(changed):
            live.add(node)
            live.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in live]


def call_name(node: fx.Node) -> str:
    """The name of a call: torch's name of a function or method, the full name of any other function."""
    target: Any = node.target
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", type(target).__name__)
    if any(getattr(space, name, None) is target for space in NAMESPACES):
        return str(name)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', name)}"


def name_sites(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """A readable and unique name for every node with a tensor: its module's path, or the path around and the call."""
    names: dict[fx.Node, str] = {}
    taken: set[str] = set()
    for node in nodes:
        name = _plain_name(node)
        if find(Like, node.meta.get("example")) and not _takes_part(node):
            name = unique(name, taken)
            taken.add(name)
        names[node] = name
    return names


def _plain_name(node: fx.Node) -> str:
    if node.op in ("placeholder", "call_module", "get_attr", "output"):
        return str(node.target)
    called = call_name(node).rpartition(".")[2]
    called = str(node.args[1]) if called == "getattr" else SHORT_NAMES.get(called, called.strip("_"))
    path = node.meta.get("path", "")
    return f"{path}.{called}" if path else called


def _takes_part(node: fx.Node) -> bool:
    """Whether the node selects one of several values, as in `x.chunk(2, 1)[0]`."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and not isinstance(_example(source), Like)


def _example(value: Any) -> Any:
    return value.meta.get("example") if isinstance(value, fx.Node) else value


def describe(traced: Traced, node: fx.Node) -> str:
    """What a node is, for a message: the class of a module, or the name of a call."""
    if node.op == "call_module":
        return module_at(traced, node).__class__.__name__
    return call_name(node) + ("()" if node.op == "call_method" else "")


def module_at(traced: Traced, node: fx.Node) -> nn.Module:
    return traced.root.get_submodule(str(node.target))
