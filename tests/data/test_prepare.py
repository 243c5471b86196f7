"""Images as a card says: sizes, crops, normalisation."""

import pytest
import torch

from spikecal.data.card import Card
from spikecal.data.prepare import Loader, Prepared, prepare
from spikecal.data.sources import Data
from spikecal.errors import ConfigError, DataError

CARD = Card(name="net", size=(4, 4), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.5))


def test_normalisation_is_the_closed_form() -> None:
    images = torch.randint(0, 256, (5, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = (images.double() / 255 - torch.tensor(CARD.mean).view(3, 1, 1)) / torch.tensor(CARD.std).view(3, 1, 1)
    torch.testing.assert_close(prepare(images, CARD, "x").double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(prepare(images.float() / 255, CARD, "x").double(), expected, atol=1e-5, rtol=1e-5)


def test_without_mean_pixels_stay_as_they_are() -> None:
    images = torch.randn(2, 3, 6, 6)
    assert torch.equal(prepare(images, Card(name="any"), "x"), images)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 12), (12, 8), (3, 3), (5, 4), (4, 9), (1, 50)])
def test_every_size_is_fitted(height: int, width: int) -> None:
    assert prepare(torch.rand(2, 3, height, width), CARD, "x").shape == (2, 3, 4, 4)


def test_crop_is_central() -> None:
    card = Card(name="net", size=(2, 2), crop=0.5)  # scale 1, so only the crop acts
    image = torch.arange(16.0).view(1, 1, 4, 4).expand(-1, 3, -1, -1)
    assert prepare(image, card, "x")[0, 0].tolist() == [[5, 6], [9, 10]]


def test_grey_is_repeated_and_other_channels_refused() -> None:
    grey = prepare(torch.full((1, 1, 4, 4), 0.5), CARD, "x")
    assert grey.shape == (1, 3, 4, 4)
    with pytest.raises(DataError, match="3 channels, but grey takes 1"):
        prepare(torch.rand(1, 3, 4, 4), Card(name="grey", mean=(0.5,), std=(1.0,)), "x")


def test_normalised_images_are_not_normalised_again() -> None:
    with pytest.raises(DataError, match="leave normalisation"):
        prepare(torch.randn(8, 3, 4, 4) * 2, CARD, "x")


def test_floats_somewhat_outside_get_a_line(caplog: pytest.LogCaptureFixture) -> None:
    images = torch.rand(4, 3, 4, 4)
    Prepared(Data(name="d", images=images), CARD)
    assert caplog.text == ""
    images[0, 0, 0, 0] = 1.2  # as bicubic filters leave them
    Prepared(Data(name="d", images=images), CARD)
    assert "these range from" in caplog.text
    with pytest.raises(DataError, match="leave normalisation"):
        Prepared(Data(name="d", images=images * 255), CARD)


def test_floats_for_a_network_without_a_card_get_a_line_beyond_what_is_normal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    card = Card(name="bare")
    normalised = torch.linspace(-3, 3, 48).view(1, 3, 4, 4)
    assert torch.equal(Prepared(Data(name="d", images=normalised), card)[0], normalised[0])
    assert caplog.text == ""
    Prepared(Data(name="d", images=normalised.abs() * 80), card)
    assert "d: images range from" in caplog.text


def test_batches_equal_single_images_and_keep_labels() -> None:
    images = torch.randint(0, 256, (7, 3, 9, 5), dtype=torch.uint8)
    data = Data(name="d", images=images, labels=torch.arange(7))
    lazy = Data(name="d", images=list(images), labels=torch.arange(7))  # type: ignore[arg-type]
    for of in (data, lazy):
        batches = list(Loader(of, CARD, 3))
        assert [len(x) for x, _ in batches] == [3, 3, 1]
        assert torch.cat([y for _, y in batches]).tolist() == list(range(7))
        torch.testing.assert_close(
            torch.cat([x for x, _ in batches]), torch.stack([Prepared(of, CARD)[i] for i in range(7)])
        )
    assert len(Loader(data, CARD, 3)) == 3


def test_sizes_that_differ_need_a_card_with_a_size() -> None:
    data = Data(name="d", images=[torch.rand(3, 4, 4), torch.rand(3, 5, 5)])  # type: ignore[arg-type]
    assert next(Prepared(data, CARD).batches(2))[0].shape == (2, 3, 4, 4)
    with pytest.raises(DataError, match="differ in size"):
        next(Prepared(data, Card(name="any")).batches(2))


def test_accuracy_needs_labels() -> None:
    with pytest.raises(DataError, match="no labels"):
        Loader(Data(name="d", images=torch.rand(2, 3, 4, 4)), CARD, 2)


def test_card_survives_json() -> None:
    import json

    card = Card(
        name="net",
        size=(4, 6),
        mean=(0.5,),
        std=(0.1,),
        crop=0.9,
        interpolation="bicubic",
        classes=("a", "b"),
        data="demo",
    )
    assert Card.from_dict(json.loads(json.dumps(card.to_dict()))) == card
    with pytest.raises(ConfigError):
        Card.from_dict({"nme": "x"})


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": (0.5,)},
        {"mean": (0.5,), "std": (0.0,)},
        {"mean": (0.5,), "std": (1.0, 1.0)},
        {"mean": (float("nan"),), "std": (1.0,)},
        {"crop": 0.0},
        {"interpolation": "lanczos"},
        {"size": (0, 4)},
    ],
)
def test_nonsensical_cards(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Card(name="net", **fields)  # type: ignore[arg-type]
