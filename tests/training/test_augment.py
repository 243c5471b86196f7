"""Augmentations do what their names say, identically in every process."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from spikecal.calibration.augment import draw_shifts
from spikecal.data.card import Card
from spikecal.data.images import FileImages
from spikecal.data.prepare import Prepared, prepare
from spikecal.data.sources import Data, load_data
from spikecal.errors import DataError
from spikecal.training.augment import ImageTransform, crop_and_flip, cutout
from spikecal.training.feed import Feed, hold_out, mixed
from spikecal.training.recipes import CIFAR, IMAGENET, QUICK, Recipe
from spikecal.training.workers import worker_errors
from spikecal.vision import vision

v2 = vision("torchvision.transforms.v2")
CPU = torch.device("cpu")
CARD = Card(name="small", size=(12, 10), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))


def pixels(count: int, *shape: int) -> Tensor:
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def labelled(images: Tensor) -> Data:
    return Data(name="random", images=images, labels=torch.arange(len(images)))


def crops(image: Tensor, pad: int, mode: str) -> list[Tensor]:
    """Every crop and flip there is, by plain slicing."""
    padded = F.pad(image[None].float(), (pad,) * 4, mode=mode)[0].to(image.dtype)
    height, width = image.shape[1:]
    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    plain = [padded[:, top : top + height, left : left + width] for top, left in places]
    return plain + [crop.flip(2) for crop in plain]


@pytest.mark.parametrize(("name", "mode"), [("reflect-crop", "reflect"), ("crop", "constant")])
def test_batches_are_cropped_and_flipped(name: str, mode: str) -> None:
    images, recipe = pixels(300, 3, 6, 5), QUICK.changed(pad=2, augment=(name, "flip"))
    changed = crop_and_flip(images, recipe, draw_shifts(300, 2, torch.Generator().manual_seed(1)))
    seen = set()
    for image, got in zip(images, changed, strict=True):
        matches = [i for i, crop in enumerate(crops(image, 2, mode)) if torch.equal(crop, got)]
        assert matches
        seen.update(matches)
    assert len(seen) == 50  # 5 x 5 places, flipped or not: all occur


def test_only_what_is_named_is_done() -> None:
    images, shifts = pixels(64, 3, 6, 5), draw_shifts(64, 2, torch.Generator().manual_seed(1))
    assert torch.equal(crop_and_flip(images, QUICK.changed(augment=()), shifts), images)
    flipped = crop_and_flip(images, QUICK.changed(augment=("flip",)), shifts)
    kept = [torch.equal(a, b) for a, b in zip(images, flipped, strict=True)]
    assert 10 < sum(kept) < 54
    assert all(torch.equal(a if k else a.flip(2), b) for a, b, k in zip(images, flipped, kept, strict=True))
    cropped = crop_and_flip(images, QUICK.changed(pad=2, augment=("crop",)), shifts)
    assert all(
        any(torch.equal(got, crop) for crop in crops(image, 2, "constant")[:25])
        for image, got in zip(images, cropped, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "torchvisions"),
    [
        ("autoaugment-cifar10", v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)),
        ("autoaugment-imagenet", v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET)),
        ("colour-jitter", v2.ColorJitter(0.1, 0.2, 0.3, 0.4)),
        ("resized-crop", v2.RandomResizedCrop((12, 10), antialias=True)),
    ],
)
def test_of_one_image_it_is_torchvisions(name: str, torchvisions: Callable[[Tensor], Tensor]) -> None:
    recipe = QUICK.changed(augment=(name,), jitter=(0.1, 0.2, 0.3, 0.4))
    transform, changed = ImageTransform(recipe, CARD, (12, 10)), 0
    for seed, image in enumerate(pixels(20, 3, 12, 10)):
        torch.manual_seed(seed)
        got = transform(image, "random")
        torch.manual_seed(seed)
        assert torch.equal(got, prepare(torchvisions(image)[None], CARD, "random")[0])
        changed += not torch.equal(got, prepare(image[None], CARD, "random")[0])
    assert changed > 10  # AutoAugment leaves some as they are


def test_cutout_removes_a_square_about_any_centre() -> None:
    torch.manual_seed(0)
    cut, sizes, centres = cutout(16, (32, 32)), set(), set()
    for _ in range(400):
        gone = (cut(torch.ones(3, 32, 32)) == 0).numpy()
        assert (gone == gone[0]).all()
        rows, columns = (np.flatnonzero(gone[0].any(axis)) for axis in (1, 0))
        assert gone[0].sum() == len(rows) * len(columns)  # a rectangle
        for side in (rows, columns):
            assert 8 <= len(side) <= 16
            assert len(side) == 16 or side[0] == 0 or side[-1] == 31  # smaller at the border only
        sizes.add((len(rows), len(columns)))
        centres.add(int(rows[-1]) - 7 if rows[-1] < 31 else int(rows[0]) + 8)
    assert (16, 16) in sizes
    assert centres == set(range(33))


def test_cutout_leaves_the_mean_of_the_normalised_image() -> None:
    feed = Feed(
        labelled(torch.full((4, 3, 12, 10), 255, dtype=torch.uint8)),
        CARD,
        CIFAR.changed(batch=4, augment=("cutout",), hole=4),
        CPU,
        workers=0,
    )
    ((batch, _),) = feed.batches(0)
    bright = prepare(torch.full((1, 3, 12, 10), 255, dtype=torch.uint8), CARD, "")[0]
    for image in batch:
        gone = image[0] == 0
        assert 4 <= int(gone.sum()) <= 16
        assert torch.equal(image, torch.where(gone, torch.zeros(()), bright))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than there are cores
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of fork, from Python 3.12
@pytest.mark.parametrize("recipe", [CIFAR.changed(batch=8, hole=4, pad=2), QUICK.changed(batch=8, pad=2)])
def test_a_batch_depends_on_seed_epoch_and_step_alone(recipe: Recipe) -> None:
    data = labelled(pixels(30, 3, 12, 10))
    feed = Feed(data, CARD, recipe, CPU, workers=0)
    whole = list(feed.batches(1))
    assert [len(labels) for _, labels in whole] == [8, 8, 8]
    assert len({int(label) for _, labels in whole for label in labels}) == 24  # no image twice
    torch.manual_seed(99)
    for workers in (0, 1, 2):
        rest = list(Feed(data, CARD, recipe, CPU, workers=workers).batches(1, first=1))
        for (a, x), (b, y) in zip(whole[1:], rest, strict=True):
            assert torch.equal(a, b) and torch.equal(x, y)
    for other in (feed.batches(2), Feed(data, CARD, recipe.changed(seed=1), CPU, workers=0).batches(1)):
        images, labels = next(other)
        assert not torch.equal(images, whole[0][0]) and not torch.equal(labels, whole[0][1])


@pytest.mark.parametrize("base", [QUICK, CIFAR])
def test_small_images_are_the_large_ones_shrunk(base: Recipe) -> None:
    data, recipe = labelled(pixels(30, 3, 12, 10)), base.changed(epochs=4, batch=8, hole=4, pad=2)
    small = Feed(data, CARD, recipe.changed(scales=[0.5, 1.0]), CPU, workers=0)
    large = Feed(data, CARD, recipe, CPU, workers=0)
    for epoch, size in ((0, (6, 5)), (1, (6, 5)), (2, (12, 10)), (3, (12, 10))):
        for (images, labels), (full, same) in zip(small.batches(epoch), large.batches(epoch), strict=True):
            assert images.shape == (8, 3, *size) and torch.equal(labels, same)
            expected = F.interpolate(full, size, mode="bilinear", antialias=True) if size == (6, 5) else full
            assert torch.equal(images, expected)


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    next(Feed(labelled(pixels(30, 3, 12, 10)), CARD, QUICK.changed(pad=2, batch=8), CPU).batches(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_image_files_of_any_size_become_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(8):
        folder = tmp_path / f"class{i % 2}"
        folder.mkdir(exist_ok=True)
        size = (20 + i, 31 - i, 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{i}.png")
    data = load_data(f"folder:{tmp_path}", "train")
    (images, labels), *_ = Feed(data, CARD, IMAGENET.changed(batch=8), CPU, workers=0).batches(0)
    assert images.shape == (8, 3, 12, 10)
    assert sorted(labels.tolist()) == [0] * 4 + [1] * 4
    assert images.std() > 0.2

    # without augmentation it is what evaluation sees, up to the rounding to bytes before a crop without padding
    plain = CIFAR.changed(batch=8, augment=("crop",), pad=0)
    ((images, labels),) = Feed(data, CARD, plain, CPU, workers=0).batches(0)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([prepare(data.images[int(i)][None], CARD, "")[0] for i in order])
    assert (images - expected).abs().max() < 0.5 / 255 / 0.2 + 1e-6

    # the next image, with its label, replaces an unreadable one, or it is an error
    (tmp_path / "class0" / "0.png").write_text("no image")
    ((replaced, found),) = Feed(data, CARD, plain, CPU, workers=0).batches(0)
    bad = order.tolist().index(0)
    assert found.tolist() == labels.tolist()  # 2.png is of the same class
    assert [i for i in range(8) if not torch.equal(images[i], replaced[i])] == [bad]
    assert torch.equal(replaced[bad], replaced[order.tolist().index(1)])
    for workers in (0, 1):
        with (
            pytest.raises(DataError, match=r"0\.png is not a readable image.*datasets check") as raised,
            worker_errors(),
        ):
            list(Feed(data, CARD, plain, CPU, workers=workers, strict=True).batches(0))
        assert "\n" not in str(raised.value)
    (tmp_path / "class0" / "0.png").unlink()
    data = load_data(f"folder:{tmp_path}", "train")
    with pytest.raises(DataError, match="differ in size, but bare has no input size"):
        list(Feed(data, Card(name="bare"), plain.changed(batch=4), CPU, workers=0).batches(0))


def test_an_unreadable_image_is_reported_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for i in range(8):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(np.full((12, 12, 3), 30 * i, dtype=np.uint8)).save(tmp_path / "a" / f"{i}.png")
    (tmp_path / "a" / "3.png").write_bytes(b"no image")
    feed = Feed(load_data(f"folder:{tmp_path}", "train"), CARD, QUICK.changed(batch=8), CPU, workers=0)
    for epoch in range(3):
        list(feed.batches(epoch))
    assert len([line for line in caplog.messages if "3.png" in line]) == 1


def test_held_out_images_are_not_trained_on() -> None:
    data = labelled(pixels(30, 3, 4, 4))
    rest, held_out = hold_out(data, 7, seed=0)
    assert held_out is not None and rest.labels is not None and held_out.labels is not None
    assert (len(rest), len(held_out)) == (23, 7)
    assert sorted([*rest.labels.tolist(), *held_out.labels.tolist()]) == list(range(30))
    for part in (rest, held_out):
        assert part.labels is not None
        assert all(torch.equal(part.images[i], data.images[int(label)]) for i, label in enumerate(part.labels))
    assert hold_out(data, 0, seed=0) == (data, None)
    with pytest.raises(Exception, match="30 of the 30 images of random cannot be held out"):
        hold_out(data, 30, seed=0)


def test_neighbouring_seeds_are_unrelated() -> None:
    assert len({mixed(seed, epoch, step) for seed in range(8) for epoch in range(8) for step in range(8)}) == 512


def test_held_out_files_are_read_as_files(tmp_path: Path) -> None:
    """Read by several threads, and resized as everywhere else."""
    rng = np.random.default_rng(0)
    for i in range(6):
        (tmp_path / f"class{i % 2}").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (31, 27, 3), dtype=np.uint8)).save(tmp_path / f"class{i % 2}" / f"{i}.png")
    data = load_data(f"folder:{tmp_path}", "train")
    rest, held_out = hold_out(data, 2, seed=0)
    assert held_out is not None
    whole = {Prepared(data, CARD)[i] for i in range(6)}
    for part in (rest, held_out):
        assert isinstance(part.images, FileImages)
        for image in (Prepared(part, CARD)[i] for i in range(len(part))):
            assert any(torch.equal(image, other) for other in whole)
