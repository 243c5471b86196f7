"""ONNX files as models: the network that is read gives the outputs of the one that was written."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import residual
from torch import Tensor, nn
from torch.nn import functional as F

import spikecal
from scripts import ROOT
from spikecal.cli.main import main
from spikecal.errors import ConfigError, ConversionError, FileError
from spikecal.zoo.models import build_model, load_model, random_images
from spikecal.zoo.onnx.read import NEAR, read_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def write(model: nn.Module, path: Path, *example: Tensor, batch: bool = True) -> Path:
    axes = {f"x{i}": {0: "n"} for i in range(len(example))} if batch else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer exporter, which needs one more package
        torch.onnx.export(
            model.eval(), example, str(path), dynamo=False, input_names=[f"x{i}" for i in range(len(example))],
            dynamic_axes=axes,
        )  # fmt: skip
    return path


class Every(nn.Module):
    """Each kind of operator that torch.onnx writes for the networks that convert."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.mix = nn.Conv2d(16, 8, 1)
        self.after = nn.BatchNorm2d(8)
        self.fc, self.last = nn.Linear(8, 6), nn.Linear(6, 4, bias=False)
        nn.init.uniform_(self.bn.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
        nn.init.uniform_(self.after.running_var, 0.5, 1.5)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.bn(self.stem(x)))
        small = F.relu(self.depthwise(F.pad(x, (1, 0, 0, 1))))
        big = F.interpolate(small, scale_factor=2.0, mode="nearest")[:, :, :12, :12]
        wide = F.relu(self.up(F.avg_pool2d(x, 2)))
        one, two = torch.cat([big, wide], 1).chunk(2, 1)
        x = self.mix(torch.cat([two, one], 1)) + 0.5 * x
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)  # a shuffle of channels
        x = F.max_pool2d(F.relu(self.after(x)), 3, 2, 1, ceil_mode=True)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1) + x.mean((2, 3)) - x[:, :, 0, 0] / 4
        return self.last(F.relu(self.fc(F.dropout(x, training=self.training))))


def outputs(model: nn.Module, *x: Tensor) -> Any:
    with torch.no_grad():
        return model(*x)


@pytest.mark.parametrize("batch", [True, False])
def test_every_operator_for_every_batch(tmp_path: Path, batch: bool) -> None:
    torch.manual_seed(0)
    model, x = Every().eval(), torch.rand(5, 3, 12, 12)
    found, card = read_onnx(write(model, tmp_path / "net.onnx", x[:1], batch=batch))
    assert card.size == (12, 12) and card.dims == 3
    assert torch.allclose(outputs(found, x), outputs(model, x), atol=1e-5)
    kinds = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert kinds >= {"Conv", "ConvTranspose", "Gemm", "MatMul", "Clip", "Pad", "Resize", "Concat", "Slice", "Transpose"}
    made = spikecal.convert(found, x, T=64, pipeline="lcp").snn(x)
    expected = spikecal.convert(model, x, T=64, pipeline="lcp").snn(x)
    assert torch.allclose(made, expected, atol=1e-3)


@pytest.mark.parametrize("name", ["resnet20", "torchvision:shufflenet_v2_x0_5"])
def test_networks_by_name(tmp_path: Path, name: str) -> None:
    model, card = build_model(name)
    x = random_images(model, card, 2, (32, 32) if name == "resnet20" else (64, 64))
    found, _ = read_onnx(write(model, tmp_path / "net.onnx", x[:1]))
    assert torch.allclose(outputs(found, x), outputs(model, x), atol=1e-4)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(2, 4, 3), nn.Linear(6, 4)

    def forward(self, signal: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.one(signal)).mean(2)
        return x, x + F.relu(self.two(vector))


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Two().eval(), (torch.rand(3, 2, 16), torch.rand(3, 6))
    found, card = read_onnx(write(model, tmp_path / "net.onnx", *x))
    assert card.dims == 2
    for one, two in zip(outputs(found, *x), outputs(model, *x), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    assert len(spikecal.convert(found, x, T=4, pipeline="lcp").snn(*x)) == 2


def graph_of(*nodes: Any, shape: tuple[Any, ...] = (1, 2, 8, 8), **constants: np.ndarray) -> Any:
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    given = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    ends = [helper.make_tensor_value_info("y", floats, None)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", floats, shape)], ends, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(kind: str, *inputs: str, to: str = "y", **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs, [to], name=f"{kind}_{to}", **attributes)


IMAGES = torch.rand(3, 3, 8, 8)
WEIGHT = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize(
    "model",
    [
        lambda shape: graph_of(node("Conv", "x", "w", auto_pad="SAME_UPPER", strides=[2, 2]), shape=shape, w=WEIGHT),
        lambda shape: graph_of(node("Conv", "x", "w", auto_pad="SAME_LOWER"), shape=shape, w=WEIGHT),
        lambda shape: graph_of(node("Conv", "x", "w", pads=[0, 1, 1, 2], dilations=[1, 2]), shape=shape, w=WEIGHT),
        lambda shape: graph_of(
            node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"), shape=shape
        ),
        lambda shape: graph_of(
            node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), shape=shape
        ),
        lambda shape: graph_of(
            node("Transpose", "x", perm=[0, 2, 3, 1], to="t"), node("MatMul", "t", "m", to="u"), node("Add", "u", "b"),
            shape=shape, m=WEIGHT[0, :, 0].reshape(2, 3), b=np.ones(3, np.float32),
        ),
        lambda shape: graph_of(  # weights that are normalised in the file, and a shape that is computed there
            node("ReduceMean", "w", axes=[1, 2, 3], to="m"), node("Sub", "w", "m", to="c"),
            node("Mul", "c", "c", to="q"),
            node("ReduceMean", "q", axes=[1, 2, 3], to="v"), node("Sqrt", "v", to="d"), node("Div", "c", "d", to="u"),
            node("Conv", "x", "u", to="z"), node("Shape", "p", to="n"), node("Clip", "n", "two", "three", to="k"),
            node("Neg", "k", to="e"), node("Slice", "z", "zero", "e", "two"), shape=shape, w=WEIGHT,
            p=np.zeros(1, np.float32), two=np.array([2]), three=np.array([3]), zero=np.array([0]),
        ),
        lambda shape: graph_of(node("Split", "x", "s", to="y", axis=1), shape=shape, s=np.array([2])),
        lambda shape: graph_of(
            node("Sub", "c", "x", to="s"), node("Relu", "s", to="r"), node("Div", "r", "c"), shape=shape,
            c=np.float32(0.5),
        ),
    ],
)  # fmt: skip
def test_as_other_frameworks_write_it(tmp_path: Path, model: Any, side: int) -> None:
    """`read_onnx` compares with onnxruntime itself, and raises where they differ."""
    onnx.save(model((1, 2, side, side)), tmp_path / "net.onnx")
    read_onnx(tmp_path / "net.onnx")


class Same(nn.Module):
    """Padding as TensorFlow's, of a size that is computed each time: from a size that is itself computed so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 5, stride=2), nn.Conv2d(4, 4, 3, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            sides = [(size, kernel) for size, kernel in zip(x.shape[2:], layer.kernel_size, strict=True)]  # type: ignore[arg-type]
            total = [torch.clamp((torch.ceil(torch.as_tensor(n) / 2) - 1) * 2 + k - n, min=0).int() for n, k in sides]
            (up, down), (left, right) = ((t // 2, t - t // 2) for t in total)
            x = F.relu(layer(F.pad(x, (left, right, up, down))))  # type: ignore[arg-type]
        return x.mean((2, 3))


@pytest.mark.parametrize("side", [33, 37, 40])
def test_padding_that_is_computed_from_sizes(tmp_path: Path, side: int) -> None:
    torch.manual_seed(0)
    model, x = Same().eval(), torch.rand(2, 3, side, side)
    found, _ = read_onnx(write(model, tmp_path / "net.onnx", x))
    assert torch.allclose(found(x), model(x), atol=1e-6)
    assert spikecal.convert(found, x, T=2, pipeline="lcp").snn(x[:1]).shape == (1, 4)  # for every batch


class Standard(nn.Conv2d):
    """Weights that are normalised whenever the network runs, as timm's are."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        return F.conv2d(x, F.batch_norm(rows, None, None, training=True, momentum=0.0).reshape_as(self.weight))


def test_weights_that_are_normalised_in_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Standard(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(), torch.rand(2, 3, 9, 9)
    found, _ = read_onnx(write(model, tmp_path / "net.onnx", x))
    assert torch.allclose(found(x), model(x), atol=1e-5)


def test_a_size_that_is_open_is_not_rounded_up(tmp_path: Path) -> None:
    """Division of such sizes rounds down: a Ceil behind it would do nothing, and be wrong only at odd sizes."""
    nodes = [
        node("Shape", "x", to="n"), node("Gather", "n", "two", to="h"), node("Cast", "h", to="f"),
        node("Div", "f", "half", to="d"), node("Ceil", "d", to="u"), node("Cast", "u", to="i"),
        node("Slice", "x", "zero", "i", "axis"),
    ]  # fmt: skip
    for one in nodes:
        if one.op_type == "Cast":
            one.attribute.append(onnx.helper.make_attribute("to", 1 if one.output[0] == "f" else 7))
    whole = {"two": np.array([2]), "zero": np.array([0]), "axis": np.array([2])}
    file = graph_of(*nodes, shape=(1, 2, "h", "w"), half=np.array([2], np.float32), **whole)
    onnx.save(file, tmp_path / "net.onnx")
    with pytest.raises(ConversionError, match="Ceil on a size that the file leaves open"):
        read_onnx(tmp_path / "net.onnx")
    onnx.save(graph_of(*nodes, shape=(1, 2, 9, 9), half=np.array([2], np.float32), **whole), tmp_path / "net.onnx")
    assert read_onnx(tmp_path / "net.onnx")[0](torch.rand(3, 2, 9, 9)).shape == (3, 2, 5, 9)


def test_the_files_of_the_networks_that_convert() -> None:
    """What scripts/onnx_table.py has found is what docs/reference/models.md says of it."""
    found = json.loads((ROOT / "bench" / "results" / "onnx.json").read_text())["models"]
    known = json.loads((ROOT / "docs" / "reference" / "models.json").read_text())["models"]
    assert all(known[spec]["converts"] for spec in found)
    read = {spec: one["off"] for spec, one in found.items() if one["reads"]}
    refused = [f"`{spec}`" for spec in sorted(found.keys() - read.keys())]
    told = f"{len(read)} of {len(found)} files are read"
    page = " ".join((ROOT / "docs" / "reference" / "models.md").read_text().split())
    assert told in page and all(name in page for name in refused) and max(read.values()) < NEAR


def test_a_difference_from_onnxruntime_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spikecal.zoo.onnx.calls import OPERATORS

    onnx.save(graph_of(node("Relu", "x", to="r"), node("Neg", "r")), tmp_path / "net.onnx")
    monkeypatch.setitem(OPERATORS, "Neg", lambda c: c.call(torch.add, c.x, 0.1))
    with pytest.raises(FileError, match="outputs differ from onnxruntime's"):
        read_onnx(tmp_path / "net.onnx")


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(graph_of(node("Det", "x", to="a"), node("Erf", "a")), path)
    with pytest.raises(ConversionError, match="the operator Det, which is unknown") as error:
        read_onnx(path)
    assert [one.layer for one in error.value.others] == ["Erf_y"]
    onnx.save(graph_of(node("Conv", "x", "w", to="c"), node("HardSwish", "c"), w=WEIGHT), path)
    with pytest.raises(ConversionError, match=r"HardSwish_y: Hardswish.*replace it with ReLU"):
        spikecal.convert(read_onnx(path)[0], torch.rand(4, 2, 8, 8))
    path.write_bytes(b"not a network")
    with pytest.raises(FileError, match="not an ONNX network"):
        read_onnx(path)
    with pytest.raises(FileError, match="there is no file"):
        read_onnx(tmp_path / "none.onnx")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'spikecal\[onnx\]'"):
        read_onnx(tmp_path / "net.onnx")


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(residual(), tmp_path / "net.onnx", torch.rand(1, 3, 8, 8))
    rng = np.random.default_rng(0)
    np.savez("images.npz", x=rng.random((20, 3, 8, 8)), y=rng.integers(0, 5, 20))
    assert main(["check", "net.onnx"]) == 0
    assert main(["convert", "net.onnx", "--data", "npz:images.npz", "-T", "4", "--pipeline", "lcp", "-o", "x.snn"]) == 0
    assert main(["evaluate", "x.snn", "--model", "net.onnx"]) == 0
    model, card = load_model("net.onnx")
    assert card.size == (8, 8)
    assert torch.allclose(outputs(model, IMAGES), outputs(residual(), IMAGES), atol=1e-6)
