"""Tracing: an fx graph of a model, with the form of every value on the example inputs.

The example runs while tracing. That distinguishes shapes from data (ranks are plain numbers, sizes stay
symbolic), finds a failing layer where it fails, and shows which values an in-place operation changes. With `sized`,
all sizes except the batch's are plain numbers as well: code may then branch on them, but the trace is for one size.
"""

import dis
import inspect
import linecache
import operator
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute, TraceError

from spikecal.errors import ConversionError, DataError, SpikecalError, first_line

# The results of these depend on the rank and dtype of a tensor, never on its size or data.
STATIC_METHODS = ("dim", "ndimension", "is_contiguous", "is_floating_point", "is_complex", "element_size", "get_device")
TORCH_FOLDER = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Like:
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Traced:
    """A traced model: `root` owns the modules and tensors that `graph` names.

    Metadata of every node: `example` (the value on the example, tensors as `Like`), `path` (of the module around it),
    `changes` (values that it overwrites) and `spoils` (values it overwrites in part), both as (node, index or None).
    """

    root: nn.Module
    graph: fx.Graph


class Untraceable(ConversionError):
    """Tracing stopped: nothing after that place was checked."""


class ExampleFailed(Exception):
    """An operation raised on the example inputs: the model itself cannot run on them."""


class ExampleProxy(fx.Proxy):
    """A proxy that knows its value on the example; the value lives as long as the model can still read it."""

    _example: Any = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._example, name)
        if callable(value):
            return Attribute(self, name)
        if isinstance(value, torch.Size):
            return self.tracer.shape_of(self)  # type: ignore[attr-defined]
        if isinstance(value, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return value  # rank, dtype, device: constant for all inputs

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._example, (tuple, list)):
            return iter([self[i] for i in range(len(self._example))])  # type: ignore[index]
        raise TraceError("a loop over a tensor is a loop over the images of a batch")

    def __len__(self) -> int:
        if isinstance(self._example, (tuple, list)):
            return len(self._example)
        raise TraceError("the length of a tensor is the batch size, which is not fixed")

    def __bool__(self) -> bool:
        frame = inspect.currentframe()
        if frame is not None and frame.f_back is not None and _in_assert(frame.f_back):
            return bool(self._example)
        kind = "the data in a tensor" if isinstance(self._example, Tensor) else "the size of a tensor"
        raise TraceError(f"a branch depends on {kind}")


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # torch.fx reads `x += y` as `x = x + y`, which forgets that other names for x change, too.
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _function in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv):
    setattr(ExampleProxy, f"__{_function.__name__}__", _in_place(_function))


class ExampleTracer(fx.Tracer):
    """Traces while it runs the example. Modules of torch.nn and those listed in `keep` are leaves."""

    def __init__(self, example: Sequence[Tensor], keep: Sequence[str], sized: bool, trace_parameters: bool) -> None:
        super().__init__()
        self.example, self.keep = tuple(x.clone() for x in example), frozenset(keep)
        self.sized, self.trace_parameters = sized, trace_parameters
        self.batch: Any = None  # one proxy for the batch size of all values, so that shapes can be compared
        self.failed_in: str | None = None
        self._running = False
        self._living: list[tuple[fx.Node, int | None, weakref.ref[Tensor]]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.keep or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """One placeholder for each example; the model's other arguments keep their defaults."""
        parameters = list(inspect.signature(root_fn).parameters.values())[1:]
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names = [named[i] if i < len(named) else f"input_{i}" for i in range(len(self.example))]
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        # Parameters stay tensors if possible, so that anything computed from them alone is computed here.
        if not self.trace_parameters or self._running:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, nn.Parameter) and not any(a is p for p in self.root.parameters()):
            a = a.data  # a parameter hidden in a list, say, is a constant like any other
        return super().create_arg(a)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._running:
            return forward(*args, **kwargs)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed_in is None:
                self.failed_in = self.path_of_module(m)
            raise

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return ExampleProxy(node, self)

    def shape_of(self, proxy: Any) -> Any:
        """`proxy.shape`, as a traced value or, if sizes are numbers, as a tuple of the batch size and these."""
        shape = self.create_proxy("call_function", getattr, (proxy, "shape"), {})
        if not self.sized:
            return shape
        sizes = _example_of(shape)
        if not sizes or sizes[0] != len(self.example[0]):
            return shape
        self.batch = shape[0] if self.batch is None else self.batch
        return (self.batch, *sizes[1:])

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        if kind == "call_method" and isinstance(args[0], fx.Proxy):
            if target in STATIC_METHODS:
                return getattr(_example_of(args[0]), target)(*args[1:], **kwargs)
            if target == "size" and self.sized:
                shape, dim = self.shape_of(args[0]), (*args[1:], *kwargs.values())
                return shape[dim[0]] if dim and dim[0] is not None else shape
        proxy: Any = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        node = proxy.node
        node.meta["path"] = self.scope.module_path
        if kind == "placeholder":
            value = self.example[sum(n.op == "placeholder" for n in self.graph.nodes) - 1]
        else:
            values = fx.node.map_aggregate((args, kwargs), _example_of)
            value = self._run(node, *values)
        object.__setattr__(proxy, "_example", value)
        node.meta["example"] = _without_data(value)
        self._remember(node, value)
        return proxy

    def _run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The node's value on the example; its metadata records what it overwrites."""
        tensors = [t for t in _flat((args, kwargs)) if isinstance(t, Tensor)]
        versions = [t._version for t in tensors]
        self._running = True
        try:
            if node.op == "call_module":
                value = self.root.get_submodule(str(node.target))(*args, **kwargs)
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self.root)
            elif node.op == "call_method":
                value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception as error:
            shapes = [list(t.shape) for t in tensors]
            raise ExampleFailed(f"{_title(self.root, node)} on {shapes}: {first_line(error)}") from error
        finally:
            self._running = False
        changed = {id(t): t for t, version in zip(tensors, versions, strict=True) if t._version != version}
        for tensor in changed.values():
            self._note_change(node, tensor, value)
        if isinstance(value, Tensor) and value.is_floating_point():
            value = value.to(self.example[0].dtype)  # the lowered network has one float type, despite casts
        return value

    def _note_change(self, node: fx.Node, changed: Tensor, value: Any) -> None:
        changes, spoils = node.meta.setdefault("changes", []), node.meta.setdefault("spoils", [])
        for other, index, reference in self._living:
            tensor = reference()
            if tensor is None or not _overlap(tensor, changed):
                continue
            # Later readers are known only if the result is the whole changed tensor.
            whole = isinstance(value, Tensor) and _same_place(tensor, changed) and _same_place(value, changed)
            (changes if whole else spoils).append((other, index))
        if not changes and not spoils:
            raise TraceError("the model writes to its own buffer or parameter")

    def _remember(self, node: fx.Node, value: Any) -> None:
        self._living = [entry for entry in self._living if entry[2]() is not None]
        if isinstance(value, Tensor):
            self._living.append((node, None, weakref.ref(value)))
        elif isinstance(value, (tuple, list)):
            parts = [(node, i, weakref.ref(v)) for i, v in enumerate(value) if isinstance(v, Tensor)]
            self._living.extend(parts)


def trace(model: nn.Module, example: Sequence[Tensor], keep: Sequence[str] = (), sized: bool = False) -> Traced:
    """Trace a model, which is in eval mode and may be changed, on example inputs, which are not.

    With `sized`, sizes are the example's: the trace holds only for inputs of that size.
    """
    try:
        inspect.signature(model.forward).bind(*example)
    except TypeError as error:
        raise DataError(f"the model cannot be called with {len(example)} input(s): {error}") from error
    try:
        return _trace(model, ExampleTracer(example, keep, sized, trace_parameters=False))
    except ConversionError as refusal:
        if sized:
            raise  # the first size of a parameter would be mistaken for the batch's
        # `self.token.expand(x.size(0), -1, -1)` takes a traced size only if the parameter is traced as well.
        try:
            return _trace(model, ExampleTracer(example, keep, sized, trace_parameters=True))
        except SpikecalError:
            raise refusal from refusal.__cause__


def _trace(model: nn.Module, tracer: ExampleTracer) -> Traced:
    example = tracer.example
    try:
        with torch.no_grad():
            return Traced(model, tracer.trace(model))
    except ExampleFailed as error:
        shapes = ", ".join(str(list(x.shape)) for x in example)
        where = f"{tracer.failed_in}: " if tracer.failed_in and not str(error).startswith(tracer.failed_in) else ""
        raise DataError(f"the model cannot run on inputs of shape {shapes}: {where}{error}") from error.__cause__
    except Exception as error:
        raise _not_traceable(error, tracer.failed_in or type(model).__name__, model, example) from error


def _not_traceable(error: Exception, layer: str, model: nn.Module, example: Sequence[Tensor]) -> Exception:
    """The error for the user: the model's own if it also fails untraced, else where tracing stopped."""
    try:
        with torch.no_grad():
            model(*(x.clone() for x in example))
    except Exception as own:
        return DataError(f"the model cannot run on the example inputs: {type(own).__name__}: {first_line(own)}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_code(f.filename)]
    line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`" if frames else ""
    hint = "make that code independent of data and sizes"
    if layer in dict(model.named_modules()):
        hint += f", or, at the end of the network, list it: keep=[{layer!r}]"
    else:  # the model's own code
        hint += ", or convert the submodules before it (docs/how-to/detection.md#your-own-network)"
    return Untraceable(layer, f"Python code that torch.fx cannot trace{line} ({first_line(error)})", hint)


def _in_assert(frame: FrameType) -> bool:
    """Whether an `assert` asks for the truth value, which decides nothing."""
    if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert "):
        return True
    following = [i.opname for i in dis.get_instructions(frame.f_code) if i.offset >= frame.f_lasti][:4]
    return "LOAD_ASSERTION_ERROR" in following and any("IF_TRUE" in name for name in following)


def _example_of(value: Any) -> Any:
    if isinstance(value, Attribute):
        return getattr(_example_of(value.root), value.attr)
    return value._example if isinstance(value, ExampleProxy) else value


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Like(tuple(value.shape), value.dtype)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (tuple, list)):
        return tuple(_without_data(v) for v in value)
    if isinstance(value, dict):
        return {k: _without_data(v) for k, v in value.items()}
    return value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _same_place(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two strided tensors share an element."""
    storage = a.untyped_storage()
    if storage.data_ptr() != b.untyped_storage().data_ptr() or a.numel() == 0 or b.numel() == 0:
        return False
    if _same_place(a, b) or a.dtype != b.dtype:
        return True
    mark = torch.zeros(storage.nbytes() // a.element_size(), dtype=torch.bool)
    mark.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(mark.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _title(root: nn.Module, node: fx.Node) -> str:
    if node.op == "call_module":
        return f"{node.target} ({type(root.get_submodule(str(node.target))).__name__})"
    return getattr(node.target, "__name__", str(node.target))


def _is_user_code(filename: str) -> bool:
    return not filename.startswith((TORCH_FOLDER, str(Path(__file__).parents[1]), "<"))
