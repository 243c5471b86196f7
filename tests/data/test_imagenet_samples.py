"""The photographs of bench/imagenet_samples.py: their classes, and the purpose of each."""

from pathlib import Path

import pytest

from scripts import ROOT
from spikecal.data.sources import load_data
from spikecal.errors import ConfigError

SPEC = f"{ROOT / 'bench' / 'imagenet_samples.py'}:photographs"


def test_classes_are_places_of_wordnet_ids_and_no_class_is_in_both_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wnids = [f"n{7 * i:08}" for i in range(1000)]
    for i, wnid in enumerate(wnids):  # names in a different order
        (tmp_path / f"{999 - i:03}_{wnid}.jpg").touch()
    (tmp_path / "README.md").touch()
    monkeypatch.setenv("IMAGENET_SAMPLES", str(tmp_path))
    seen = []
    for split, count in (("train", 500), ("test", 250)):
        data = load_data(SPEC, split)
        assert data.labels is not None and len(data) == count
        paths = data.images.paths  # type: ignore[attr-defined]
        assert [wnids[label] in path for label, path in zip(data.labels.tolist(), paths, strict=True)] == [True] * count
        seen += data.labels.tolist()
    assert len(set(seen)) == 750
    (tmp_path / f"999_{wnids[0]}.jpg").unlink()
    with pytest.raises(ConfigError, match="photographs of 999 classes, not of 1,000"):
        load_data(SPEC, "test")
    monkeypatch.delenv("IMAGENET_SAMPLES")
    with pytest.raises(ConfigError, match="to the folder of the photographs"):
        load_data(SPEC, "test")
