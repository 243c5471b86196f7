"""The packages' own weights: from the package's cache, from a server, and not at all."""

import hashlib
import io
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
import torch

from spikecal.errors import ConfigError
from spikecal.vision import vision
from spikecal.zoo import hub
from spikecal.zoo.models import build_model, load_model

SPECS = {"torchvision": "torchvision:squeezenet1_1", "timm": "timm:test_resnet", "pytorchcv": "pytorchcv:mobilenet_wd4"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a proxy that refuses: there is no network."""
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("urllib.request._opener", None)  # both keep the proxies of their first use in the process
    huggingface_hub.close_session()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path


@pytest.mark.parametrize("spec", [*SPECS.values(), "timm:resnet18", "torchvision:resnet50.IMAGENET1K_V1"])
def test_offline_is_one_line_at_once(spec: str) -> None:
    build_model(spec)  # the import is not what is timed
    started = time.perf_counter()
    with pytest.raises(
        ConfigError, match=f"weights of {spec} cannot be fetched .*refused.*: give --weights FILE"
    ) as error:
        load_model(spec)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - started < 5


def test_models_without_weights_and_weights_without_models() -> None:
    with pytest.raises(ConfigError, match="pytorchcv has none for this model"):
        load_model("pytorchcv:resnext26_16x4d")
    with pytest.raises(ConfigError, match="no weights 'NONE' for resnet18: choose from IMAGENET1K_V1"):
        load_model("torchvision:resnet18.NONE")
    with pytest.raises(ConfigError, match="Invalid pretrained tag"):
        load_model("timm:resnet18.none")


def put(package: str, content: object, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save `content` as the weights of the model under test, where the package keeps them."""
    data = io.BytesIO()
    torch.save(content, data)
    if package == "torchvision":
        url = vision("torchvision.models").SqueezeNet1_1_Weights.DEFAULT.url
        path = home / "torch" / "hub" / "checkpoints" / url.rpartition("/")[2]
    elif package == "timm":
        repository = home / "hf" / "models--timm--test_resnet.r160_in1k"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        path = repository / "snapshots" / ("0" * 40) / "pytorch_model.bin"
    else:
        # pytorchcv goes by the digest in a table of its own, which must be this file's for once.
        table = import_module("pytorchcv.models.common.model_store")
        error, _, release = table.get_model_name_suffix_data("mobilenet_wd4")
        digest = hashlib.sha1(data.getvalue()).hexdigest()
        monkeypatch.setattr(table, "get_model_name_suffix_data", lambda name: (error, digest, release))
        path = home / ".torch" / "models" / f"mobilenet_wd4-{error}-{digest[:8]}.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(data.getvalue())


@pytest.mark.parametrize("package", SPECS)
def test_weights_in_the_packages_cache_are_loaded(package: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    source, _ = build_model(SPECS[package])
    put(package, source.state_dict(), home, monkeypatch)
    loaded, card = load_model(SPECS[package])
    assert card.trained
    assert not loaded.training
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in source.state_dict().items())


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, ("harm-was-done",)


@pytest.mark.parametrize("package", SPECS)
def test_code_in_the_packages_cache_is_not_run(package: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision and pytorchcv themselves would unpickle whatever is in the file."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    put(package, {"a": Harmful()}, home, monkeypatch)
    with pytest.raises(ConfigError, match=r"cannot be used .*delete that file"):
        load_model(SPECS[package])
    assert not (home / "harm-was-done").exists()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The folder `www` on a port of this machine."""
    (tmp_path / "www").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "www")) as found:
        thread = Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


class TestFetch:
    CONTENT = b"weights " * 1000

    def test_plain_and_zipped(self, tmp_path: Path, server: str) -> None:
        (tmp_path / "www" / "a.pth").write_bytes(self.CONTENT)
        digest = hashlib.sha256(self.CONTENT).hexdigest()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("a.pth", self.CONTENT)
        (tmp_path / "www" / "a.zip").write_bytes(packed.getvalue())
        hub.fetch(f"{server}/a.pth", tmp_path / "x" / "a", hub.Beginning("sha256", digest[:8]))
        hub.fetch(f"{server}/a.zip", tmp_path / "x" / "b", hub.Checksum("sha256", digest), "a.pth")
        assert (tmp_path / "x" / "a").read_bytes() == (tmp_path / "x" / "b").read_bytes() == self.CONTENT

    @pytest.mark.parametrize(
        ("name", "member", "reason"),
        [
            ("a.pth", None, "sent a different a"),
            ("b.pth", None, "404"),
            ("a.pth", "a", "not a zip"),
            ("a.zip", "b", "no item named 'b'"),
            ("a.zip", "a", "sent a different a"),
        ],
    )
    def test_nothing_is_left_of_a_failure(
        self, tmp_path: Path, server: str, name: str, member: str | None, reason: str
    ) -> None:
        (tmp_path / "www" / "a.pth").write_bytes(self.CONTENT)
        with zipfile.ZipFile(tmp_path / "www" / "a.zip", "w") as archive:
            archive.writestr("a", self.CONTENT)
        with pytest.raises(hub.NotFetched, match=reason):
            hub.fetch(f"{server}/{name}", tmp_path / "x" / "a", hub.Checksum("sha256", "0123"), member)
        assert not list((tmp_path / "x").iterdir())

    def test_names_carry_the_start_of_their_digest(self, tmp_path: Path, server: str) -> None:
        digest = hashlib.sha256(self.CONTENT).hexdigest()
        for name in (f"net-{digest[:8]}.pth", "net-01234567.pth"):
            (tmp_path / "www" / name).write_bytes(self.CONTENT)
        assert hub.from_torch_hub(f"{server}/net-{digest[:8]}.pth").read_bytes() == self.CONTENT
        with pytest.raises(hub.NotFetched, match="sent a different"):
            hub.from_torch_hub(f"{server}/net-01234567.pth")


def test_cards_have_each_models_own_recipe() -> None:
    for spec, side, crop in (
        ("torchvision:squeezenet1_1", 224, 224 / 256), ("torchvision:mnasnet1_3", 224, 224 / 232),
        ("torchvision:resnet50.IMAGENET1K_V1", 224, 224 / 256), ("torchvision:resnet50", 224, 224 / 232),
        ("timm:resnet18", 224, 0.95), ("pytorchcv:mobilenet_wd4", 224, 0.875),
    ):  # fmt: skip
        card = build_model(spec)[1]
        assert (card.size, card.crop) == ((side, side), pytest.approx(crop))
        assert card.data == "imagenet"
        assert card.interpolation == ("bicubic" if spec.startswith("timm") else "bilinear")
        assert card.mean == (0.485, 0.456, 0.406)
    assert build_model("timm:test_resnet")[1].mean == (0.5, 0.5, 0.5)
    card = build_model("pytorchcv:resnet20_cifar10")[1]
    assert (card.size, card.data, card.crop) == ((32, 32), "demo", 1.0)
