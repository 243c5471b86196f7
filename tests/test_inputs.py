"""What users have: arrays and numbers of numpy, lists of labels, one image, vectors and signals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import residual
from torch import Tensor, nn

import spikecal
from spikecal.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.random((12, 3, 8, 8))  # float64, as numpy makes them
TENSOR = torch.from_numpy(IMAGES).float()
LABELS = RNG.integers(0, 5, 12)


@pytest.fixture(scope="module")
def result() -> spikecal.Result:
    return spikecal.convert(residual(), TENSOR, T=4, pipeline="lcp")


def outputs(result: spikecal.Result) -> Tensor:
    found: Tensor = result.snn(TENSOR)
    return found


@pytest.mark.parametrize(
    "images",
    [
        IMAGES,
        (IMAGES, LABELS),
        (IMAGES, LABELS.tolist()),
        [(x, label) for x, label in zip(IMAGES, LABELS, strict=True)],
        list(IMAGES),
        np.asfortranarray(IMAGES.astype(">f4")),
    ],
)
def test_arrays_calibrate_as_tensors_do(images: Any, result: spikecal.Result) -> None:
    found = spikecal.convert(residual(), images, T=np.int64(4), pipeline="lcp", seed=np.int64(0))
    assert torch.allclose(outputs(found), outputs(result), atol=1e-5)


def test_arrays_that_cannot_be_written_to(result: spikecal.Result) -> None:
    fixed = IMAGES.astype(np.float32)
    fixed.flags.writeable = False
    assert torch.equal(result.snn(fixed), outputs(result))


def test_loaders_of_arrays(result: spikecal.Result) -> None:
    batches = [(IMAGES[:6], LABELS[:6].tolist()), (IMAGES[6:], LABELS[6:])]
    found = spikecal.convert(residual(), iter(batches), T=4, pipeline="lcp")
    assert torch.allclose(outputs(found), outputs(result), atol=1e-5)
    assert spikecal.evaluate(result.snn, iter(batches)).images == 12


def test_numbers_of_numpy(result: spikecal.Result, tmp_path: Path) -> None:
    sizes = {"memory": np.int64(1 << 28), "micro_batch": np.int32(4)}
    found = spikecal.convert(residual(), TENSOR, T=np.array([2, 4]), pipeline="lcp", **sizes)
    found.save(tmp_path / "net.snn")
    assert sorted(found.networks) == [2, 4] and all(type(T) is int for T in found.networks)
    assert torch.equal(spikecal.load(tmp_path / "net.snn", T=np.int64(2))(TENSOR), found.at(np.int64(2))(TENSOR))


def test_settings_of_numpy_are_stored_as_pythons() -> None:
    threshold = spikecal.Percentile(images=np.int64(64), percent=np.float32(99.5))
    pipeline = spikecal.Pipeline(threshold=threshold, sweeps=((spikecal.Bias(images=np.int64(32)),),))
    assert spikecal.Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    with pytest.raises(ConfigError, match="images cannot be True"):
        spikecal.Bias(images=np.bool_(True))


@pytest.mark.parametrize("labels", [LABELS, LABELS.tolist(), tuple(LABELS), torch.from_numpy(LABELS)])
def test_labels_in_every_form(result: spikecal.Result, labels: Any) -> None:
    expected = (outputs(result).argmax(1) == torch.from_numpy(LABELS)).float().mean()
    for images in (IMAGES, TENSOR):
        assert spikecal.evaluate(result.snn, (images, labels)).accuracy[-1] == pytest.approx(float(expected))


@pytest.mark.parametrize("label", [-1, 5, 99])
def test_labels_outside_the_classes_are_refused(result: spikecal.Result, label: int) -> None:
    with pytest.raises(DataError, match=f"a label {label}, but the network has classes 0 to 4"):
        spikecal.evaluate(result.snn, (IMAGES, [label, *LABELS[1:].tolist()]))


def test_one_image_without_a_batch_is_reported(result: spikecal.Result, tmp_path: Path) -> None:
    sentence = r"shape \[3, 8, 8\] is one image without a batch: give x\[None\]"
    result.save(tmp_path / "net.snn")
    with pytest.raises(DataError, match=sentence):
        spikecal.convert(residual(), TENSOR[0])
    for snn in (result.snn, spikecal.load(tmp_path / "net.snn")):
        for use in (snn, snn.run, snn.step):
            with pytest.raises(DataError, match=sentence):
                use(IMAGES[0])


def test_memory_as_people_write_it(result: spikecal.Result) -> None:
    found = spikecal.convert(residual(), TENSOR, T=4, pipeline="lcp", memory="2G")
    assert torch.equal(outputs(found), outputs(result))
    with pytest.raises(ConfigError, match="'lots' is not a size"):
        spikecal.convert(residual(), TENSOR, memory="lots")


@pytest.mark.parametrize("T", [0, True, 2.5, "8", 10**12, [4, 1 << 40]])
def test_invalid_steps(T: Any) -> None:
    with pytest.raises(ConfigError, match="T must be a number of steps from 1 to 1,048,576"):
        spikecal.convert(residual(), TENSOR, T=T)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,)),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)), (2, 16)),
    ],
)
def test_vectors_and_signals(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = RNG.random((10, *shape))
    found = spikecal.convert(model.eval(), x, T=64, pipeline="lcp")
    labels = model(torch.from_numpy(x).float()).argmax(1).tolist()
    assert spikecal.evaluate(found.snn, (x, labels)).accuracy[-1] > 0.6


def test_names_of_images_are_refused_with_advice(result: spikecal.Result) -> None:
    said = r"spikecal.load_images\('folder:x', card\) gives one"
    with pytest.raises(DataError, match=said):
        spikecal.convert(residual(), "folder:x")
    with pytest.raises(DataError, match=said):
        spikecal.evaluate(result.snn, "folder:x")


@pytest.mark.parametrize(("labels", "said"), [(["cat"] * 12, "one per image, not 'cat'"), ([], "there are no labels")])
def test_invalid_labels(result: spikecal.Result, labels: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        spikecal.evaluate(result.snn, (TENSOR, labels))
