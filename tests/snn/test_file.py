"""Files: read back by a new process, refused when damaged or hostile."""

import copy
import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import images, residual
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import spikecal
from spikecal import FileError
from spikecal.snn import file
from spikecal.snn.checksum import checksum


@pytest.fixture(scope="module")
def result() -> spikecal.Result:
    return spikecal.convert(residual(), images(16), T=[4, 8], pipeline="pc")


@pytest.fixture
def path(result: spikecal.Result, tmp_path: Path) -> Path:
    result.save(tmp_path / "net.snn")
    return tmp_path / "net.snn"


def test_a_new_process_without_the_model_gives_the_same_outputs(result: spikecal.Result, path: Path) -> None:
    x = images(3)
    save_file({"x": x}, path.parent / "x.safetensors")
    script = (
        "import sys, spikecal; from safetensors.torch import load_file, save_file; folder = sys.argv[1]\n"
        "x = load_file(folder + '/x.safetensors')['x']\n"
        "save_file({str(T): spikecal.load(folder + '/net.snn', T=T)(x) for T in (4, 8)}, folder + '/y.safetensors')"
    )
    subprocess.run([sys.executable, "-c", script, str(path.parent)], check=True)
    found = load_file(path.parent / "y.safetensors")
    assert torch.equal(found["4"], result.at(4)(x))
    assert torch.equal(found["8"], result.snn(x))


def test_the_same_conversion_is_the_same_bytes(path: Path, tmp_path: Path) -> None:
    spikecal.convert(residual(), images(16), T=[4, 8], pipeline="pc").save(tmp_path / "again.snn")
    assert (tmp_path / "again.snn").read_bytes() == path.read_bytes()


def test_weights_are_stored_once_and_listed_by_set(path: Path) -> None:
    found = spikecal.inspect(path)
    weights = sum(p.numel() for n, p in residual().named_parameters() if n.endswith("weight") and "bn" not in n) * 4
    assert found["T"] == [4, 8]
    assert found["parameter_bytes"]["shared"]["weight"] == weights
    for T in ("T=4", "T=8"):
        assert found["parameter_bytes"][T]["v_init"] > found["parameter_bytes"][T]["theta"]
        assert "weight" not in found["parameter_bytes"][T]


def test_what_some_of_three_T_share_belongs_to_each_of_them(tmp_path: Path) -> None:
    result = spikecal.convert(residual(), images(16), T=[2, 4, 8], pipeline="baseline")
    named = {T: dict(result.at(T).named_buffers()) | dict(result.at(T).named_parameters()) for T in (2, 4, 8)}
    thresholds = [name for name in named[2] if name.endswith("theta")]
    for name in thresholds:
        named[4][name].copy_(named[2][name])
    result.save(tmp_path / "net.snn")
    found = spikecal.inspect(tmp_path / "net.snn")["parameter_bytes"]
    whole = sum(named[2][name].numel() for name in thresholds) * 4
    assert [found[f"T={T}"]["theta"] for T in (2, 4, 8)] == [whole] * 3
    assert "theta" not in found["shared"] and found["shared"]["weight"] > 0


def test_largest_T_is_the_default_and_a_missing_one_is_named(path: Path) -> None:
    assert spikecal.load(path).T == 8
    with pytest.raises(FileError, match="T=4, 8"):
        spikecal.load(path, T=5)


def test_a_network_saves_itself_and_saved_again_is_the_same(path: Path, tmp_path: Path) -> None:
    spikecal.load(path, T=4).save(tmp_path / "one.snn")
    again = spikecal.load(tmp_path / "one.snn")
    assert torch.equal(again(images(2)), spikecal.load(path, T=4)(images(2)))
    again.normalized().save(tmp_path / "unit.snn")
    assert torch.allclose(spikecal.load(tmp_path / "unit.snn")(images(2)), again(images(2)), atol=1e-3)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = residual(), nn.Sequential(nn.Linear(5, 5), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_a_kept_head_stays_outside_the_file(tmp_path: Path) -> None:
    model = Headed().eval().requires_grad_(False)
    result = spikecal.convert(model, images(8), T=8, keep=["head"])
    result.save(tmp_path / "body.snn")
    with pytest.raises(FileError, match="head=module"):
        spikecal.load(tmp_path / "body.snn")
    loaded = spikecal.load(tmp_path / "body.snn", head=model.head)
    assert torch.equal(loaded(images(2)), result.snn(images(2)))
    assert torch.allclose(loaded(images(2)).sum(-1), torch.ones(2))
    assert loaded.run(images(2)).outputs.shape == (8, 2, 5)


def test_outputs_of_None_come_back(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = residual()

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return self.body(x), None

    spikecal.convert(Model().eval(), images(8), T=4).save(tmp_path / "none.snn")
    assert spikecal.load(tmp_path / "none.snn")(images(2))[1] is None


def test_five_thousand_damaged_files_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    (header,) = struct.unpack("<Q", whole[:8])
    rng = random.Random(0)
    target = path.parent / "damaged.snn"
    for i in range(5000):
        data = bytearray(whole)
        kind = i % 5
        if kind == 0:  # cut off
            del data[rng.randrange(len(data)) :]
        elif kind == 1:  # one bit, anywhere
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 2:  # one byte of the header
            data[8 + rng.randrange(header)] = rng.randrange(256)
        elif kind == 3:  # a stretch overwritten
            start = rng.randrange(len(data))
            data[start : start + rng.randrange(1, 64)] = rng.randbytes(rng.randrange(1, 64))
        else:  # a piece moved or doubled
            start = rng.randrange(len(data))
            data[start:start] = data[start : start + rng.randrange(1, 256)]
        if data == whole:
            continue
        target.write_bytes(data)
        with pytest.raises(FileError):
            spikecal.load(target)


def hostile(path: Path, change: Any) -> Path:
    """The file with its description changed and signed again, as one would who knows the format."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    spec = json.loads(header["__metadata__"]["spikecal"].partition(" ")[2])
    change(spec, header)
    text = json.dumps(spec, sort_keys=True)
    header["__metadata__"]["spikecal"] = f"{checksum(text, load_file(path).items())} {text}"
    raw = json.dumps(header).encode()
    target = path.parent / "hostile.snn"
    target.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + length :])
    return target


def first(header: dict[str, Any]) -> str:
    return next(name for name in header if name != "__metadata__")


def nested(depth: int) -> Any:
    made: Any = "fc.joint"
    for _ in range(depth):
        made = {"tuple": [made]}
    return made


def deep_size(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = ["+", made, 1]
    return made


HOSTILE = {
    "huge shape": lambda spec, header: header[first(header)].update(shape=[2**40, 2**20]),
    "negative shape": lambda spec, header: header[first(header)].update(shape=[-1, -4]),
    "offset outside": lambda spec, header: header[first(header)].update(data_offsets=[0, 2**50]),
    "overlapping": lambda spec, header: header[first(header)].update(data_offsets=[4, 8]),
    "unknown operation": lambda spec, header: spec["nodes"][1].update(op="os.system"),
    "cycle": lambda spec, header: spec["nodes"][1].update(inputs=[spec["nodes"][-1]["name"]]),
    "own input": lambda spec, header: spec["nodes"][1].update(inputs=[spec["nodes"][1]["name"]]),
    "two of one name": lambda spec, header: spec["nodes"][2].update(name=spec["nodes"][1]["name"]),
    "deep output": lambda spec, header: spec.update(output=nested(100)),
    "deep size": lambda spec, header: spec["nodes"].append(
        {"name": "r", "op": "Reshape", "inputs": ["x"], "shapes": [], "config": {"shape": [["batch"], deep_size(200)]}}
    ),
    "no nodes": lambda spec, header: spec.update(nodes=[]),
    "unknown setting": lambda spec, header: spec["nodes"][1]["config"].update(hook="x"),
    "setting of a wrong kind": lambda spec, header: spec["nodes"][1]["config"].update(stride="x"),
    "huge stride": lambda spec, header: spec["nodes"][1]["config"].update(stride=[2**60, 1]),
    "T of zero": lambda spec, header: spec.update(parameters={"0": {}}),
    "T of words": lambda spec, header: spec.update(parameters={"many": {}}),
    "no parameters": lambda spec, header: spec.update(parameters={}),
    "missing tensor": lambda spec, header: spec["parameters"]["8"].update({"fc:weight": "not there"}),
    "neurons without threshold": lambda spec, header: [
        spec["parameters"]["8"].pop(k) for k in list(spec["parameters"]["8"]) if k.endswith(":theta")
    ],
    "newer format": lambda spec, header: spec.update(format=5),
    "a neuron nobody knows": lambda spec, header: next(n for n in spec["nodes"] if n["op"] == "Spike")["config"].update(
        neuron="leaky"
    ),
    "no output": lambda spec, header: spec.update(output=None),
    "output of a wrong kind": lambda spec, header: spec.update(output=7),
    "head of a wrong kind": lambda spec, header: spec.update(head="yes"),
    "no head": lambda spec, header: spec.pop("head"),
    "info of a wrong kind": lambda spec, header: spec.update(info=[1]),
    "no info": lambda spec, header: spec.pop("info"),
    "channels outside": lambda spec, header: [
        n["config"].update(channel=9) for n in spec["nodes"] if n["op"] == "Spike"
    ],
    "output from nowhere": lambda spec, header: spec.update(output="nowhere"),
    "output of three": lambda spec, header: spec.update(output={"dict": [["a", "fc.joint", 3]]}),
    "output called a list": lambda spec, header: spec.update(output={"dict": [[[1], "fc.joint"]]}),
    "T with a zero in front": lambda spec, header: spec["parameters"].update({"08": spec["parameters"].pop("8")}),
    "true for a format": lambda spec, header: spec.update(format=True),
    "true for a clip": lambda spec, header: [
        n["config"].update(clip=True) for n in spec["nodes"] if n["op"] == "Spike"
    ],
    "channels at the batch": lambda spec, header: spec["nodes"][1].update(channel=0),
    "a first input that is the second": lambda spec, header: spec["nodes"][0]["config"].update(index=1),
    "a list for waits": lambda spec, header: spec.update(format=3, waits=[]),
    "a number for waits": lambda spec, header: spec.update(format=3, waits={"8": 1}),
    "a wait of words": lambda spec, header: spec.update(format=3, waits={"8": {"relu": "long"}}),
    "a wait of nobody": lambda spec, header: spec.update(format=3, waits={"8": {"nobody": 1}}),
    "a wait past the end": lambda spec, header: spec.update(format=3, waits={"8": {"relu": 8}}),
    "a wait of a joint": lambda spec, header: spec.update(format=3, waits={"8": {"fc.joint": 1}}),
    "list for a graph": lambda spec, header: spec.update(nodes={"a": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(path: Path, name: str) -> None:
    target = hostile(path, HOSTILE[name])
    with pytest.raises(FileError):
        spikecal.load(target)


def test_signing_again_is_not_what_is_refused(path: Path) -> None:
    assert spikecal.load(hostile(path, lambda spec, header: None)).T == 8
    waits = hostile(path, lambda spec, header: spec.update(format=3, waits={"8": {"relu": 7}}))
    assert spikecal.load(waits).waits == {"relu": 7}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_invalid_thresholds_are_refused(
    result: spikecal.Result, tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    snn = copy.deepcopy(result.snn)
    next(op for op in snn.ops.values() if hasattr(op, "theta")).theta.data[0] = value
    with pytest.raises(FileError, match="threshold|theta"):
        snn.save(tmp_path / "bad.snn")
    monkeypatch.setattr(file, "_check_writable", lambda *_: None)  # as another program may write it
    snn.save(tmp_path / "bad.snn")
    with pytest.raises(FileError, match="threshold|theta"):
        spikecal.load(tmp_path / "bad.snn")


def test_thresholds_for_other_channels_are_a_clear_line(result: spikecal.Result, tmp_path: Path) -> None:
    snn = copy.deepcopy(result.snn)
    op = next(op for op in snn.ops.values() if hasattr(op, "theta"))
    op.theta, op.v_init, op.bias = nn.Parameter(torch.ones(3)), None, None
    snn.save(tmp_path / "bad.snn")
    with pytest.raises(FileError, match="'relu' reads 8 channels, but has theta for 3"):
        spikecal.load(tmp_path / "bad.snn")


def test_claims_in_a_file_do_not_hide_its_kind(path: Path) -> None:
    lying = hostile(path, lambda spec, header: spec["info"].update(T="abc", parameter_bytes=3, bytes="q"))
    found = spikecal.inspect(lying)
    assert (found["T"], found["bytes"]) == ([4, 8], lying.stat().st_size)


def test_outputs_with_names_that_cannot_be_stored(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = residual()

        def forward(self, x: Tensor) -> dict[Any, Tensor]:
            return {("p", 2): self.body(x)}

    made = spikecal.convert(Named().eval(), images(4), T=2)
    with pytest.raises(FileError, match="'p', 2"):
        made.save(tmp_path / "named.snn")
    assert not list(tmp_path.iterdir())


def test_foreign_files_get_one_clear_line(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "plain.safetensors")
    torch.save({"a": torch.ones(3)}, tmp_path / "pickle.pt")
    (tmp_path / "text.snn").write_text("not a network")
    (tmp_path / "empty.snn").write_bytes(b"")
    (tmp_path / "deep.snn").write_bytes(struct.pack("<Q", 200_000) + b"[" * 200_000)
    (tmp_path / "folder.snn").mkdir()
    names = ["plain.safetensors", "pickle.pt", "text.snn", "empty.snn", "deep.snn", "folder.snn", "missing.snn"]
    for name in names:
        with pytest.raises(FileError, match=name) as caught:
            spikecal.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_failed_save_leaves_the_old_file(path: Path, result: spikecal.Result, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        result.save(tmp_path / "no such folder" / "net.snn")
    before = path.read_bytes()
    result.save(path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
