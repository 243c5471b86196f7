"""Networks in ONNX files: read into an fx graph of torch modules, and compared with onnxruntime."""

import copy
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from spikecal.data.card import Card
from spikecal.errors import ConfigError, ConversionError, DataError, FileError, first_line, shown
from spikecal.files import read_regular
from spikecal.graph.ops import frozen
from spikecal.memory import free_memory
from spikecal.snn.origin import LARGEST_INPUT
from spikecal.zoo.onnx import layers, shapes
from spikecal.zoo.onnx.calls import OPERATORS, Call, Unknown, Value
from spikecal.zoo.onnx.sizes import Sizes

TABLES = (layers, shapes)  # importing them fills OPERATORS
SUFFIX = ".onnx"
DOMAINS = ("", "ai.onnx")
MOST_BYTES = 2**31  # of a file: protobuf's own limit; weights may be in a file beside it
NEAR = 1e-3  # of the largest output: tolerance between two implementations
FREE = 1  # batch size of the example if the file leaves it open
KNOWN_RANKS = range(2, 6)  # of an input: batch, and a vector to a volume

log = logging.getLogger(__name__)


def read_onnx(path: Path) -> tuple[nn.Module, Card]:
    """The network of an ONNX file in eval mode, and the card of its images, from its input."""
    file = _loaded(path)
    constants = {tensor.name for tensor in file.graph.initializer}
    shapes = {value.name: _shape(value) for value in file.graph.input if value.name not in constants}
    if not shapes:
        raise FileError(f"{path} has no input: everything it computes is constant")
    example = tuple(_noise(path, name, shape) for name, shape in shapes.items())
    model = Importer(path, file, shapes).run()
    compare(path, model, example)
    return model, _card(path, next(iter(shapes.values())))


class Importer:
    """One walk over the nodes of a file. `values` holds a traced value or a constant for every name."""

    def __init__(self, path: Path, file: Any, shapes: Mapping[str, list[int | None]]) -> None:
        onnx = _package("onnx", path)
        self.path, self.file, self.onnx = path, file, onnx
        self.root, self.graph = nn.Module(), fx.Graph()
        self._numbers = defaultdict[str, int](lambda: 1)  # to tell apart nodes with the same name
        self.shapes: dict[str, list[int | None]] = dict(shapes)
        for value in (*file.graph.value_info, *file.graph.output):
            self.shapes[value.name] = _shape(value)
        self.batch = next(iter(shapes.values()))[0]  # None if open
        self.values: dict[str, Value] = {tensor.name: self._array(tensor) for tensor in file.graph.initializer}
        for name in shapes:
            self.values[name] = self.graph.placeholder(_identifier(name))
        self.sizes = Sizes(self.root, {self.values[name]: shape for name, shape in shapes.items()})

    def _array(self, tensor: Any) -> np.ndarray[Any, Any]:
        try:
            found: np.ndarray[Any, Any] = self.onnx.numpy_helper.to_array(tensor)
        except (TypeError, ValueError, KeyError) as error:  # the checker overlooks some sizes and types
            raise FileError(f"{self.path}: {shown(tensor.name)} is damaged: {first_line(error)}") from error
        return found

    def run(self) -> nn.Module:
        refused: list[ConversionError] = []
        for node in self.file.graph.node:
            try:
                self._run(node)
            except Unknown as unknown:
                hint = "leave it out of the exported network, or rewrite it with operators that convert"
                refused.append(ConversionError(self.name_of(node), str(unknown), hint))
                self.values |= {name: self.graph.create_node("call_function", _missing) for name in node.output}
        if refused:
            first, *others = refused
            raise ConversionError(first.layer, first.found, first.hint, tuple(others))
        outputs = [self.values[value.name] for value in self.file.graph.output]
        if not all(isinstance(value, fx.Node) for value in outputs):
            raise FileError(f"{self.path} has an output that does not depend on its input")
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        made = fx.GraphModule(self.root, self.graph, "OnnxNetwork").eval().requires_grad_(False)
        made.graph.eliminate_dead_code()
        made.recompile()
        return made

    def _run(self, node: Any) -> None:
        if node.domain not in DOMAINS or node.op_type not in OPERATORS:
            raise Unknown(f"the operator {node.op_type}, which is unknown")
        inputs = [self.values[name] if name else None for name in node.input]
        try:
            attributes = {a.name: _attribute(self.onnx, a) for a in node.attribute}
            call = Call(self, node.op_type, self.name_of(node), inputs, attributes, list(node.input), len(node.output))
            found = OPERATORS[node.op_type](call)
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise Unknown(f"the operator {node.op_type} in an unknown form ({first_line(error)})") from error
        if isinstance(found, np.generic):  # numpy turns arrays without dimensions into numbers
            found = np.asarray(found)
        several = found if isinstance(found, list) and len(node.output) > 1 else [found]
        self.values |= {name: value for name, value in zip(node.output, several, strict=False) if name}
        for name in node.output:
            known = self.shapes.get(name)
            if (not known or None in known[1:]) and isinstance(value := self.values.get(name), fx.Node):
                self.shapes[name] = self.sizes.of(value) or known or []

    def name_of(self, node: Any) -> str:
        return _identifier(node.name or next(iter(node.output), "") or node.op_type)

    def module(self, name: str, module: nn.Module, *inputs: Any) -> fx.Node:
        """Call a module of that name."""
        unique = self._unique(name)
        self.root.add_module(unique, module)
        return self.graph.call_module(unique, inputs)

    def constant(self, name: str, value: Tensor) -> fx.Node:
        """A tensor of the network, for the node of that name."""
        unique = self._unique(f"{name}_constant")
        self.root.register_buffer(unique, value)
        return self.graph.get_attr(unique)

    def _unique(self, name: str) -> str:
        """The name, with a number if it is taken."""
        unique = name
        while hasattr(self.root, unique) or hasattr(fx.GraphModule, unique):
            self._numbers[name] += 1
            unique = f"{name}_{self._numbers[name]}"
        return unique


class _Sized(fx.Interpreter):
    """Runs a network on shapes alone, to refuse values too large for memory before computing them."""

    def __init__(self, model: nn.Module) -> None:
        shapes: dict[int, Any] = {id(parameter): frozen(parameter.to("meta")) for parameter in model.parameters()}
        shapes |= {id(buffer): buffer.to("meta") for buffer in model.buffers()}
        super().__init__(copy.deepcopy(model, shapes))  # weights are not copied
        self.extra_traceback, self.room = False, free_memory()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.nbytes > self.room:
            raise ValueError(f"{n.name} needs {value.nbytes:,} bytes of memory, but {self.room:,} are free")
        return value


def compare(path: Path, model: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Raise if the network and onnxruntime differ on an example; without onnxruntime, this is not checked."""
    try:
        with torch.no_grad():
            _Sized(model).run(*(x.to("meta") for x in example))
            found = model.forward(*example)  # calling a GraphModule itself would print a traceback
    except Exception as error:  # whatever torch raises for an invalid graph
        raise FileError(f"{path} was read, but does not run: {first_line(error)}") from error
    try:
        runtime = import_module("onnxruntime")
    except ImportError:
        log.info("%s was not compared with onnxruntime, which is not installed", path)
        return
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # we report errors ourselves, once
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feed = {given.name: _as(given.type, x) for given, x in zip(session.get_inputs(), example, strict=True)}
        expected = session.run(None, feed)
    except Exception as error:  # onnxruntime has a class for each fault
        raise FileError(f"{path} cannot be run by onnxruntime: {first_line(error)}") from error
    for mine, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        scale = max(float(np.abs(other).max()), 1e-6) if other.size else 1.0
        if mine.shape != other.shape or float(np.abs(mine.numpy() - other).max()) > NEAR * scale:
            raise FileError(
                f"{path} was read, but its outputs differ from onnxruntime's: please report this with the file"
            )


def _loaded(path: Path) -> Any:
    onnx = _package("onnx", path)
    if not path.exists():
        raise FileError(f"there is no file {path}")
    try:
        read = onnx.load_model_from_string(read_regular(path, min(MOST_BYTES, free_memory())))
        onnx.load_external_data_for_model(read, str(path.parent))
        file = onnx.shape_inference.infer_shapes(read)
        onnx.checker.check_model(file)
    except Exception as error:  # protobuf's, the checker's and the system's own kinds
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise FileError(f"{path} is not an ONNX network: {reason}") from error
    if not file.graph.input or not file.graph.output:
        raise FileError(f"{path} has no input or no output")
    return file


def _package(name: str, path: Path) -> Any:
    try:
        module = import_module(name)
        import_module(f"{name}.shape_inference")
        return module
    except ImportError as error:
        raise ConfigError(f"{path} needs onnx, which is not installed: pip install 'spikecal[onnx]'") from error


def _card(path: Path, shape: Sequence[int | None]) -> Card:
    """The card for the file's first input; the file does not contain the normalisation."""
    height, width = shape[2:] if len(shape) == 4 else (None, None)
    size = None if height is None or width is None else (height, width)
    return Card(name=str(path), size=size, dims=len(shape) - 1, trained=True)


def _noise(path: Path, name: str, shape: Sequence[int | None]) -> Tensor:
    """An example for an input; open sizes become those of a small image."""
    if len(shape) not in KNOWN_RANKS:
        raise DataError(f"{path}: its input {shown(name)} has {len(shape)} dimensions, not a batch and 1 to 4 more")
    sizes = [shape[0] or FREE, *(n or (3 if d == 1 else 64) for d, n in enumerate(shape[1:], start=1))]
    if prod(sizes) > LARGEST_INPUT:
        raise DataError(f"{path}: its input {shown(name)} is too large: {'×'.join(map(str, sizes))}")
    return torch.rand(sizes, generator=torch.Generator().manual_seed(0))


def _shape(value: Any) -> list[int | None]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims]


def _attribute(onnx: Any, attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _as(kind: str, x: Tensor) -> np.ndarray[Any, Any]:
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
    if kind not in types:
        raise ValueError(f"an input of {kind}, not of floats")
    return x.numpy().astype(types[kind])


def _identifier(name: str) -> str:
    """A valid name for a module: /layer1/conv1/Conv -> layer1_conv1_Conv."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "node"
    if plain == "self" or iskeyword(plain):
        return f"{plain}_"
    return plain if not plain[0].isdigit() else f"n{plain}"


def _missing(*_: Any) -> None:
    """Stands in for a value of an unknown operator, while the rest is checked."""
