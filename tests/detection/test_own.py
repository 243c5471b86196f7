"""Custom detectors and networks: the example of the docs, other outputs, and the page that a message names."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cli.calls import fails
from detection.scenes import images, picture, scene
from torch import nn

import spikecal
from spikecal import detection
from spikecal.cli.main import main
from spikecal.errors import ConfigError, DataError

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_detector.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_detector", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs(example: ModuleType, tmp_path: Path) -> None:
    found = example.main(tmp_path)
    assert found.images == 12 and found.energy is not None and found.energy.ratio > 0


def test_at_many_steps_the_boxes_are_the_analog_ones(example: ModuleType) -> None:
    torch.manual_seed(0)
    detector, scenes = example.GridDetector().eval(), images(6)
    made = detection.convert(detector, scenes, T=512, pipeline="lcp")
    with torch.no_grad():
        found, expected = made.detector([scenes[0]])[0], detector([scenes[0]])[0]
    assert torch.allclose(found["boxes"], expected["boxes"], atol=0.3)
    assert detection.samples(detector, made.detector, scenes[:1], [4, 512])[0].spiking.keys() == {4, 512}
    assert repr(made).startswith("<spikecal.detection.Conversion: GridDetector with <spikecal.Result: T=512 LCP; ")
    assert made._repr_html_() == made.summary()._repr_html_() and made._repr_html_().count("<tr>") == 2


def test_linear_values_in_a_body_are_sent_as_spikes(example: ModuleType, tmp_path: Path) -> None:
    """A projection that an expansion reads: signed neurons by default, and the boxes that currents give."""
    torch.manual_seed(0)
    detector, scenes, truth = example.GridDetector(), images(6), (torch.tensor([[8.0, 8, 24, 24]]), torch.tensor([1]))
    detector.body = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.ReLU6(), nn.Conv2d(16, 8, 1),  # linear
        nn.Conv2d(8, 32, 1), nn.ReLU6(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(),
    )  # fmt: skip
    scored = [(scene, dict(zip(("boxes", "labels"), truth, strict=True))) for scene in scenes]
    costs = {}
    for joints in ("signed", "analog"):
        kind = {} if joints == "signed" else {"joints": joints}  # it is the default
        made = detection.convert(detector.eval(), scenes, T=64, pipeline="lcp", **kind)
        made.save(tmp_path / "d.snn")
        spiking = detection.load(tmp_path / "d.snn", detector)
        with torch.no_grad():
            found, expected = spiking([scenes[0]])[0], detector([scenes[0]])[0]
        assert torch.allclose(found["boxes"], expected["boxes"], atol=0.3)
        assert ("signed neurons" in {record.kind for record in made.records}) == (joints == "signed")
        costs[joints] = detection.evaluate(spiking, scored).energy
    assert 2 * costs["signed"].ratio < costs["analog"].ratio


def yolo(folder: Path) -> Path:
    for split, count in (("train", 4), ("val", 2)):
        for i in range(count):
            picture(folder / "images" / split / f"{i}.jpg", scene(i), seed=i)
            lines = [
                f"{['square', 'bar'].index(n)} {(x0 + x1) / 128} {(y0 + y1) / 96} {(x1 - x0) / 64} {(y1 - y0) / 48}"
                for n, x0, y0, x1, y1 in scene(i)
            ]
            (folder / "labels" / split).mkdir(parents=True, exist_ok=True)
            (folder / "labels" / split / f"{i}.txt").write_text("\n".join(lines))
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nnames:  # two\n  0: square\n  1: 'bar'\n")
    return folder


def test_the_command_line(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text() + "\n\ndef make():\n    return GridDetector()\n")
    model, data = f"{tmp_path / 'mine.py'}:make", f"yolo:{yolo(tmp_path / 'set')}"
    options = ("--task", "detect", "--data", data, "-T", "4", "--pipeline", "lcp", "--json")
    assert main(["convert", model, "-o", str(tmp_path / "d.snn"), *options]) == 0
    assert set(json.loads(capsys.readouterr().out)["precision"]) == {"analog", "4"}
    assert main(["check", model, "--task", "detect", "--size", "48", "64"]) == 0
    capsys.readouterr()
    (tmp_path / "plain.py").write_text("from torch import nn\ndef make():\n    return nn.Conv2d(3, 4, 3)\n")
    code = main(["check", f"{tmp_path / 'plain.py'}:make", "--task", "detect"])
    fails((code, *capsys.readouterr()), "`spiking_body` (docs/how-to/detection.md#your-own-network)")


def test_a_missing_part() -> None:
    detector = nn.Sequential(nn.Conv2d(3, 4, 3))
    detector.spiking_body = "backbone"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has no part 'backbone' to convert"):
        detection.convert(detector, images(1))


class Segmenter(nn.Module):
    """A mask and its edges: two outputs, none of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.mask, self.edges = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.backbone(x)
        return {"mask": self.mask(x), "edges": self.edges(x)}


def test_rates_and_energy_of_several_outputs() -> None:
    torch.manual_seed(0)
    net, x = Segmenter().eval(), torch.rand(8, 3, 12, 12)
    snn = spikecal.convert(net, x, T=8, pipeline="lcp").snn
    found = spikecal.evaluate(snn, x)
    assert found.accuracy == [] and found.agreement == [] and found.images == 8
    assert set(found.rates) == set(snn.run(x).spikes) and found.energy is not None and found.energy.ratio is not None
    assert spikecal.evaluate(snn, x, ann=net).spikes == found.spikes
    with pytest.raises(DataError, match="a single output of classes"):
        spikecal.evaluate(snn, (x, [0] * 8))


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.heads = nn.ModuleList([nn.Sequential(nn.Conv2d(8, n, 1), nn.Sigmoid()) for n in (4, 2)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.body(x)
        return [head(x) for head in self.heads]


def test_rates_and_energy_with_analog_heads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 3, 12, 12)
    result = spikecal.convert(Headed().eval(), x, T=8, pipeline="lcp", keep=["heads"])
    found = spikecal.evaluate(result.snn, x)
    assert found.accuracy == [] and found.spikes > 0 and found.energy is not None and found.energy.ratio is not None
    shown = dict(zip((table := result.summary(x)).names, table.rows[-1], strict=True))
    assert shown["energy %"] == f"{100 * found.energy.ratio:.1f}" and "accuracy %" not in shown
    with pytest.raises(DataError, match="a single output of classes"):
        spikecal.evaluate(result.snn, (x, [0] * 8))
    result.report(tmp_path / "r.html", x)


def test_a_body_is_put_into_its_place() -> None:
    torch.manual_seed(0)
    net, x = Segmenter().eval(), torch.rand(8, 3, 12, 12)
    expected = net(x)
    net.backbone = spikecal.convert(net.backbone, x, T=512, pipeline="lcp").snn  # type: ignore[assignment]
    assert all(torch.allclose(net(x)[key], expected[key], atol=0.02) for key in expected)


def test_yolo(tmp_path: Path) -> None:
    folder = yolo(tmp_path)
    data = detection.load_boxes(f"yolo:{folder}", "train")
    assert len(data) == 4 and dict(data.classes) == {1: "square", 2: "bar"}
    assert data.targets[0].labels.tolist() == [1, 2]
    expected = torch.tensor([box[1:] for box in scene(0)])
    assert torch.allclose(data.targets[0].boxes, expected, atol=1e-3)
    assert len(detection.load_boxes(f"yolo:{folder}", "test")) == 2  # val, where there is no test


def test_yolo_as_others_lay_it_out(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "images" / "a.png", scene(0))
    picture(tmp_path / "train" / "images" / "b.png", scene(1))  # without labels: nothing is on it
    (tmp_path / "train" / "labels").mkdir()
    lines = ("1 .25 .25 .5 .25 .5 .75", "x 1 2 3 4", "0 0.5 0.5 nan 1", "7 .5 .5 .1 .1")
    (tmp_path / "train" / "labels" / "a.txt").write_text("\n".join(lines))
    (tmp_path / "data.yml").write_text("nc: 2\nnames: ['cat', \"dog\"]\n")
    data = detection.load_boxes(f"yolo:{tmp_path}", "train")
    assert torch.allclose(data.targets[0].boxes[0], torch.tensor([16.0, 12.0, 32.0, 36.0]))  # around the polygon
    assert data.targets[0].labels.tolist() == [2, 8] and dict(data.classes) == {1: "cat", 2: "dog", 8: "class 7"}
    assert data.faults.counts() == {"left_out": 0, "empty": 1, "clipped": 0, "missized": 0, "dropped": 2}
    with pytest.raises(DataError, match="has no images/test"):
        detection.load_boxes(f"yolo:{tmp_path}", "test")
