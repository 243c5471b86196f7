"""ImageNet's layouts: class folders, parts of them, and the flat validation set with its lists."""

from pathlib import Path

import pytest
from PIL import Image

from spikecal.data.sources import load_data
from spikecal.errors import DataError

IDS = [f"n{i:08}" for i in range(1000)]
FILE = "ILSVRC2012_val_0000000"
LISTS = [  # of classes 65, 970 and 0 for the images 1, 2 and 4
    ("val.txt", [f"{FILE}2.JPEG 970", f"{FILE}1.JPEG 65", f"val/{FILE}4.JPEG 0", ""]),
    ("val.txt", [f"{FILE}1.JPEG n00000065", f"{FILE}2.JPEG n00000970", f"{FILE}4.JPEG n00000000"]),
    ("imagenet_2012_validation_synset_labels.txt", ["n00000065", "n00000970", "n00000001", "n00000000", ""]),
    (
        "LOC_val_solution.csv",
        ["ImageId,PredictionString", f"{FILE}4,n00000000 85 1 499 272 ", f"{FILE}1,n00000065 1 1 2 2 n00000001 1 1 2 2",
         f"{FILE}2,n00000970 1 1 2 2"],
    ),
]  # fmt: skip


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 5)).save(path)


class TestImageNet:
    def root(self, tmp_path: Path, split: str = "val", classes: tuple[int, ...] = (3, 0, 999)) -> Path:
        for name in IDS:
            (tmp_path / split / name).mkdir(parents=True)
        for i in classes:
            picture(tmp_path / split / IDS[i] / f"{IDS[i]}_1.JPEG")
        return tmp_path

    def flat(self, tmp_path: Path, numbers: tuple[int, ...] = (1, 2, 4)) -> Path:
        for i in numbers:
            picture(tmp_path / "val" / f"ILSVRC2012_val_{i:08}.JPEG")
        return tmp_path

    def labels(self, root: Path, split: str = "test") -> list[int]:
        data = load_data(f"imagenet:{root}", split)
        assert data.labels is not None
        return data.labels.tolist()

    def test_sorted_ids_are_the_classes(self, tmp_path: Path) -> None:
        root = self.root(tmp_path / "imagenet")
        data = load_data("imagenet", "test", tmp_path)
        assert data.labels is not None
        assert data.labels.tolist() == [0, 3, 999]
        assert data.classes == tuple(IDS)
        with pytest.raises(DataError, match="there is no folder .*train"):
            load_data(f"imagenet:{root}", "train")

    def test_a_part_is_numbered_as_in_the_whole(self, tmp_path: Path) -> None:
        self.root(tmp_path, "train")
        picture(tmp_path / "val" / IDS[7] / "1.JPEG")
        picture(tmp_path / "val" / IDS[500] / "1.JPEG")
        assert self.labels(tmp_path) == [7, 500]

    def test_a_part_alone_needs_a_list_of_the_whole(self, tmp_path: Path) -> None:
        for name in ("n01443537", "n15075141"):  # goldfish, toilet tissue: 1 and 999 for everyone
            picture(tmp_path / "val" / name / "1.JPEG")
        assert self.labels(tmp_path) == [1, 999]
        picture(tmp_path / "val" / "n00000000" / "1.JPEG")
        with pytest.raises(DataError, match="3 classes, but ImageNet has 1,000"):
            self.labels(tmp_path)

    def test_other_folders_are_not_imagenet(self, tmp_path: Path) -> None:
        picture(tmp_path / "val" / "cats" / "1.JPEG")
        with pytest.raises(DataError, match="a folder 'cats'"):
            self.labels(tmp_path)

    def test_flat_without_a_list_says_what_to_do(self, tmp_path: Path) -> None:
        self.flat(tmp_path)
        with pytest.raises(DataError, match=r"3 images but no class folders: sort them .* val\.txt"):
            self.labels(tmp_path)
        (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("490\n361\n171\n822\n")
        with pytest.raises(DataError, match="numbers classes in a different order"):
            self.labels(tmp_path)

    @pytest.mark.parametrize("place", ["", "val"])
    @pytest.mark.parametrize(("name", "lines"), LISTS)
    def test_flat_with_the_usual_lists(self, tmp_path: Path, name: str, lines: list[str], place: str) -> None:
        self.flat(tmp_path)
        for wordnet in IDS:
            (tmp_path / "train" / wordnet).mkdir(parents=True)
        (tmp_path / place / name).write_text("\n".join(lines))
        assert self.labels(tmp_path) == [65, 970, 0]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("ILSVRC2012_val_00000001.JPEG 5\n", "no class for .*00000002"),
            ("ILSVRC2012_val_00000001 1000\nILSVRC2012_val_00000002 1\nILSVRC2012_val_00000004 2\n", "a class '1000'"),
            ("ILSVRC2012_val_00000001 cat\nILSVRC2012_val_00000002 1\nILSVRC2012_val_00000004 2\n", "a class 'cat'"),
        ],
    )
    def test_lists_that_do_not_fit(self, tmp_path: Path, content: str, reason: str) -> None:
        (self.flat(tmp_path) / "val.txt").write_text(content)
        with pytest.raises(DataError, match=reason):
            self.labels(tmp_path)
