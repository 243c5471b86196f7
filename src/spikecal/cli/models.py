"""`spikecal models`: the networks that have a name."""

from spikecal.cli.console import show_json, show_table
from spikecal.cli.options import Json


def models(json: Json = False) -> None:
    """List the networks that have a name."""
    from spikecal.zoo.models import ZOO
    from spikecal.zoo.packages import PACKAGES

    if json:
        facts = {
            name: {"about": entry.about, "weights": entry.card.weights is not None, **entry.card.to_dict()}
            for name, entry in ZOO.items()
        }
        show_json({"models": facts, "packages": list(PACKAGES)})
        return
    rows = []
    for name, entry in ZOO.items():
        height, width = entry.card.size or (0, 0)
        weights = "embedded" if entry.card.weights else "give --weights"
        rows.append((name, f"{height}×{width}", str(entry.classes), weights, entry.about))
    show_table(
        "",
        ("name", ">input", ">classes", "weights", "about"),
        rows,
        f"Also {', '.join(f'{name}:NAME' for name in PACKAGES)} (with that package installed), file.py:function and "
        f"module:function.",
    )
