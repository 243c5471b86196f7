"""Models by name, and checkpoints in every wrapping."""

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from spikecal.data.card import Card
from spikecal.errors import ConfigError, FileError
from spikecal.zoo.models import ZOO, build_model, load_model
from spikecal.zoo.weights import load_weights, read_weights

# He et al., table 6; VGG-16's thirteen convolutions with BN and one linear layer. The others by hand: four times the
# channels are sixteen times the weights, half of them a quarter.
PARAMETERS = {
    "resnet20": 0.27e6,
    "resnet20-wide": 4.33e6,
    "resnet32": 0.46e6,
    "resnet44": 0.66e6,
    "resnet56": 0.85e6,
    "vgg16": 14.72e6,
    "vgg16-half": 3.69e6,
}


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.card.size == (32, 32)])
def test_parameter_counts_are_the_papers(name: str) -> None:
    model, card = build_model(name)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(PARAMETERS[name.removesuffix("-nobn")], rel=0.02)
    assert not model.training
    assert model(torch.zeros(2, 3, *(card.size or (0, 0)))).shape == (2, len(card.classes))


@pytest.mark.parametrize("name", ["resnet20", "resnet20-nobn"])
def test_embedded_weights_are_loaded_as_float32(name: str) -> None:
    model, card = load_model(name)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    stored = read_weights(Path(str(sys.modules["spikecal"].__path__[0])) / "demo" / f"{name}.safetensors")
    assert torch.equal(model.state_dict()["blocks.4.conv1.weight"], stored["blocks.4.conv1.weight"].float())
    assert card.trained


def test_untrained_models_need_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --weights"):
        load_model("resnet32")
    torch.manual_seed(1)
    made, _ = build_model("resnet32")
    save_file(made.state_dict(), tmp_path / "w.safetensors")
    loaded, _ = load_model("resnet32", tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), loaded.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", ["resnet20-nobn", "vgg16-half", "mobilenet"])
def test_a_checkpoint_says_how_many_classes_there_are(tmp_path: Path, name: str) -> None:
    """CIFAR-100, or somebody's own classes; what the card says of images and names is then not true."""
    made, card = build_model(name, 7)
    assert (card.classes, card.data) == ((), None)
    torch.save({"state_dict": {f"net.{k}": v for k, v in made.state_dict().items()}}, tmp_path / "w.pt")
    loaded, card = load_model(name, tmp_path / "w.pt")
    assert loaded(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    assert (card.classes, card.data, card.size) == ((), None, ZOO[name].card.size)
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in made.state_dict().items())


def test_unknown_names() -> None:
    for spec in ("resnet21", "", "torchvision:", "keras:x y"):
        with pytest.raises(ConfigError, match="unknown model"):
            build_model(spec)


@pytest.mark.parametrize("package", ["torchvision", "timm", "pytorchcv"])
def test_missing_packages_say_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # Python's own way of saying "not there"
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        build_model(f"{package}:resnet18")


def test_packages_that_break_on_import_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    for name in [n for n in sys.modules if n.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="operator torchvision::nms does not exist"):
        build_model("timm:resnet18")


class TestFactory:
    def write(self, folder: Path, body: str) -> str:
        (folder / "nets.py").write_text(f"from torch import nn\nfrom spikecal.data.card import Card\n{body}\n")
        return f"{folder / 'nets.py'}:make"

    def test_module_alone(self, tmp_path: Path) -> None:
        model, card = load_model(self.write(tmp_path, "def make(): return nn.Linear(2, 3).train()"))
        assert isinstance(model, nn.Linear)
        assert not model.training
        assert card.mean is None

    def test_module_with_card_and_weights(self, tmp_path: Path) -> None:
        body = "def make(): return nn.Linear(2, 3), Card(name='mine', mean=(0.5,), std=(0.1,))"
        torch.save(nn.Linear(2, 3).state_dict(), tmp_path / "w.pt")
        model, card = load_model(self.write(tmp_path, body), tmp_path / "w.pt")
        assert card == Card(name="mine", mean=(0.5,), std=(0.1,), trained=True)
        assert torch.equal(model.state_dict()["weight"], torch.load(tmp_path / "w.pt", weights_only=True)["weight"])

    def test_neighbours_can_be_imported(self, tmp_path: Path) -> None:
        (tmp_path / "spikecal_test_neighbour.py").write_text("WIDTH = 7")
        body = "from spikecal_test_neighbour import WIDTH\ndef make(): return nn.Linear(WIDTH, 1)"
        model, _ = load_model(self.write(tmp_path, body))
        assert model.in_features == 7

    def test_other_results_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="returned a int"):
            load_model(self.write(tmp_path, "def make(): return 3"))
        with pytest.raises(ConfigError, match="no file"):
            load_model(str(tmp_path / "none.py:make"))


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


WRAPPINGS = {
    "plain": lambda s: s,
    "flat": lambda s: {"epoch": 3, "accuracy": 0.9, "note": None, **s},
    "state_dict": lambda s: {"epoch": 3, "state_dict": s},
    "model": lambda s: {"model": s, "optimiser": {"lr": 0.1}},
    "module": lambda s: {f"module.{k}": v for k, v in s.items()},
    "both": lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
    "compiled": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "old": lambda s: {k: v for k, v in s.items() if "num_batches" not in k},
    "half": lambda s: {k: v.half() if v.is_floating_point() else v for k, v in s.items()},
    "nested": lambda s: {"epoch": 3, "model": {"step": 7, "state_dict": s}},
    "averaged": lambda s: {"state_dict": {k: v * 0 for k, v in s.items()}, "state_dict_ema": s},
    "averaged nothing": lambda s: {"state_dict": s, "ema": {"decay": 0.999, "updates": torch.tensor(5)}},
    "averaged in part": lambda s: {"state_dict": s, "ema": {"decay": 0.999, "shadow": [1, 2]}},
    "AveragedModel": lambda s: {"n_averaged": torch.tensor(5), **{f"module.{k}": v for k, v in s.items()}},
    "Lightning": lambda s: {"state_dict": {f"net.{k}": v for k, v in s.items()}, "hyper_parameters": {"lr": 0.1}},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappings(tmp_path: Path, wrapping: str) -> None:
    source, target = small(), small()
    torch.save(WRAPPINGS[wrapping](source.state_dict()), tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    for key, value in source.state_dict().items():
        expected = value.half().float() if wrapping == "half" and value.is_floating_point() else value
        assert torch.equal(target.state_dict()[key], expected)


def test_mismatch_says_which_keys(tmp_path: Path) -> None:
    state: dict[str, Tensor] = dict(small().state_dict())
    state["0.weight"] = torch.zeros(4, 1, 3, 3)
    state["head.weight"] = state.pop("1.bias")
    state["bn.num_batches_tracked"] = torch.tensor(3)  # useless, but accepted
    save_file(state, tmp_path / "w.safetensors")
    target = small()
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(FileError) as caught:
        load_weights(target, tmp_path / "w.safetensors")
    message = str(caught.value)
    assert "missing 1.bias" in message
    assert "unexpected head.weight;" in message
    assert "0.weight (4, 1, 3, 3) for (4, 3, 3, 3)" in message
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_a_file_without_a_state_dict_says_what_it_holds(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, "generator": small().state_dict()}, tmp_path / "w.pt")
    with pytest.raises(FileError, match=r"no state dict \(keys epoch, optimizer, generator\)"):
        read_weights(tmp_path / "w.pt")


def test_old_names_in_torchvisions_densenet_files(tmp_path: Path) -> None:
    source, _ = build_model("torchvision:densenet121")
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", k): v for k, v in source.state_dict().items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "w.pth")
    loaded, _ = load_model("torchvision:densenet121", tmp_path / "w.pth")
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in source.state_dict().items())


def test_models_that_look_at_the_version_of_a_checkpoint(tmp_path: Path) -> None:
    source, _ = build_model("torchvision:mnasnet0_5")
    save_file(source.state_dict(), tmp_path / "w.safetensors")  # which has no place for versions
    loaded, _ = load_model("torchvision:mnasnet0_5", tmp_path / "w.safetensors")
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in source.state_dict().items())


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save(small().state_dict(), tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    torch.save([1, 2], tmp_path / "list.pt")
    contents = {"empty.pt": b"", "text.pt": b"hello", "cut.pt": whole[: len(whole) // 2], "x.safetensors": b"{}" * 9}
    contents["junk.pt"] = b"junk"  # begins like a pickled number, and ends too soon
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, "list.pt", "absent.pt"):
        with pytest.raises(FileError, match=name):
            read_weights(tmp_path / name)


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, ("harm-was-done",)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": Harmful()}}, "bad.pt")
    with pytest.raises(FileError, match="not a plain checkpoint"):
        read_weights(Path("bad.pt"))
    assert not Path("harm-was-done").exists()
