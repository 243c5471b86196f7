"""The summary in words for a manager."""

from collections.abc import Mapping, Sequence
from typing import Any

from spikecal.analysis.measures import MAP

Facts = Mapping[str, Any]


def percent(share: float, digits: int = 1) -> str:
    """`91.3 %`; shares are never rounded to 0 or 1."""
    text = f"{100 * share:.{digits}f}"
    if 0 < share < 1 and float(text) in (0.0, 100.0):
        text = f"{100 * share:.{digits + 2}f}"
    return f"{text} %"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds" if round(seconds) != 1 else "1 second"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def steps(T: int) -> str:
    return f"{T} step" if T == 1 else f"{T:,} steps"


def points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def sentences(facts: Facts, several: bool) -> list[str]:
    """The sentences about one network, the most important first."""
    what = "detector with a spiking body" if facts["measure"] == MAP.key else "spiking network"
    subject = f"At {steps(facts['T'])} the {what}"
    if several and facts["source_name"]:
        subject += f" of {facts['source_name']}"
    return [text for text in (_score(facts, subject), _time(facts), _energy(facts), _conversion(facts)) if text]


def _score(facts: Facts, subject: str) -> str:
    score, ann, agreement = facts["score"], facts["ann"], facts["agreement"]
    images = "" if facts["images"] is None else f"{facts['images']:,} {facts['split']} images"
    then = " (measured when it was converted)" if facts["origin"] == "file" else ""
    if score is not None and facts["measure"] == MAP.key:
        half = "" if facts["map50"] is None else f" ({percent(facts['map50'])} at IoU 0.5)"
        text = f"{subject} has a mAP of {percent(score)}{half} on {images}{then}"
        return text + (f"; the original has {percent(ann)}." if ann is not None else ".")
    if score is not None:
        text = f"{subject} is right on {percent(score)} of {images}{then}"
        return text + (f"; the original is right on {percent(ann)}." if ann is not None else ".")
    if agreement is not None:
        return f"{subject} agrees with the original on {percent(agreement)} of {images}{then}; they have no labels."
    return f"{subject} has not been measured: its accuracy is unknown."


def _time(facts: Facts) -> str:
    """The cost of waiting, or why no layer waits despite the request."""
    if facts["waiting"]:
        count = facts["waiting"]
        layers = "1 of its layers waits" if count == 1 else f"{count} of its layers wait"
        after = f"its answer comes after {steps(facts['latency'])}"
        return f"{layers}: {after}, and it takes one image every {steps(facts['interval'])}."
    if facts["search"] is None:
        return ""
    why: str = facts["search"]["why"]
    return f"{why[0].upper()}{why[1:]}."


def _energy(facts: Facts) -> str:
    ratio = facts["energy"]
    if ratio is None:
        return ""
    what = "Its body" if facts["measure"] == MAP.key else "It"
    if ratio <= 1:
        return f"{what} needs about {100 * ratio:.0f} % of the original's energy, by counted operations."
    return f"{what} needs about {ratio:.1f} times the original's energy, by counted operations."


def _conversion(facts: Facts) -> str:
    seconds, images = facts["seconds"], facts["calibration_images"]
    parts = [duration(seconds)] if seconds is not None else []
    kind = "labelled images" if facts.get("labelled") else "unlabelled images"
    kind = "images made from the network itself" if facts["distilled"] else kind
    parts += [f"{images:,} {kind}"] if images else []
    untrained = ", and no training" if facts["optimised"] is False else ""
    return f"Conversion took {' and '.join(parts)}{untrained}." if parts else ""


def headline(networks: Sequence[Facts], near: float) -> Facts:
    """The network to describe first: the fewest steps within `near` points of the original, else the most accurate."""
    known = [n for n in networks if quality(n) is not None]
    if not known:
        return max(networks, key=lambda n: n["T"])
    close = [n for n in known if (gap := behind(n)) is not None and gap <= near / 100 + 1e-9]
    if close:
        return min(close, key=lambda n: (n["T"], -(quality(n) or 0)))
    return max(known, key=lambda n: quality(n) or 0)


def quality(facts: Facts) -> float | None:
    """Its accuracy, or without labels, its agreement with the original."""
    found: float | None = facts["score"] if facts["score"] is not None else facts["agreement"]
    return found


def behind(facts: Facts) -> float | None:
    """How much less accurate it is than the original; None if unknown."""
    if facts["score"] is not None:
        return None if facts["ann"] is None else float(facts["ann"] - facts["score"])
    return None if facts["agreement"] is None else 1 - float(facts["agreement"])
