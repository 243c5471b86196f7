"""The named networks, and the named datasets, which can be fetched."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from spikecal.data.download import Report
from spikecal.data.sets.known import KNOWN, KnownSet
from spikecal.data.sources import data_root
from spikecal.errors import DataError
from spikecal.tasks.outcome import Line, Outcome, Table
from spikecal.zoo.detectors import DETECTORS
from spikecal.zoo.models import EMBEDDED, ZOO
from spikecal.zoo.packages import PACKAGES


def list_models() -> Outcome:
    """List the named networks."""
    models = {
        name: {"about": entry.about, "weights": entry.card.weights is not None, **entry.card.to_dict()}
        for name, entry in ZOO.items()
    }
    detectors = {
        name: {"about": entry.about, "weights": name in EMBEDDED, "labels": entry.labels, "size": entry.size}
        for name, entry in DETECTORS.items()
    }
    rows = []
    for name, entry in ZOO.items():
        height, width = entry.card.size or (0, 0)
        rows.append((name, f"{height}×{width}", str(entry.classes), _weights(bool(entry.card.weights)), entry.about))
    for name, detector in DETECTORS.items():
        low, high = detector.size
        about = f"detector: {detector.about}"
        rows.append((name, f"{low} to {high}", str(detector.labels - 1), _weights(name in EMBEDDED), about))
    others = ", ".join(f"{name}:NAME" for name in PACKAGES)
    caption = f"Also {others} (if that package is installed), file.py:function and module:function."
    table = Table("", ("name", ">input", ">classes", "weights", "about"), rows, caption)
    return Outcome({"models": models, "detectors": detectors, "packages": list(PACKAGES)}, [table])


def _weights(embedded: bool) -> str:
    return "embedded" if embedded else "give --weights"


def list_sets(root: Path | None) -> Outcome:
    """List the named datasets and where they are."""
    root = root or data_root()
    found = {name: _facts(known, root) for name, known in KNOWN.items()}
    columns = ("name", ">train", ">test", "verified", "where, or how to get it", "about")
    rows = [_row(name, facts, root) for name, facts in found.items()]
    caption = "Also folder:PATH (one folder per class), npz:PATH, imagenet:PATH and file.py:function."
    return Outcome(found, [Table(f"Data in {root}", columns, rows, caption)])


def _facts(known: KnownSet, root: Path) -> dict[str, Any]:
    copy = known.find(root)
    return {
        "about": known.about,
        "present": copy is not None,
        "where": str(root if copy is None else copy.where or "the package"),
        "images": None if copy is None or copy.images is None else dict(copy.images),
        "verified": None if copy is None else copy.verified,
        "get": known.how,
    }


def _row(name: str, facts: dict[str, Any], root: Path) -> tuple[str, ...]:
    if not facts["present"]:
        return name, "–", "–", "", facts["get"], facts["about"]
    counts = facts["images"] or {}
    train, test = (f"{counts[split]:,}" if split in counts else "?" for split in ("train", "test"))
    verified = {True: "yes", False: "no: altered", None: ""}[facts["verified"]]
    return name, train, test, verified, facts["where"].removeprefix(f"{root}/"), facts["about"]


def fetch_set(name: str, root: Path | None, report: Report | None) -> Outcome:
    """Fetch a dataset; it appears complete and verified, or not at all. Call again to resume."""
    root = root or data_root()
    if name not in KNOWN:
        raise DataError(f"there is no dataset {name!r}: choose from {', '.join(KNOWN)}")
    known = KNOWN[name]
    there = known.find(root)
    if there is not None and there.verified is False:
        raise DataError(
            f"{there.where} does not match the checksum of {name} as published: delete it and run this again"
        )
    if there is not None:
        return Outcome(_facts(known, root), [Line(f"{name} is already there, in {there.where or 'the package'}")])
    if known.fetch is None:
        raise DataError(f"{name} is not in {root} and cannot be fetched: {known.how}")
    new = not root.exists()
    try:
        known.fetch(root, report)
    except DataError:
        if new:
            with suppress(OSError):  # partial downloads stay, to resume from
                root.rmdir()
        raise
    copy = known.find(root)
    if copy is None or copy.images is None:
        raise DataError(f"{name} was fetched, but is gone from {root}: another program removed it")
    counts = " + ".join(f"{count:,}" for count in copy.images.values())
    return Outcome(_facts(known, root), [Line(f"{name} is in {copy.where}: {counts} images, verified")])
