"""`spikecal models`: the networks that have a name."""

from spikecal.cli.console import show_json, show_table
from spikecal.cli.options import Json


def models(json: Json = False) -> None:
    """List the networks that have a name."""
    from spikecal.zoo.detectors import DETECTORS
    from spikecal.zoo.models import EMBEDDED, ZOO
    from spikecal.zoo.packages import PACKAGES

    if json:
        facts = {
            name: {"about": entry.about, "weights": entry.card.weights is not None, **entry.card.to_dict()}
            for name, entry in ZOO.items()
        }
        detectors = {
            name: {"about": entry.about, "weights": name in EMBEDDED, "labels": entry.labels, "size": entry.size}
            for name, entry in DETECTORS.items()
        }
        show_json({"models": facts, "detectors": detectors, "packages": list(PACKAGES)})
        return
    rows = []
    for name, entry in ZOO.items():
        height, width = entry.card.size or (0, 0)
        weights = "embedded" if entry.card.weights else "give --weights"
        rows.append((name, f"{height}×{width}", str(entry.classes), weights, entry.about))
    for name, detector in DETECTORS.items():
        low, high = detector.size
        weights = "embedded" if name in EMBEDDED else "give --weights"
        rows.append((name, f"{low} to {high}", str(detector.labels - 1), weights, f"detector: {detector.about}"))
    show_table(
        "",
        ("name", ">input", ">classes", "weights", "about"),
        rows,
        f"Also {', '.join(f'{name}:NAME' for name in PACKAGES)} (with that package installed), file.py:function and "
        f"module:function.",
    )
