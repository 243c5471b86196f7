"""Lowering: from any traced model to the closed set of operations, or one error that names everything in the way."""

import inspect
import logging
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from spikecal.devices import tensors_on
from spikecal.errors import ConversionError, first_line
from spikecal.graph.graph import Graph
from spikecal.graph.head import build_head, check_keep, kept_parts
from spikecal.graph.lowering.build import CALLS, MODULES, Builder, Handler
from spikecal.graph.lowering.handlers import linear, pooling, shape
from spikecal.graph.lowering.prepare import Working, prepare, relative_error
from spikecal.graph.lowering.sites import call_name, describe, live_nodes, module_at, name_sites
from spikecal.graph.lowering.trace import Like, Traced, Untraceable, trace
from spikecal.graph.lowering.values import Dim, Lost, Ref, Refusal, find, replace
from spikecal.graph.passes import run_passes

logger = logging.getLogger(__name__)

HANDLERS = (linear, pooling, shape)  # importing them fills the tables

SIZE_ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg, operator.getitem, operator.iadd,
    operator.isub, operator.imul, operator.ifloordiv,
)  # fmt: skip

RELU_INSTEAD = "replace it with ReLU and fine-tune"
BATCH_NORM_INSTEAD = "replace it with BatchNorm, whose statistics are fixed after training, and fine-tune"
ROUND_INSTEAD = "leave the rounding out, as neurons round by themselves, and keep its clip: x.relu().clamp(max=alpha)"
CLAMP_INSTEAD = "if this is a clip, such as PACT's, write x.relu().clamp(max=alpha), which converts"
LAST_SOFTMAX = "where it is the last layer, leave it out, which changes no arg-max"
HINTS = {
    **dict.fromkeys(
        ("sigmoid", "silu", "gelu", "tanh", "elu", "selu", "celu", "mish", "softplus", "hardswish", "hardsigmoid",
         "leakyrelu", "leaky_relu", "prelu", "rrelu", "logsigmoid", "softsign", "hardshrink", "glu"),
        RELU_INSTEAD,
    ),
    **dict.fromkeys(
        ("layernorm", "layer_norm", "groupnorm", "group_norm", "instancenorm1d", "instancenorm2d", "instancenorm3d",
         "instance_norm", "localresponsenorm", "local_response_norm"),
        BATCH_NORM_INSTEAD,
    ),
    **dict.fromkeys(("floor", "round", "ceil", "trunc"), ROUND_INSTEAD),
    **dict.fromkeys(("abs", "absolute", "where"), CLAMP_INSTEAD),
    **dict.fromkeys(("softmax", "log_softmax", "logsoftmax"), LAST_SOFTMAX),
}  # fmt: skip


def lower(model: nn.Module, example: tuple[Tensor, ...], keep: Sequence[str] = ()) -> Graph:
    """Lower a model to a canonical graph that gives the model's outputs, checked on the example inputs.

    `keep` names modules, or calls as in errors, that stay analog at the end of the network.
    """
    working = prepare(model, example)
    with tensors_on(working.device):  # the model's code may create tensors
        return _compared(model, example, keep, working)


def _compared(model: nn.Module, example: Sequence[Tensor], keep: Sequence[str], working: Working) -> Graph:
    """The lowered graph, if it computes the same as the model."""
    keep = kept_parts(working.model, keep)
    graph = _lower(working, keep)
    error = relative_error(graph, working)
    if error > working.tolerance:
        # Some networks amplify the last bit of every weight. More bits show whether that is the only cause.
        exact = prepare(model, example, torch.float64)
        if working.dtype == torch.float64 or relative_error(_lower(exact, keep), exact) > exact.tolerance:
            raise ConversionError(
                type(working.original).__name__,
                f"the lowered network differs from the model on the example (relative error {error:.2g})",
                "look for hooks that change values and for random numbers in its code; else report it with the model",
            )
        logger.warning("rounding alone changes the outputs of this network by a relative %.2g", error)
    return graph


def _lower(working: Working, keep: Sequence[str]) -> Graph:
    """For all input sizes if the model's code allows it, else for the example's."""
    try:
        return _walk(working, keep, sized=False)
    except ConversionError as error:
        refusal = error
    try:
        graph = _walk(working, keep, sized=True)
    except ConversionError as error:
        # The errors that remain if sizes are known: a complete walk sees more than tracing that stopped.
        if isinstance(error, Untraceable) and not isinstance(refusal, Untraceable):
            raise refusal from error
        raise error from refusal.__cause__
    shapes = ", ".join("×".join(map(str, x.shape[1:])) for x in working.example)
    place = f"{refusal.layer}: {refusal.found}"
    logger.warning("the network will accept only inputs of %s: %s", shapes, place)
    return graph


def _walk(working: Working, keep: Sequence[str], sized: bool) -> Graph:
    traced = trace(working.model, working.example, keep, sized)
    with torch.no_grad():
        return run_passes(Lowering(traced, Builder(working.dtype, working.device, sized), keep).run())


class Lowering:
    """One walk over a traced model in running order. `env` holds the current value of every traced node."""

    def __init__(self, traced: Traced, builder: Builder, keep: Sequence[str]) -> None:
        self.traced, self.builder, self.keep = traced, builder, frozenset(keep)
        self.nodes = live_nodes(traced.graph)
        self.sites = name_sites(self.nodes)
        builder.reserved = frozenset(self.sites.values())
        check_keep(keep, traced.root, self.sites)
        self.env: dict[fx.Node, Any] = {}
        self.reads: dict[fx.Node, dict[fx.Node, Any]] = {}
        self.producer: dict[str, fx.Node] = {}
        self.offenders: list[ConversionError] = []

    def run(self) -> Graph:
        for node in self.nodes:
            self.builder.site = self.sites[node]
            self.reads[node] = {argument: self.env[argument] for argument in node.all_input_nodes}
            try:
                value = self._value(node)
            except Refusal as refusal:
                if not refusal.is_reported:
                    self.offenders.append(self._offence(node, refusal))
                value = self._holes(node, kept=False)
            self._bind(node, value)
        if self.offenders:
            first, *others = self.offenders
            raise ConversionError(first.layer, first.found, first.hint, tuple(others))
        graph = self.builder.graph
        if self.keep:
            graph.head, graph.output = build_head(
                self.traced, self.nodes, self.reads, self.builder.kept, self.producer
            )  # fmt: skip
        else:
            graph.output = self.env[self.nodes[-1]]
        return graph

    def _bind(self, node: fx.Node, value: Any) -> None:
        """Set a node's value, and those that an in-place operation overwrites."""
        self.env[node] = value
        if isinstance(value, Ref):
            self.producer.setdefault(value.name, node)
        for other, index in node.meta.get("changes", ()):
            self._overwrite(other, index, value)
        for other, index in node.meta.get("spoils", ()):
            found = f"a value that {self.sites[node]} has partly overwritten through a view"
            self._overwrite(other, index, Lost(found, "use the out-of-place form there"))

    def _overwrite(self, node: fx.Node, index: int | None, value: Any) -> None:
        if index is not None and isinstance(self.env.get(node), (tuple, list)):
            value = tuple(value if i == index else v for i, v in enumerate(self.env[node]))
        self.env[node] = value

    def _value(self, node: fx.Node) -> Any:
        example: Any = node.meta.get("example")
        if node.op == "placeholder":
            index = sum(n.op == "placeholder" for n in self.env)
            return self.builder.input(index, example.shape)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.traced.root)
        if self.sites[node] in self.keep or (node.op == "call_module" and node.target in self.keep):
            return self._holes(node, kept=True)
        arguments: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: self.env[n])
        args, kwargs = arguments
        if node.target is operator.getitem and isinstance(args[0], (tuple, list, dict)) and not find(Lost, args[1]):
            return args[0][args[1]]
        for lost in find(Lost, (args, kwargs)):
            if node.op != "output" and not find((Ref, Like), (args, kwargs, example)):
                return lost  # numbers may be unknown as long as no value of the network needs them
            raise Refusal(lost.found, lost.hint, lost.is_reported)
        if node.op == "output":
            return self._output(args[0])
        value = self._call(node, args, kwargs)
        _compare_shapes(value, example)
        return value

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = module_at(self.traced, node) if node.op == "call_module" else node.target
        if not find(Ref, (args, kwargs)):
            return self._without_values(node, target, args, kwargs)
        if isinstance(target, type) and issubclass(target, tuple):
            return tuple(args)  # a named tuple
        handler, first = self._handler(node, target)
        arguments = (self.builder, *first, *args)
        try:
            inspect.signature(handler).bind(*arguments, **kwargs)
        except TypeError as error:
            raise Refusal(f"{describe(self.traced, node)} with unknown arguments ({error})") from error
        try:
            return handler(*arguments, **kwargs)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            reason = first_line(error)
            raise Refusal(f"{describe(self.traced, node)} in an unknown form ({reason})") from error

    def _handler(self, node: fx.Node, target: Any) -> tuple[Handler, tuple[Any, ...]]:
        if node.op == "call_module":
            for cls in type(target).__mro__:
                if cls in MODULES:
                    return MODULES[cls], (target,)
            raise Refusal(describe(self.traced, node))
        name = call_name(node)
        found = CALLS.get(target) or CALLS.get(name.strip("_"))
        if found is None:
            raise Refusal(describe(self.traced, node))
        return found, ()

    def _without_values(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Evaluate what depends on constants alone; sizes allow simple arithmetic."""
        lost = Lost(f"the result of {call_name(node)} for the size of the input", "use only + - * // with sizes")
        if find(Dim, (args, kwargs)) and target not in SIZE_ARITHMETIC:
            return lost
        try:
            if node.op == "call_method":
                return getattr(args[0], str(target))(*args[1:], **kwargs)
            return target(*args, **kwargs)
        except TypeError:
            return lost

    def _holes(self, node: fx.Node, kept: bool) -> Any:
        """Stand-ins for the node's values, so that later nodes can be checked."""
        example = replace(node.meta.get("example"), Like, lambda like: self.builder.hole(like.shape, kept))
        found = f"a number from {self.sites[node]}"
        return replace(example, (int, float), lambda number: Lost(found, is_reported=not kept))

    def _output(self, structure: Any) -> Any:
        def name(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: name(part) for key, part in value.items()}
            if isinstance(value, (tuple, list)):
                return [name(v) for v in value] if isinstance(value, list) else tuple(name(v) for v in value)
            if value is not None and not isinstance(value, Ref):
                raise Refusal(f"an output that is a {type(value).__name__}, not a value of the network")
            return None if value is None else value.name

        if not find(Ref, structure):
            raise Refusal("no output that depends on the input")
        return name(structure)

    def _offence(self, node: fx.Node, refusal: Refusal) -> ConversionError:
        site = self.sites[node]
        called = describe(self.traced, node) if node.op == "call_module" else call_name(node)
        known = HINTS.get(called.lower().rpartition(".")[2].removesuffix("_"))
        hint = refusal.hint or known or "rewrite it with operations that convert"
        read = {ref.name for ref in find(Ref, list(self.reads[node].values()))}
        if not read.isdisjoint(self.builder.kept):
            hint = f"kept parts must be at the end of the network: list it too, keep=[..., {site!r}], or keep less"
        elif node.op != "output" and refusal.analog:
            hint += f"; at the end of the network it can stay analog: keep=[{site!r}]"
        return ConversionError(site, _with_name(refusal.found, called), hint)


def _with_name(found: str, called: str) -> str:
    return found if called in found else f"{found} ({called})"


def _compare_shapes(value: Any, example: Any) -> None:
    """Catch a handler that gets a shape wrong at its own layer."""
    if isinstance(value, Ref) and isinstance(example, Like) and value.shape != example.shape:
        raise Refusal(f"lowered to shape {list(value.shape)}, but the model has {list(example.shape)}")
    if isinstance(value, (tuple, list)) and isinstance(example, (tuple, list)):
        if len(value) != len(example):
            raise Refusal(f"lowered to {len(value)} values, but the model has {len(example)}")
        for part, like in zip(value, example, strict=True):
            _compare_shapes(part, like)
