"""Detectors with a spiking body: the same interface, the same boxes at many steps, files, other sizes."""

import copy
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch
from detection.scenes import coco, images, small_pyramid, tiny_detector, voc
from torch import nn

import spikecal
from spikecal import SpikingNetwork, detection
from spikecal.analysis.energy import EnergyMeter
from spikecal.calibration.calibrators import Potential
from spikecal.detection import spiking
from spikecal.errors import ConfigError, DataError, FileError
from spikecal.pipeline import PC
from spikecal.vision import vision
from spikecal.zoo.detectors import load_detector


@pytest.fixture(scope="module")
def detector() -> nn.Module:
    return tiny_detector()


@pytest.fixture(scope="module")
def made(detector: nn.Module) -> detection.Conversion:
    return detection.convert(detector, images(9), T=[4, 8], pipeline="baseline")


@pytest.mark.parametrize("readout", ["current", "spikes"])
def test_at_many_steps_the_boxes_are_the_analog_ones(detector: nn.Module, readout: str) -> None:
    converted = detection.convert(detector, images(9), T=512, pipeline="maxact", readout=readout)
    for image in images(3, seed=5):
        with torch.no_grad():
            expected, found = detector([image])[0], converted.detector([image])[0]
        best = expected["scores"].argsort(descending=True)[:5]
        matched = torch.cdist(expected["boxes"][best], found["boxes"], p=torch.inf).min(1)
        assert matched.values.max() < 0.5  # pixels
        assert torch.equal(found["labels"][matched.indices], expected["labels"][best])
        assert torch.allclose(found["scores"][matched.indices], expected["scores"][best], atol=0.03)


def test_images_of_several_sizes_in_one_call(made: detection.Conversion) -> None:
    found = made.at(4)(images(3))
    assert [set(one) for one in found] == [{"boxes", "labels", "scores"}] * 3


def test_the_detector_is_left_as_it_is(detector: nn.Module) -> None:
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    body = detector.backbone.body
    detection.convert(detector, images(4), T=2, pipeline="lcp")
    assert detector.backbone.body is body
    assert all(torch.equal(value, before[key]) for key, value in detector.state_dict().items())


def test_a_detector_of_half_precision(detector: nn.Module) -> None:
    """Its body becomes float32, as every network does; what is around it stays half."""
    half = copy.deepcopy(detector).half()
    converted = detection.convert(half, [image.half() for image in images(4)], T=4, pipeline="baseline").detector
    maps = converted.backbone.body(images(1)[0].half().unsqueeze(0))
    expected = half.backbone.body(images(1)[0].half().unsqueeze(0))
    assert {key: (value.dtype, value.shape) for key, value in maps.items()} == {
        key: (torch.float16, value.shape) for key, value in expected.items()
    }


def test_a_spiking_detector_shares_the_network_and_nothing_else(made: detection.Conversion) -> None:
    detector = tiny_detector()
    network = made.body.at(4)
    copy = spiking.with_body(detector, network)
    assert spiking.body_of(copy).network is network
    own = {p.data_ptr() for name, p in detector.named_parameters()}
    assert not own & {p.data_ptr() for name, p in copy.named_parameters()}
    before = detector([images(1)[0]])[0]["scores"]
    for p in copy.head.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(p)
    assert torch.equal(detector([images(1)[0]])[0]["scores"], before)


def test_calibration_images_have_one_size_though_the_detector_is_in_training() -> None:
    """In training its transform draws one of several sizes; the last is that of eval mode."""
    detector = tiny_detector()
    detector.transform.min_size = (24, 32, 40)  # type: ignore[union-attr, assignment]
    image = images(1, sizes=((48, 64),))[0]
    expected = spiking.scaled(detector, image)
    assert expected.shape == (3, 40, 53)
    detector.train()
    torch.manual_seed(0)
    assert all(torch.equal(spiking.scaled(detector, image), expected) for _ in range(20))
    assert detector.transform.training  # type: ignore[union-attr]


def test_potentials_are_per_channel_even_if_all_images_have_one_size(detector: nn.Module) -> None:
    converted = detection.convert(detector, images(4, sizes=((48, 64),)), T=4, pipeline=PC)
    potentials = [op.v_init for op in converted.body.snn.modules() if getattr(op, "v_init", None) is not None]
    assert potentials and all(v.ndim == 1 for v in potentials)
    assert any(
        isinstance(c, Potential) and c.per == "channel" for sweep in converted.body.pipeline.sweeps for c in sweep
    )
    assert converted.detector([images(1, sizes=((64, 64),))[0]])


def test_padding_does_not_reach_the_statistics(detector: nn.Module) -> None:
    """40 x 64 pixels are padded to 64 x 64 when they are detected on, and must not be when they are calibrated on."""
    image = images(1, sizes=((48, 64),))[0]
    chosen = spiking._Chosen(detector, [image], 1, 0)
    assert [tuple(x.shape) for x in chosen.images] == [(3, 48, 64)]
    expected = detector.transform.normalize(image)
    assert torch.allclose(chosen[0], expected)


@pytest.mark.parametrize("kind", ["list", "dataset", "loader", "boxes"])
def test_images_may_come_in_many_ways(detector: nn.Module, kind: str, tmp_path: Path) -> None:
    given = {
        "list": lambda: images(3),
        "dataset": lambda: [(image, {"boxes": None}) for image in images(3)],
        "loader": lambda: iter([(images(2), ["targets"]), (images(1), ["targets"])]),
        "boxes": lambda: detection.load_boxes(f"voc:{voc(tmp_path)}", "train"),
    }[kind]()
    assert len(detection.convert(detector, given, T=2, pipeline="baseline", count=3).records) > 0


def test_damaged_calibration_images_are_left_out(detector: nn.Module, tmp_path: Path) -> None:
    voc(tmp_path)
    path = tmp_path / "JPEGImages" / "scene1.jpg"
    path.write_bytes(path.read_bytes()[:900])
    converted = detection.convert(detector, detection.load_boxes(f"voc:{tmp_path}", "train"), T=2, pipeline="baseline")
    assert [Path(file).name for file in converted.unreadable] == ["scene1.jpg"]


def test_saved_and_loaded_in_another_process(made: detection.Conversion, detector: nn.Module, tmp_path: Path) -> None:
    made.save(tmp_path / "body.snn")
    image = images(1)[0]
    expected = made.at(4)([image])[0]
    torch.save({"image": image, "detector": detector.state_dict()}, tmp_path / "given.pt")
    code = (
        "import sys, torch\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from detection.scenes import tiny_detector\n"
        "from spikecal import detection\n"
        "given = torch.load('given.pt')\n"
        "detector = tiny_detector(); detector.load_state_dict(given['detector'])\n"
        "found = detection.load('body.snn', detector, T=4)([given['image']])[0]\n"
        "torch.save({key: value for key, value in found.items()}, 'found.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    found = torch.load(tmp_path / "found.pt")
    assert all(torch.allclose(found[key].float(), expected[key].float(), atol=1e-4) for key in expected)
    assert spikecal.inspect(tmp_path / "body.snn")["T"] == [4, 8]


def test_a_readout_is_in_the_file(detector: nn.Module, tmp_path: Path) -> None:
    detection.convert(detector, images(3), T=2, pipeline="baseline", readout="spikes").save(tmp_path / "a.snn")
    assert spikecal.load(tmp_path / "a.snn").readout == "spikes"


def test_other_heads_are_noticed(made: detection.Conversion, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made.save(tmp_path / "body.snn")
    other = tiny_detector()
    detection.load(tmp_path / "body.snn", other)
    assert not caplog.records
    nn.init.zeros_(other.head.classification_head.cls_logits.bias)  # type: ignore[union-attr, arg-type]
    detection.load(tmp_path / "body.snn", other)
    assert "different weights" in caplog.text


def test_the_embedded_detector() -> None:
    detector = load_detector("retinanet-r18-quarter")
    card = json.loads((resources.files("spikecal") / "demo" / "retinanet-r18-quarter.json").read_text())
    assert card["test"]["map50"] > 0.8 and card["classes"] == {"1": "Platelets", "2": "RBC", "3": "WBC"}
    image = torch.full((3, 240, 320), 0.75)
    image[0, 80:160, 100:190], image[1, 80:160, 100:190], image[2, 80:160, 100:190] = 0.45, 0.3, 0.6  # a violet blob
    with torch.no_grad():
        best = detector([image])[0]
    assert card["classes"][str(int(best["labels"][0]))] == "WBC"
    matched = vision("torchvision.ops").box_iou(best["boxes"][:1], torch.tensor([[100.0, 80.0, 190.0, 160.0]]))
    assert best["scores"][0] > 0.3 and float(matched) > 0.5


def test_pairs_are_measured_as_a_set_is(made: detection.Conversion, tmp_path: Path) -> None:
    data = detection.load_boxes(f"voc:{voc(tmp_path)}", "test")
    pairs = [(data.image(i), {"boxes": t.boxes, "labels": t.labels}) for i, t in enumerate(data.targets)]
    lists = [(x.numpy(), {key: value.tolist() for key, value in boxes.items()}) for x, boxes in pairs]
    expected = detection.evaluate(made.at(4), data)
    for given in (pairs, lists):
        found = detection.evaluate(made.at(4), given)
        assert (found.map, found.images) == (expected.map, expected.images)
    for wrong in (iter(pairs), [pairs[0][0]], [(pairs[0][0], {"annotation": {}})], 3):
        with pytest.raises(DataError, match=r"pairs \(image, "):
            detection.evaluate(made.at(4), wrong)


class SamePadding(nn.Module):
    """Pads as TensorFlow does, by the size of the image, to whole strides of four."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = [-n % 4 if n % 4 else 0 for n in x.shape[-2:]]
        return nn.functional.pad(x, (0, missing[1], 0, missing[0])) if max(missing) > 0 else x


def test_a_body_that_computes_with_sizes_is_read_back(tmp_path: Path) -> None:
    detector = tiny_detector()
    body = detector.backbone.body
    body.conv1 = nn.Sequential(SamePadding(), body.conv1)
    detector.transform.min_size, detector.transform.max_size = (96,), 96  # which batches do not pad
    small = images(4, sizes=((90, 90),))
    converted = detection.convert(detector, small, T=2, pipeline="baseline")
    converted.save(tmp_path / "body.snn")
    loaded = detection.load(tmp_path / "body.snn", detector)
    assert spiking.network_of(loaded).origin.inputs == (tuple(spiking.scaled(detector, small[0]).shape),)
    with torch.no_grad():
        assert torch.equal(loaded([small[0]])[0]["boxes"], converted.detector([small[0]])[0]["boxes"])


def test_a_file_that_does_not_fit(made: detection.Conversion, tmp_path: Path) -> None:
    made.save(tmp_path / "body.snn")
    other = tiny_detector()
    other.backbone = small_pyramid(16, width=16)
    with pytest.raises(FileError, match="does not fit"):
        detection.load(tmp_path / "body.snn", other)
    with pytest.raises(FileError, match="T=7"):
        detection.load(tmp_path / "body.snn", tiny_detector(), T=7)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([torch.zeros(3, 8, 8, dtype=torch.uint8)], DataError, "floats"),
        ([torch.zeros(1, 3, 8, 8)], DataError, "floats"),
        ([torch.zeros(4, 8, 8)], DataError, "floats"),
        (iter([[]]), DataError, "no calibration images"),
        (7, DataError, "not int"),
        ([], DataError, "no calibration images"),
    ],
)
def test_unusable_images(detector: nn.Module, given: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        detection.convert(detector, given, T=2)


def test_things_that_are_not_detectors(detector: nn.Module, made: detection.Conversion) -> None:
    with pytest.raises(ConfigError, match="already has a spiking body"):
        detection.convert(made.detector, images(1), T=2)
    with pytest.raises(ConfigError, match="not one of torchvision's detectors"):
        detection.convert(nn.Conv2d(3, 3, 1), images(1), T=2)
    with pytest.raises(ConfigError, match="readout"):
        detection.convert(detector, images(1), T=2, readout="sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no spiking body"):
        detection.samples(detector, detector, images(1), [1])


def test_a_body_can_wait_and_is_stored_so(detector: nn.Module, tmp_path: Path) -> None:
    made = detection.convert(detector, images(9), pipeline="baseline", latency=3, readout="spikes")
    made.save(tmp_path / "body.snn")
    network = made.body.snn  # for a T that was chosen
    assert network.T <= network.latency <= 3 and network.origin.placements[network.T]["images"] == 2
    again = spiking.network_of(detection.load(tmp_path / "body.snn", detector))
    assert (again.waits, again.latency, again.readout) == (network.waits, network.latency, "spikes")
    with pytest.raises(ConfigError, match="T=4 cannot have a latency of 3"):
        detection.convert(detector, images(2), T=4, latency=3)


def test_samples_show_both_detectors_after_some_steps(made: detection.Conversion) -> None:
    spiking_one = made.at(4)
    found = detection.samples(made.analog, spiking_one, images(2), [1, 4])
    assert len(found) == 2 and all(set(sample.spiking) == {1, 4} for sample in found)
    with torch.no_grad():
        whole = spiking_one([found[0].image])[0]
    assert torch.allclose(found[0].spiking[4]["scores"], whole["scores"], atol=1e-4)
    assert not torch.equal(found[0].spiking[1]["scores"], found[0].spiking[4]["scores"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("retinanet_resnet50_fpn", {"min_size": 64, "max_size": 96}),
        ("fasterrcnn_resnet50_fpn", {"min_size": 64, "max_size": 96}),
    ],
)
def test_full_size_detectors_run(name: str, options: dict[str, int]) -> None:
    torch.manual_seed(0)
    full = vision("torchvision.models.detection").__dict__[name](weights=None, weights_backbone=None, **options).eval()
    image = images(1, sizes=((64, 80),))[0]
    converted = detection.convert(full, [image], T=2, pipeline="baseline")
    with torch.no_grad():
        found = converted.detector([image])[0]
    assert found["boxes"].shape[1] == 4 and torch.isfinite(found["scores"]).all()


def test_ssd() -> None:
    torch.manual_seed(0)
    ssd = vision("torchvision.models.detection").ssd300_vgg16(weights=None, weights_backbone=None).eval()
    ssd.transform.fixed_size = (64, 64)  # to calibrate on; the head needs 300
    converted = detection.convert(ssd, images(1), T=2, pipeline="baseline")
    converted.analog.transform.fixed_size = (300, 300)
    with torch.no_grad():
        found = converted.detector(images(1))[0]
    assert found["boxes"].shape[1] == 4 and torch.isfinite(found["scores"]).all()


def test_fcos() -> None:
    torch.manual_seed(0)
    anchors = vision("torchvision.models.detection.anchor_utils").AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    backbone = small_pyramid(32)
    fcos = vision("torchvision.models.detection").FCOS(backbone, 3, anchor_generator=anchors, min_size=48).eval()
    converted = detection.convert(fcos, images(3), T=2, pipeline="lcp")
    assert set(converted.detector(images(1))[0]) == {"boxes", "labels", "scores"}


def test_coco_labels_reach_the_measure(tmp_path: Path) -> None:
    data = detection.load_boxes(f"coco:{coco(tmp_path)}", "test")
    found = detection.evaluate(tiny_detector(labels=data.labels), data)
    assert set(found.classes) == {"bar", "square"} and 0 <= found.map <= found.map50 <= 1


def test_evaluation_counts_what_the_body_costs(
    detector: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = detection.load_boxes(f"voc:{voc(tmp_path)}", "test")
    plain = detection.convert(detector, data, T=4, pipeline="lcp").at(4)
    network = spiking.network_of(plain)
    waits = {stage.name: 1 for stage in network.stages if stage.spiking}
    waiting = spiking.with_body(detector, SpikingNetwork(network.graph, 4, waits))
    assert detection.evaluate(detector, data).energy is None
    for made in (plain, waiting):
        network, meter = spiking.network_of(made), None
        spikes = 0
        for i in range(len(data)):
            batch = made.transform([data.image(i)])[0].tensors  # padded, as the body gets it
            counts = network.run(batch).spikes
            spikes += sum(int(count.sum()) for count in counts.values())
            meter = meter or EnergyMeter(network)
            meter.add((batch,), counts)
        found = detection.evaluate(made, data)
        assert found.energy is not None and found.energy.spikes == pytest.approx(spikes / len(data))
        assert found.energy == meter.result()
        with monkeypatch.context() as little:  # steps one at a time, as of images that are too large for all of them
            little.setattr("spikecal.snn.execute.STEP_FLOATS", 1)
            again = detection.evaluate(made, data)
        assert again.energy is not None and again.energy.spikes == pytest.approx(found.energy.spikes, rel=0.02)
        assert spiking._spiking_body(made).meter is None, "only while it is evaluated"
