"""Devices: by name, with a default device set, memory budgets, and packing without numpy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from networks import images, residual
from torch import Tensor, nn

import spikecal
from spikecal import ACP, LCP, ConfigError, Pipeline, memory
from spikecal.calibration.cache import packed, packed_in_place, unpacked, unpacked_in_place
from spikecal.cli.main import main

SHORT = ACP.changed(spikecal.Weights, iterations=2, images=8, batch=4)
EVERYTHING = Pipeline(
    sweeps=(
        spikecal.FineTune(iterations=2, images=8, batch=4),
        (spikecal.RefineThreshold(grid=2), *SHORT.sweeps[0]),  # type: ignore[misc]
        (spikecal.ClosedFormWeights(images=8), spikecal.TemporalBias(rounds=1, images=8)),
        spikecal.ReadOut(images=8),
    )
)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Tensors that are made without a device hold no values: whatever uses one fails."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


class Masked(nn.Module):
    """Makes tensors without a device where it runs, as models do that rely on the default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x) * torch.linspace(0.5, 1, 4).reshape(1, 4, 1, 1))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("pipeline", [EVERYTHING, spikecal.AUTO])
def test_the_default_device_changes_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    model, x, labels = residual(), images(12), torch.arange(12) % 5
    settings = {"T": 2, "pipeline": pipeline, "seed": 3, "effort": "low" if pipeline is spikecal.AUTO else None}
    plain = spikecal.convert(model, x, **settings)  # type: ignore[arg-type]
    torch.set_default_device("meta")
    try:
        moved = spikecal.convert(model, x, **settings, workdir=tmp_path / "work", memory=1000)  # type: ignore[arg-type]
        assert torch.equal(moved.snn(x), plain.snn(x))
        moved.save(tmp_path / "net.snn")
        again = spikecal.load(tmp_path / "net.snn")
        assert torch.equal(again.run(x).outputs, plain.snn.run(x).outputs)
        found = spikecal.evaluate(again, (x, labels), ann=model)
        moved.report(tmp_path / "r.html")
        again.step(x)
        again.normalized()(x)
    finally:
        torch.set_default_device(None)
    plain.save(tmp_path / "plain.snn")
    assert found == spikecal.evaluate(plain.snn, (x, labels), ann=model)
    assert (tmp_path / "plain.snn").read_bytes() == (tmp_path / "net.snn").read_bytes()


@pytest.mark.usefixtures("elsewhere")
def test_models_that_rely_on_a_default_device_have_their_own() -> None:
    with torch.device("cpu"):
        torch.manual_seed(0)
        model, x = Masked().eval(), images(8)
    assert spikecal.check(model, x).converts
    snn = spikecal.convert(model, x, T=2, pipeline=LCP).snn
    trainable = snn.trainable()
    trainable(x).sum().backward()
    assert all(p.grad is not None for p in trainable.parameters() if p.requires_grad)


@pytest.mark.usefixtures("elsewhere")
def test_images_are_distilled_and_models_loaded_whatever_the_default() -> None:
    model, card = spikecal.load_model("resnet20")
    made = spikecal.distill(model, 2, card=card, iterations=1, batch=2)
    assert made.images.device.type == "cpu" and bool(made.images.isfinite().all())


def test_a_device_is_named_everywhere(tmp_path: Path) -> None:
    result = spikecal.convert(residual(), images(8), T=2, pipeline=LCP, device="cpu")
    result.save(tmp_path / "net.snn")
    snn = spikecal.load(tmp_path / "net.snn", device=torch.device("cpu"))
    spikecal.evaluate(snn, (images(4), torch.arange(4)), device="cpu")
    calls = [
        lambda device: spikecal.convert(residual(), images(8), T=2, device=device),
        lambda device: spikecal.load(tmp_path / "net.snn", device=device),
        lambda device: spikecal.evaluate(snn, (images(4), torch.arange(4)), device=device),
        lambda device: spikecal.check(residual(), images(4), device=device),
        lambda device: spikecal.load_model("resnet20", device=device),
        lambda device: spikecal.distill(residual(), 2, size=8, device=device),
        lambda device: spikecal.detection.convert(residual(), [], device=device),
        lambda device: spikecal.detection.load(tmp_path / "net.snn", residual(), device=device),
        lambda device: spikecal.detection.evaluate(residual(), [], device=device),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="there is no device 'quantum' here"):
            call("quantum")
    with pytest.raises(ConfigError, match="the meta device holds no values"):
        calls[0]("meta")


VERBS = [
    ["check", "resnet20"],
    ["convert", "resnet20", "-o", "{}/a.snn"],
    ["evaluate", "{}/net.snn", "--model", "resnet20"],
    ["report", "{}/net.snn", "-o", "{}/r.html"],
    ["run", "{}/net.snn", "-o", "{}/s.npz"],
    ["distill", "resnet20", "-o", "{}/i.npz"],
    ["figure", "rate", "-o", "{}/f.png"],
    ["demo", "--output", "{}/demo"],
    ["reproduce", "lcp", "-o", "{}/tables"],
    ["train", "resnet20", "--data", "demo", "-o", "{}/w.safetensors"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_every_verb_takes_a_device(verb: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spikecal.convert(residual(), images(8), T=2, pipeline=LCP).save(tmp_path / "net.snn")
    code = main([*(word.replace("{}", str(tmp_path)) for word in verb), "--device", "quantum"])
    assert code == 2 and "there is no device 'quantum' here" in capfd.readouterr().err


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_bits_are_packed_on_any_device_as_numpy_packs_them(count: int) -> None:
    bits = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count)).bool()
    rows = packed(bits)
    assert torch.equal(packed_in_place(bits), rows) and rows.dtype == packed_in_place(bits).dtype
    both = torch.stack([rows, ~rows])
    assert torch.equal(unpacked_in_place(both, count), unpacked(both, count))
    assert torch.equal(unpacked(rows[None], count)[0].bool(), bits)


def test_budgets_follow_the_device_that_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    free = memory.free_memory

    def watched(device: object = None, processes: int = 1) -> int:
        asked.append(device)
        return free(device, processes)

    monkeypatch.setattr("spikecal.arguments.free_memory", watched)
    spikecal.convert(residual(), images(8), T=2, pipeline=LCP)
    assert asked == [torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12345, 99999))
    assert free(torch.device("cuda", 1)) == 12345


def test_the_default_type_changes_nothing(tmp_path: Path) -> None:
    pipeline = spikecal.ACP.changed(spikecal.Weights, iterations=2)
    files = [tmp_path / name for name in ("single.snn", "double.snn")]
    model, x = residual(), images(8)
    try:
        for file, dtype in zip(files, (torch.float32, torch.float64), strict=True):
            torch.set_default_dtype(dtype)
            result = spikecal.convert(model, x, T=4, pipeline=pipeline)
            result.save(file)
            spikecal.evaluate(result.snn, x, ann=model)
            result.report(tmp_path / "r.html", x)
            assert result.snn.trainable()(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert files[0].read_bytes() == files[1].read_bytes()
