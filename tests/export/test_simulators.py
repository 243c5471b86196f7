"""Exported files run elsewhere to the same spikes: none differs, as every sum in these networks is exact."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exporting import NETWORKS, Sum, Trunk, images, spiking, with_signed
from safetensors.torch import load_file, save_file
from torch import Tensor

from scripts import ROOT
from spikecal import ConfigError, ConversionError, FileError, SpikecalError, SpikingNetwork, load
from spikecal.export import packages
from spikecal.export.export import make_netlist
from spikecal.export.netlist import Conv, Linear
from spikecal.export.reference import trains
from spikecal.export.verify import Verdict
from spikecal.graph.ops import Spike
from spikecal.neurons import IntegrateAndFire
from spikecal.spikingjelly import to_module

FORMATS = {"nir": "nir", "onnx": "onnx", "spikingjelly": "py"}
WAITS: dict[str, Callable[[int], int]] = {"none": lambda place: 0, "some": lambda place: 1 + place % 2}


def verified(snn: SpikingNetwork, x: Tensor, path: Path) -> list[Verdict]:
    """What all installed simulators make of the file; at least one must be there."""
    return snn.export(path, x).verify(x, torch.arange(len(x)) % 4)  # type: ignore[no-any-return]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("to", FORMATS)
def test_the_same_spikes(to: str, name: str, wait: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime" if to == "onnx" else "nirtorch" if to == "nir" else "spikingjelly")
    x = images(3)
    snn = spiking(NETWORKS[name](), x, wait=WAITS[wait])
    found = verified(snn, x, tmp_path / f"net.{FORMATS[to]}")
    assert found
    for verdict in found:
        assert verdict.faithful and verdict.spikes > 500
        assert verdict.traced.built == verdict.traced.rounded == verdict.traced.rounding == 0
        assert verdict.differing == 0 and verdict.double == (None if to == "onnx" else 0)
        assert verdict.agreeing == 3 and verdict.right == verdict.expected
        assert verdict.difference < 1e-6


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("to", FORMATS)
def test_exact_sums(to: str, wait: str, tmp_path: Path) -> None:
    """Random floats for everything: no spike differs in float32, and numbers hardly move."""
    pytest.importorskip("onnxruntime" if to == "onnx" else "nirtorch" if to == "nir" else "spikingjelly")
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(3))
    snn = spiking(NETWORKS["residual"](), x, wait=WAITS[wait])
    for place, tensor in enumerate(snn.parameters()):
        tensor.mul_(1 + 0.1 * torch.rand(tensor.shape, generator=torch.Generator().manual_seed(place)))
    made = snn.export(tmp_path / f"net.{FORMATS[to]}", x, exact=True)
    for verdict in made.verify(x):
        assert verdict.traced.exact and verdict.differing == 0 and verdict.spikes > 500 and verdict.agreeing == 3
    inputs = made.inputs(x)
    assert torch.equal(inputs * 256, (inputs * 256).round()) and (inputs[0, :, :2] - x).abs().max() <= 1 / 512
    raw, near = make_netlist(snn, x), 2e-6 if wait == "none" else 1e-4  # gates count in the 24 bits
    for node in raw.nodes.values():
        if isinstance(node, Conv | Linear):
            rounded = made.netlist.nodes[node.name]
            assert isinstance(rounded, Conv | Linear)
            assert (rounded.weight - node.weight).abs().max() < (1 / 32 if "image" in node.inputs else near)


def test_currents_have_no_grid(tmp_path: Path) -> None:
    x = images(1)
    with pytest.raises(ConversionError, match=r'left: its input is a current.*without --exact.*joints="signed".*onnx'):
        spiking(Trunk(), x).export(tmp_path / "net.onnx", x, exact=True)
    pooled = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    with pytest.raises(ConversionError, match=r"2: a max-pool of currents.*; export without --exact$"):
        spiking(torch.nn.Sequential(*pooled, torch.nn.Linear(36, 4)), x).export(tmp_path / "net.onnx", x, exact=True)
    with pytest.raises(ConfigError, match="give exact or bits, not both"):
        spiking(NETWORKS["plain"](), x).export(tmp_path / "net.onnx", x, exact=True, bits=8)
    assert not list(tmp_path.iterdir())


def test_max_pools_in_onnx(tmp_path: Path) -> None:
    """Max-pools have a memory of their own, which goes in and out with the potentials."""
    pytest.importorskip("onnxruntime")
    x = images(3)
    (verdict,) = verified(spiking(Trunk(), x, wait=lambda place: 2 * (place == 0)), x, tmp_path / "net.onnx")
    assert verdict.differing == 0 and verdict.spikes > 500 and not verdict.traced.exact


def test_delay_lines_in_onnx(tmp_path: Path) -> None:
    """Where inputs of joints and max-pools begin at different steps, those that come first are kept for a while."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x = images(3)
    snn = spiking(Trunk(), x, wait=lambda place: place)
    assert any(snn.windows.delays(stage) for stage in snn.stages)
    (verdict,) = verified(snn, x, tmp_path / "net.onnx")
    assert verdict.differing == verdict.traced.built == 0 and verdict.spikes > 500
    names = [entry.name for entry in onnx.load(tmp_path / "net.step.onnx").graph.input]
    assert sum(".delay.line" in name for name in names) > 0


@pytest.mark.parametrize("wait", WAITS)
def test_signed_neurons_in_onnx(wait: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x = images(3)
    snn = with_signed(spiking(NETWORKS["residual"](), x, wait=WAITS[wait]))
    assert [int(levels.min()) for levels in trains(snn, x).levels.values()] == [-1, -1, 0, 0, 0]
    (verdict,) = verified(snn, x, tmp_path / "net.onnx")
    assert verdict.differing == verdict.traced.built == 0 and verdict.spikes > 500


def test_one_step_of_onnx(tmp_path: Path) -> None:
    """Inputs, outputs and opset as documented; the same file takes any number of images."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x = images(5)
    snn = spiking(NETWORKS["plain"](), x)
    snn.export(tmp_path / "net.onnx", x[:1])
    model = onnx.load(tmp_path / "net.step.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [entry.version for entry in model.opset_import] == [17]
    names = ["image", "step", "body.1.v", "body.3.v", "head.2.v"]
    assert [entry.name for entry in model.graph.input] == names
    assert [entry.name for entry in model.graph.output] == ["current", *(f"{name}.next" for name in names[1:])]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    for n in (1, 5):
        (found,) = session.run(["output"], {"image": x[:n].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), snn(x[:n]))


def test_a_module_of_spikingjelly() -> None:
    """In both modes; it can be trained, and its parameters are the calibrated ones."""
    pytest.importorskip("spikingjelly")
    from spikingjelly.activation_based import base, functional, monitor, neuron

    x = images(3)
    snn = spiking(NETWORKS["residual"](), x, wait=lambda place: 1)
    snn.origin = snn.origin.changed(inputs=((2, 8, 8),))  # as `convert` and files have it
    net, inputs = to_module(snn), snn.export_inputs(x)
    watched = monitor.OutputMonitor(net, neuron.IFNode)
    outputs = net(inputs)
    torch.testing.assert_close(snn.export_outputs(outputs), snn(x))
    counts = snn.run(x).spikes
    assert [int(record.sum()) for record in watched.records] == [int(count.sum()) for count in counts.values()]
    functional.reset_net(net)
    functional.set_step_mode(net, "s")
    stepwise = torch.stack([net(frame) for frame in inputs])
    torch.testing.assert_close(stepwise, outputs)
    outputs.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert all(isinstance(module, base.StepModule) for module in net.children())


def test_a_file_that_was_loaded_again(tmp_path: Path) -> None:
    pytest.importorskip("nirtorch")
    x = images(2)
    spiking(NETWORKS["plain"](), x, wait=lambda place: 1).save(tmp_path / "net.snn")
    found = verified(load(tmp_path / "net.snn"), x, tmp_path / "net.nir")
    assert found and all(verdict.differing == 0 for verdict in found)


def test_what_a_nir_file_says(tmp_path: Path) -> None:
    nir = pytest.importorskip("nir")
    x = images(1)
    snn = spiking(NETWORKS["residual"](), x, wait=lambda place: 1)
    made = snn.export(tmp_path / "net.nir", x)
    assert "subtract" in made.notes[0]
    graph = nir.read(tmp_path / "net.nir")
    neurons = [node for node in graph.nodes.values() if isinstance(node, nir.IF)]
    assert len(neurons) == 5
    assert all((node.v_threshold == 1).all() for node in neurons)
    convolutions = [node for node in graph.nodes.values() if isinstance(node, nir.Conv2d)]
    assert all(not node.bias.any() for node in convolutions)  # with waits, all biases are on the clock
    assert graph.nodes["image"].input_type["input"].tolist() == [2 + snn.latency, 8, 8]
    assert '"reset": "subtract"' in str(graph.metadata["spikecal"])


def test_the_page_on_nir_has_code_for_sinabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sinabs")
    monkeypatch.chdir(tmp_path)
    x = images(3)
    snn = spiking(NETWORKS["residual"](), x, wait=lambda place: 1)
    snn.origin = snn.origin.changed(inputs=((2, 8, 8),))  # as `convert` and files have it
    snn.export("net.nir")
    page = (ROOT / "docs/how-to/nir.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if "load_sinabs" in block]
    scope = {"snn": snn, "x": x}
    exec(compile(code, "nir.md", "exec"), scope)
    torch.testing.assert_close(scope["answers"], snn(x))


def test_an_export_that_is_not_faithful(tmp_path: Path) -> None:
    """A file that was changed after it was written is not called faithful."""
    nir = pytest.importorskip("nir")
    pytest.importorskip("nirtorch")
    x = images(3)
    made = spiking(NETWORKS["plain"](), x).export(tmp_path / "net.nir", x)
    graph = nir.read(tmp_path / "net.nir")
    graph.nodes["body_2"].weight[0] *= 1.5
    nir.write(tmp_path / "net.nir", graph)
    for verdict in made.verify(x):
        assert not verdict.faithful
        assert verdict.traced.built == 0 and verdict.differing > 0


def test_onnx_files_that_are_not_faithful(tmp_path: Path) -> None:
    """One step with another weight, and a whole run that is no longer that of the step."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x = images(3)
    made = spiking(NETWORKS["plain"](), x).export(tmp_path / "net.onnx", x)
    for file in (tmp_path / "net.onnx", tmp_path / "net.step.onnx"):
        model = onnx.load(file)
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "body.2.weight")
        weight.CopyFrom(onnx.numpy_helper.from_array(1.5 * onnx.numpy_helper.to_array(weight), weight.name))
        onnx.save(model, file)
        if file.name == "net.onnx":
            with pytest.raises(SpikecalError, match=r"net.onnx and net.step.onnx are not the same network"):
                made.verify(x)
    (verdict,) = made.verify(x)
    assert not verdict.faithful and verdict.differing > 0 and verdict.traced.built == 0


class Leaky(IntegrateAndFire):
    name = "leaky"


@pytest.mark.parametrize("to", FORMATS)
def test_what_a_target_has_no_neuron_pool_or_delay_for(to: str, tmp_path: Path) -> None:
    pytest.importorskip(to)
    x = images(1)
    snn = spiking(NETWORKS["plain"](), x)
    op = snn.graph.nodes["body.1"].op
    assert isinstance(op, Spike)
    op.neuron = Leaky()
    with pytest.raises(ConversionError, match=r"body.1: .* no leaky neurons.*use integrate-and-fire"):
        snn.export(tmp_path / "net", x, to=to)
    if to != "onnx":
        with pytest.raises(ConversionError, match=r"max_pool2d: .* no max-pool.*or export to onnx"):
            spiking(Trunk(), x).export(tmp_path / "net", x, to=to)
        with pytest.raises(ConversionError, match=r'no signed integrate-and-fire neurons.*joints="analog"'):
            with_signed(spiking(NETWORKS["residual"](), x)).export(tmp_path / "net", x, to=to)
        with pytest.raises(
            ConversionError,
            match=r"relu.delay: relu needs a delay line.*without --latency, or export to onnx",
        ):
            spiking(Sum(), x, wait=lambda place: place).export(tmp_path / "net", x, to=to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["nir", "spikingjelly"])
@pytest.mark.parametrize("settings", [{"exact": True}, {"bits": 8}], ids=["exact", "bits"])
def test_ways_out_that_lead_out(to: str, settings: dict[str, int], tmp_path: Path) -> None:
    """Rounded networks cannot have analog joints either, so signed ones are not told to use them."""
    x = images(1)
    for snn, found in ((with_signed(spiking(NETWORKS["residual"](), x)), "signed"), (spiking(Trunk(), x), "max-pool")):
        with pytest.raises(ConversionError, match=f"no {found}") as refused:
            snn.export(tmp_path / "net", x, to=to, **settings)
        assert refused.value.hint == ("export to onnx" if found == "signed" else "use average pools")


def test_an_export_replaces_only_exports(tmp_path: Path) -> None:
    """`train -o net.safetensors` and `export -o net.py` are for the same network: the first is not lost."""
    x = images(1)
    snn, trained = spiking(NETWORKS["plain"](), x), tmp_path / "net.safetensors"
    save_file({"weight": torch.ones(2)}, trained)
    with pytest.raises(
        ConfigError, match=r"net.safetensors, where the weights would go, is another file: give another"
    ):
        snn.export(tmp_path / "net.py", x)
    assert load_file(trained)["weight"].tolist() == [1, 1] and not (tmp_path / "net.py").exists()
    for _ in range(2):
        snn.export(tmp_path / "other.py", x)
    (tmp_path / "model.py").write_text("from torch import nn\n")
    with pytest.raises(ConfigError, match=r"model.py is there, and no export wrote it: give another name"):
        snn.export(tmp_path / "model.py", x)


@pytest.mark.parametrize("name", ["net.py", "net.onnx"])
def test_old_and_new_files_are_never_side_by_side(name: str, tmp_path: Path) -> None:
    """Where the last file cannot be written, its old form is gone: it would run with the new weights or step."""
    pytest.importorskip("onnx")
    x, path = images(1), tmp_path / name
    made = spiking(NETWORKS["plain"](), x).export(path, x)
    before = [file.read_bytes() for file in made.files]
    (tmp_path / f"{name}.part").mkdir()
    with pytest.raises(FileError, match=f"{name} cannot be written"):
        spiking(NETWORKS["plain"](), x, seed=1).export(path, x)
    assert not path.exists() and made.files[1].read_bytes() != before[1]


def test_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    x = images(1)
    snn = spiking(NETWORKS["plain"](), x)
    for to in ("nir", "onnx"):
        with pytest.raises(ConfigError, match=rf"needs the package {to}: `pip install spikecal\[{to}\]`"):
            snn.export(tmp_path / "net", x, to=to)
    with pytest.raises(ConfigError, match=r"needs the package spikingjelly: `pip install spikecal\[spikingjelly\]`"):
        to_module(snn, x)
    with pytest.raises(ConfigError, match="no simulator for spikingjelly files is installed"):
        snn.export(tmp_path / "net.py", x).verify(x)  # it takes no package to write one
    with pytest.raises(ConfigError, match=r"give the format, one of nir \(.nir\)"):
        snn.export(tmp_path / "net.txt", x)


def test_an_unknown_size(tmp_path: Path) -> None:
    x = images(1)
    snn = spiking(NETWORKS["plain"](), x)
    with pytest.raises(ConfigError, match="does not know the size of its images"):
        snn.export(tmp_path / "net.onnx")
