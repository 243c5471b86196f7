"""What looks wrong, and what to do about it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from spikecal.analysis.measures import MAP
from spikecal.calibration.threshold import MMSE, MaxAct
from spikecal.detection.spiking import IMAGES as DETECTOR_IMAGES
from spikecal.report.source import Source
from spikecal.report.words import Facts, behind, percent, points, quality, steps

SATURATED = 0.05  # share of neurons that fire at every step, of a layer
DEAD, MOSTLY = 0.99, 0.5  # share of neurons that fire for no image
GAP = 5.0  # percentage points behind the ANN
FEW = 4  # times fewer calibration images than the method uses
FEW_TESTED = 100
WORSE = 1.05  # how much a calibrator may raise a layer's error without a note
NOTHING = 1e-6  # a relative error that is just rounding
PLACES, NAMED = 8, 4  # most layers and networks that are listed
PLURAL = {"bias": "biases", "temporal bias": "temporal biases", "potential": "potentials", "threshold": "thresholds"}

Finding = dict[str, Any]
Place = tuple[Facts, dict[str, Any]]  # a network and a layer of it


def findings(sources: Sequence[Source], networks: Sequence[Facts], near: float) -> list[Finding]:
    """Warnings, then notes; each with `title`, `text`, `todo` and the `places` concerned."""
    originals = sorted({n["original"] for n in networks})
    found: list[Finding | None] = [
        _dead(sources, networks),
        _saturated(sources, networks),
        _few_images(sources),
        *(_gap([n for n in networks if n["original"] == of], near) for of in originals),
        _mostly_dead(networks),
        _worse(networks),
        _remarks(networks),
        _analog(networks),
        _energy(networks),
        _few_tested(networks),
        _seen(networks),
    ]
    there = [finding for finding in found if finding is not None]
    return sorted(there, key=lambda finding: finding["level"] != "warning")


def _finding(level: str, title: str, text: str, todo: str, places: Iterable[Place] = ()) -> Finding:
    named = [{"network": network["id"], "label": network["label"], "layer": row["name"]} for network, row in places]
    return {"level": level, "title": title, "text": text, "todo": todo, "places": named[:PLACES], "count": len(named)}


def _where(networks: Sequence[Facts], holds: Callable[[dict[str, Any]], bool]) -> list[Place]:
    """Layers for which the test holds; of several networks, those with the most steps first."""
    order = sorted(networks, key=lambda n: -n["T"])
    return [(n, row) for n in order for row in n["layers"] if row["kind"] != "joint" and holds(row)]


def _layers(places: Sequence[Place]) -> str:
    names = dict.fromkeys(row["name"] for _, row in places)
    return "1 layer" if len(names) == 1 else f"{len(names)} layers"


def _named(some: Sequence[Facts], networks: Sequence[Facts]) -> str:
    if len(some) > NAMED:
        return f"{len(some)} of {len(networks)} networks"
    return "; ".join(n["label"] for n in some)


def _share(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    return 0.0 if value is None else float(value)


def _dead(sources: Sequence[Source], networks: Sequence[Facts]) -> Finding | None:
    places = _where(networks, lambda row: _share(row, "dead") >= DEAD)
    if not places:
        return None
    silent = {
        (n["source"], row["name"])
        for n, row in places
        if (h := sources[n["source"]].histograms.get(row["name"])) is not None and float(h.maximum) == 0
    }
    alike = all((n["source"], row["name"]) in silent for n, row in places)
    if alike:
        todo = (
            "The original is also silent there on the calibration images, so conversion lost nothing: the layer "
            "can be pruned, or the calibration images are not of the kind that excites it."
        )
    else:
        todo = (
            "Convert with more steps, or with --rounding potential, which lets neurons fire earlier; check that the "
            "images are normalised as in training."
        )
    never = "never" if all(_share(row, "dead") == 1 for _, row in places) else "hardly ever"
    title = f"{_layers(places)} {never} fire{'s' if _layers(places) == '1 layer' else ''}"
    least = min(_share(row, "dead") for _, row in places)
    text = "No neuron there fires for any image, so these layers pass on nothing."
    if least < 1:
        text = (
            f"At least {percent(least)} of the neurons there fire for no image: these layers pass on hardly anything."
        )
    return _finding("warning", title, text, todo, places)


def _mostly_dead(networks: Sequence[Facts]) -> Finding | None:
    places = _where(networks, lambda row: MOSTLY <= _share(row, "dead") < DEAD)
    if not places:
        return None
    worst = max(_share(row, "dead") for _, row in places)
    text = f"Up to {percent(worst, 0)} of a layer's neurons fire for none of the images."
    todo = "With more steps, weak neurons fire as well. If the original is equally silent there, nothing is lost."
    return _finding("note", f"Most neurons are silent in {_layers(places)}", text, todo, places)


def _saturated(sources: Sequence[Source], networks: Sequence[Facts]) -> Finding | None:
    places = _where(networks, lambda row: _share(row, "saturated") > SATURATED)
    if not places:
        return None
    worst = max(_share(row, "saturated") for _, row in places)
    text = (
        f"Up to {percent(worst)} of a layer's neurons fire at every step and cannot signal larger "
        f"values. Above {percent(SATURATED, 0)}, that costs accuracy."
    )
    todo = f"{_higher(sources[n['source']] for n, _ in places)}onvert with more steps."
    return _finding("warning", f"Saturated neurons in {_layers(places)}", text, todo, places)


def _higher(sources: Iterable[Source]) -> str:
    """How to raise thresholds, if that was not done; empty if they are already the highest."""
    made = [source.pipeline.threshold for source in sources if source.pipeline is not None]
    ways = []
    if not made or not all(isinstance(threshold, MaxAct) for threshold in made):
        lower = not made or any(isinstance(threshold, MMSE) for threshold in made)
        ways.append("--threshold percentile" if lower else "--threshold maxact")
    if not made or any(threshold.per == "layer" for threshold in made):
        ways.append("--per channel")
    return f"Raise the thresholds ({', or '.join(ways)}), or c" if ways else "C"


def _few_images(sources: Sequence[Source]) -> Finding | None:
    few = []  # share of what the method uses, number, of what
    for source in sources:
        if source.calibration_images is None or source.pipeline is None:
            continue
        parts = [("thresholds", MMSE().images, source.pipeline.threshold.images)]
        parts += [(PLURAL.get(c.label, c.label), type(c).images, c.images) for c in source.pipeline.calibrators]
        if source.detector:  # whose images are large: the method uses fewer, for every part
            parts = [(part, min(whole, DETECTOR_IMAGES), asked) for part, whole, asked in parts]
        for part, whole, asked in parts:
            count = min(asked, source.calibration_images)
            if count * FEW < whole:
                few.append((count / whole, count, whole, f"the {part} of {source.name}"))
    if not few:
        return None
    _, count, whole, what = min(few)
    return _finding(
        "warning",
        "Few calibration images",
        f"For {what} there {'was 1 image' if count == 1 else f'were {count:,} images'}, but the method uses {whole:,}. "
        f"So few miss rare values such as large activations.",
        "Convert again with more images of the kind the network will see; they need no labels.",
    )


def _gap(networks: Sequence[Facts], near: float) -> Finding | None:
    """The best network with the same source model: others are no remedy."""
    far = [n for n in networks if (gap := behind(n)) is not None and gap > GAP / 100]
    if not far:
        return None
    worst = max(far, key=lambda n: behind(n) or 0)
    close = [n for n in networks if (gap := behind(n)) is not None and gap <= near / 100 + 1e-9]
    names = _named(far, networks)
    text = f"{names}: up to {points(behind(worst) or 0)} fewer correct answers than the original."
    if worst.get("measure") == MAP.key:
        text = f"{names}: mAP is up to {points(behind(worst) or 0)} below the original's."
    elif worst["score"] is None:
        text = f"{names}: up to {points(behind(worst) or 0)} of the answers differ from the original's."
    if close:
        best = min(close, key=lambda n: (n["T"], -(quality(n) or 0)))
        todo = f"Use {best['label']}, which is within {near:g} point of it, or convert with --pipeline acp."
    else:
        wait = "" if any(n["waiting"] for n in far) else "--latency 2x (layers wait), "
        more = f"Convert with more steps (-T), {wait}--pipeline acp"
        todo = f"{more}, or with calibration images of the kind it is tested on."
    return _finding("warning", f"More than {GAP:g} points behind the original", text, todo)


def _worse(networks: Sequence[Facts]) -> Finding | None:
    def raised(row: dict[str, Any]) -> bool:
        values = [value for _, value in row.get("steps", ())]
        return any(b > max(WORSE * a, NOTHING) for a, b in pairwise(values))

    order = sorted(networks, key=lambda n: -n["T"])
    places = [(n, row) for n in order for row in n["layers"] if raised(row)]
    if not places:
        return None
    text = "A calibrator increased the error of the layer; later layers may make up for it."
    todo = "Give that calibrator more images, or compare with another pipeline on held-out images."
    return _finding("note", f"Calibration raised the error of {_layers(places)}", text, todo, places)


def _remarks(networks: Sequence[Facts]) -> Finding | None:
    order = sorted(networks, key=lambda n: -n["T"])
    places = [(n, row) for n in order for row in n["layers"] if row.get("notes")]
    if not places:
        return None
    text = f"{places[0][1]['name']}: {places[0][1]['notes'][0]}."
    todo = "Nothing to do. Open the rows of these layers for details."
    return _finding("note", f"Remarks by calibration on {_layers(places)}", text, todo, places)


def _energy(networks: Sequence[Facts]) -> Finding | None:
    dear = [n for n in networks if n["energy"] is not None and n["energy"] > 1]
    if not dear:
        return None
    even = min((n["break_even"] for n in dear if n["break_even"] is not None), default=None)
    names = _named(dear, networks)
    text = f"{names}: costs more energy than the original, by counted operations."
    if even is not None and even >= 1:
        text += f" At these firing rates, both cost the same at about {steps(round(even))}."
    read = [(n, row) for n in dear for row in n["layers"] if row.get("analog")]
    if sum(_share(row, "energy") for n, row in read if n is dear[0]) >= 0.5:  # fewer steps would help little
        todo = "Convert with --joints signed: most energy goes to layers that multiply currents at every step."
        return _finding("warning", "No energy is saved", text, todo, read)
    todo = "Use fewer steps, or stop as soon as the answer is stable."
    if even is not None and even < 1:
        todo = (
            "Fewer steps do not help: one step of spikes costs more than the layers that read it cost in the original."
        )
    return _finding("warning", "No energy is saved", text, todo)


def _analog(networks: Sequence[Facts]) -> Finding | None:
    order = sorted(networks, key=lambda n: -n["T"])
    places = [(n, row) for n in order for row in n["layers"] if row.get("analog")]
    if not places:
        return None
    text = (
        "They read linear values as currents that change from step to step, so they cost all their multiply-adds at "
        "every step, and a chip that sends spikes cannot run them."
    )
    todo = "Convert with --joints signed, which sends these values as spikes of signed neurons."
    return _finding("warning", f"Weighted layers in {_layers(places)} read no spikes", text, todo, places)


def _few_tested(networks: Sequence[Facts]) -> Finding | None:
    few = [n for n in networks if n["images"] is not None and n["images"] < FEW_TESTED and quality(n) is not None]
    if not few:
        return None
    count = min(n["images"] for n in few)
    text = f"Accuracy was measured on {count:,} images: a single answer is worth {points(1 / count)}."
    if all(n.get("measure") == MAP.key for n in few):
        text = f"mAP was measured on {count:,} images: a difference of a point may be chance."
    return _finding("note", "Few test images", text, "Give more with --images, or another dataset with --data.")


def _seen(networks: Sequence[Facts]) -> Finding | None:
    if not any(n["split"] == "calibration" for n in networks):
        return None
    text = "The dataset has no test images, so accuracy was measured on images that calibration saw."
    return _finding("note", "Measured on calibration images", text, "Give held-out images with --data.")
