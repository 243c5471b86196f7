"""Datasets and loaders as functions return them: whatever their images are, the same pixels and labels come out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from spikecal.data.card import Card
from spikecal.data.datasets import as_image, from_dataset, from_loader
from spikecal.data.prepare import Loader, Prepared
from spikecal.data.sources import load_data
from spikecal.errors import DataError
from spikecal.vision import vision

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
LABELS = [2, 0, 1, 2, 1, 0]
CARD = Card(name="net", mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.5))
FORMS = {
    "pillow": lambda x: Image.fromarray(x),
    "array": lambda x: x,
    "array, channels first": lambda x: x.transpose(2, 0, 1),
    "array of floats": lambda x: (x / 255).astype(np.float64),
    "tensor": lambda x: torch.from_numpy(x).permute(2, 0, 1),
}
CLASSES = {"int": int, "numpy": np.int64, "tensor": torch.tensor}


class Pictures(Dataset[Any]):
    def __init__(self, form: str = "pillow", label: str = "int") -> None:
        self.form, self.label = FORMS[form], CLASSES[label]

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.form(PIXELS[index]), self.label(LABELS[index])


@pytest.mark.parametrize("label", CLASSES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_inputs(form: str, label: str) -> None:
    data = from_dataset("mine", Pictures(form, label))
    expected = (torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255 - torch.tensor(CARD.mean)[:, None, None]) / (
        torch.tensor(CARD.std)[:, None, None]
    )
    ((images, labels),) = list(Loader(data, CARD, 10))
    torch.testing.assert_close(images, expected)
    assert labels.tolist() == LABELS


def test_a_list_of_pairs_and_a_pair_of_lists() -> None:
    pairs = from_dataset("mine", list(Pictures()))
    lists = from_dataset("mine", [Image.fromarray(x) for x in PIXELS], LABELS)
    assert pairs.labels is not None and lists.labels is not None
    assert pairs.labels.tolist() == lists.labels.tolist() == LABELS
    assert torch.equal(Prepared(pairs, CARD)[3], Prepared(lists, CARD)[3])


def test_torchvisions_folders_and_parts_of_them_keep_their_labels_unread(tmp_path: Path) -> None:
    for i, (x, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        (tmp_path / f"c{label}").mkdir(exist_ok=True)
        Image.fromarray(x).save(tmp_path / f"c{label}" / f"{i}.png")
    folder = vision("torchvision.datasets").ImageFolder(tmp_path)
    data = from_dataset("mine", Subset(folder, [4, 1]))
    assert data.labels is not None and data.labels.tolist() == [folder.targets[4], folder.targets[1]]
    assert torch.equal(data.images[0], as_image("it", folder[4][0]))
    unread = vision("torchvision.datasets").ImageFolder(tmp_path, loader=lambda path: 1 / 0)
    assert torch.equal(from_dataset("mine", unread).labels, torch.tensor(folder.targets))
    renumbered = vision("torchvision.datasets").ImageFolder(tmp_path, target_transform=lambda label: 2 - label)
    found = from_dataset("mine", renumbered)
    assert found.labels is not None and found.labels.tolist() == [2 - label for label in renumbered.targets]


@pytest.mark.parametrize("batch", [1, 4])
def test_loaders(batch: int) -> None:
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    dataset = TensorDataset(images, torch.tensor(LABELS))
    collated = DataLoader(
        Pictures("array"),
        batch,
        collate_fn=lambda items: (np.stack([x for x, _ in items]), [label for _, label in items]),
    )
    for loader in (DataLoader(dataset, batch), DataLoader(ConcatDataset([dataset]), batch), collated):
        data = from_loader("mine", loader)
        assert data.labels is not None and data.labels.tolist() == LABELS
        assert torch.equal(torch.stack([data.images[i] for i in range(6)]), images)


def test_grey_images_of_pillow_have_one_channel() -> None:
    assert as_image("it", Image.new("L", (7, 5), 3)).shape == (1, 5, 7)
    assert as_image("it", Image.new("P", (7, 5))).shape == (3, 5, 7)


def test_through_the_specification(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom PIL import Image\n"
        "class Pictures:\n    def __len__(self): return 3\n"
        "    def __getitem__(self, i): return Image.new('RGB', (4, 5), (i, i, i)), np.int64(i)\n"
        "def make(split):\n    return Pictures()\n"
    )
    data = load_data(f"{tmp_path / 'mine.py'}:make", "train")
    assert data.labels is not None and data.labels.tolist() == [0, 1, 2]
    assert data.images[2].shape == (3, 5, 4) and int(data.images[2].max()) == 2


class Broken(Pictures):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        raise RuntimeError("no disk")


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Broken(), "item 0 raised RuntimeError: no disk"),
        ([], "holds no images"),
        ([("a.png", 0)], "item 0 is a str, not an image"),
        ([(np.zeros((4, 4, 3), np.int64), 0)], "an image of torch.int64"),
        ([(np.zeros((4, 4, 3), np.uint8), "cat")], "a str after its image, not the number of a class"),
        ([(np.zeros((4, 4, 3), np.uint8), 0.5)], "a float after its image"),
        ([(np.zeros((4, 4, 3), np.uint8), -1)], "non-negative integers"),
    ],
)
def test_faults_are_reported(dataset: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        from_dataset("mine", dataset).images[0]
