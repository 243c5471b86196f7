"""ONNX files that are hostile: one line each, before memory is used, and no name in them becomes code."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from spikecal.errors import SpikecalError  # noqa: E402
from spikecal.zoo.onnx.read import read_onnx  # noqa: E402

Nodes = list[Any]


def network(nodes: Nodes, *sizes: int, name: str = "x", **constants: Any) -> Any:
    """A file with these nodes, from an input of these sizes to an output of four dimensions."""
    takes = helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes or [1, 3, 8, 8])
    gives = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c", "d"])
    stored = [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [takes], [gives], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(kind: str, inputs: str, output: str, **settings: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **settings)


def doubled() -> Any:
    nodes = [node("Concat", f"q{i} q{i}", f"q{i + 1}", axis=1) for i in range(40)]
    return network([node("Relu", "x", "q0"), *nodes, node("Relu", "q40", "y")])


def outside() -> Any:
    made = network([node("Conv", "x w", "y")], w=np.ones((4, 3, 3, 3), np.float32))
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../secret.bin")
    return made


def mistyped() -> Any:
    made = network([node("Conv", "x w", "y")], w=np.ones((4, 3, 3, 3), np.float32))
    made.graph.initializer[0].data_type = TensorProto.BFLOAT16
    return made


LARGE = np.array([2**15, 2**15])
HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "weights outside the folder": (outside, "outside"),
    "weights of another type": (mistyped, "damaged"),
    "a large constant": (
        lambda: network([node("ConstantOfShape", "s", "k"), node("Add", "x k", "y")], s=LARGE),
        "1,073",
    ),
    "a constant spread out": (
        lambda: network(
            [node("Add", "a b", "k"), node("Add", "x k", "y")],
            a=np.zeros((2**17, 1), np.float32),
            b=np.zeros((1, 2**17), np.float32),
        ),
        "17,179,869,184 numbers",
    ),
    "values that double": (doubled, "bytes of memory"),
    "a large input": (lambda: network([node("Relu", "x", "y")], *[2**62] * 4), "too large"),
    "no dimensions": (lambda: network([node("Relu", "x", "y")], x=np.zeros((1, 3, 8, 8), np.float32)), "no input"),
    "a size divided by 0": (
        lambda: network(
            [node("Shape", "x", "s"), node("Div", "s b", "k"), node("Reshape", "x k", "y")], b=np.array([0])
        ),
        "zero",
    ),
    "a long index": (lambda: network([node("Gather", "x i", "y", axis=1)], i=np.zeros(10**5, np.int64)), "100,000"),
    "text that is none": (lambda: network([node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad=b"\xff")]), "utf-8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_networks_are_refused(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, reason = HOSTILE[name]
    (tmp_path / "secret.bin").write_bytes(bytes(432))
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "net.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises(SpikecalError, match=reason):
        read_onnx(path)
    assert capfd.readouterr().err == ""  # neither fx nor onnxruntime says anything beside it


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_not_a_network(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.onnx")
    with pytest.raises(SpikecalError, match="pipe or a device"):
        read_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["self", "class", "None", "__class__", "²", "x=1", "graph", "code"])
def test_names_are_never_code(tmp_path: Path, name: str) -> None:
    path = tmp_path / "net.onnx"
    layer = helper.make_node("Relu", [name], ["y"], name=name)
    path.write_bytes(network([layer], name=name).SerializeToString())
    model, _ = read_onnx(path)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(model(x), x.relu())
