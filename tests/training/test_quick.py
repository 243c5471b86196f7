"""The quick recipe: to the bit the same, whether interrupted or not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spikecal.training.quick import Quick, augment, train
from spikecal.zoo.cifar import ResNet

RECIPE = Quick(epochs=2, batch=64, seed=3)


class Killed(Exception):
    pass


def trained(checkpoint: Path, recipe: Quick = RECIPE, stop_at_call: int | None = None) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (256, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (256,), generator=generator)
    torch.manual_seed(recipe.seed)
    model = ResNet(1, widths=(8, 16, 16))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at_call:
            raise Killed

    handle = model.register_forward_pre_hook(count)
    mean, std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)
    result = train(model, images, labels, mean, std, recipe, checkpoint)
    handle.remove()
    return result


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_resumed_is_uninterrupted_to_the_bit(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole.pt")
    with pytest.raises(Killed):
        trained(tmp_path / "killed.pt", stop_at_call=6)  # in the second epoch, which has four batches
    assert torch.load(tmp_path / "killed.pt", weights_only=True)["epoch"] == 1
    assert same(trained(tmp_path / "killed.pt"), whole)
    assert same(trained(tmp_path / "killed.pt"), whole)  # finished: nothing is left to do
    assert not whole.training
    assert not list(tmp_path.glob("*.part"))


def test_seeds_differ(tmp_path: Path) -> None:
    first = trained(tmp_path / "a.pt", Quick(epochs=1, batch=64, seed=1))
    assert not same(first, trained(tmp_path / "b.pt", Quick(epochs=1, batch=64, seed=2)))


def test_another_recipe_does_not_go_on(tmp_path: Path) -> None:
    trained(tmp_path / "a.pt", Quick(epochs=1, batch=64))
    with pytest.raises(ValueError, match="another recipe"):
        trained(tmp_path / "a.pt", Quick(epochs=2, batch=64))


def test_learns_what_can_be_learned(tmp_path: Path) -> None:
    images = torch.zeros((256, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(256) % 2
    images[labels == 1] = 200
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    one = torch.ones(3, 1, 1)
    train(model, images, labels, 0.5 * one, 0.5 * one, Quick(epochs=5, batch=32, pad=1), tmp_path / "c.pt")
    assert bool((model(images.float() / 127.5 - 1).argmax(1) == labels).all())


def crops(image: Tensor, pad: int) -> list[Tensor]:
    """Every crop and flip there is, by plain indexing."""
    padded = torch.nn.functional.pad(image[None].float(), (pad,) * 4, mode="reflect")[0].to(image.dtype)
    height, width = image.shape[1:]
    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    plain = [padded[:, top : top + height, left : left + width] for top, left in places]
    return plain + [crop.flip(2) for crop in plain]


def test_augmentation_is_a_crop_and_a_flip() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 3, 6, 5), generator=generator, dtype=torch.uint8)
    seen = set()
    for image, changed in zip(images, augment(images, 2, generator), strict=True):
        matches = [i for i, crop in enumerate(crops(image, 2)) if torch.equal(crop, changed)]
        assert matches
        seen.update(matches)
    assert len(seen) == 50  # 5 x 5 places, flipped or not: all occur
