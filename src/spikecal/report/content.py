"""The content of the page as plain data, from sources and their measurements."""

import math
from collections.abc import Sequence
from typing import Any

from spikecal import __version__
from spikecal.analysis.evaluate import Evaluation
from spikecal.analysis.measures import ACCURACY, MAP
from spikecal.analysis.summary import POINTS
from spikecal.analysis.timing import Timing
from spikecal.report.detections import SCENE_BYTES, Detected, put_scenes
from spikecal.report.findings import findings
from spikecal.report.graph import drawn_graph
from spikecal.report.layers import channels_within, histogram_bars, layer_rows
from spikecal.report.measure import Measured, Samples
from spikecal.report.source import Source, originals_of
from spikecal.report.spikes import Plan, neuron_shapes, outputs_over_time, plan_within, thumbnail, trace
from spikecal.report.words import headline, quality, sentences

LAYER_BYTES, SPIKE_BYTES = 1_500_000, 2_400_000  # room on the page for layers and for spikes
DIGITS = 6  # significant digits of all numbers
OTHERS = 3  # most files that a note lists

Seen = tuple[Source, Measured]
NOTHING = Measured()


def build(seen: Sequence[Seen], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The content of a page about these sources; `notes` say what is missing and why."""
    several = len(seen) > 1
    names = _distinct([source.name for source, _ in seen])
    originals = originals_of([source for source, _ in seen])
    networks: list[dict[str, Any]] = []
    rows = sum(len(source.first.stages) * len(source.networks) for source, _ in seen)
    channels = channels_within(rows, LAYER_BYTES)
    for i, (source, measured) in enumerate(seen):
        for T in sorted(source.networks):
            facts = _facts(source, measured, T)
            late = f", latency {facts['latency']}" if facts["waiting"] else ""
            label = f"{names[i]}, T = {T}{late}" if several else f"T = {T}{late}"
            facts |= {"id": len(networks), "source": i, "source_name": names[i], "label": label}
            facts["original"] = originals[i]
            errors, energy = measured.errors.get(T), measured.energy.get(T)
            facts["layers"] = layer_rows(source, T, errors, measured.against_ann, energy, channels)
            networks.append(facts)
    said = headline([n for n in networks if n["original"] == 0], POINTS)
    scenes = put_scenes([measured.detected for _, measured in seen], networks)
    sets, plan, more = _follow(seen, networks, SPIKE_BYTES if scenes is None else SPIKE_BYTES - SCENE_BYTES)
    content = {
        "version": __version__,
        "title": _title([source for source, _ in seen]),
        "several": several,
        "near": POINTS,
        "any_search": any(n["search"] is not None for n in networks),
        "any_map": any(n["measure"] == MAP.key for n in networks),
        "all_map": all(n["measure"] == MAP.key for n in networks),
        "headline": said["id"],
        "lead": [*sentences(said, several), *_others(names, originals)],
        "sources": [_source(source, measured, name) for (source, measured), name in zip(seen, names, strict=True)],
        "networks": networks,
        "measured": any(quality(n) is not None for n in networks),
        "findings": findings([source for source, _ in seen], networks, POINTS),
        "scenes": scenes,
        "sets": sets,
        "plan": None if plan is None else {"images": plan.images, "neurons": plan.neurons, "grid": plan.grid},
        "notes": [*notes, *(note for _, measured in seen for note in measured.notes), *more, *_heads(seen, networks)],
    }
    return compact(content)


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that tell the sources apart: a second `net.snn` is `net.snn (2)`."""
    found: list[str] = []
    for name in names:
        count = sum(other == name or other.startswith(f"{name} (") for other in found)
        found.append(f"{name} ({count + 1})" if count else name)
    return found


def _others(names: Sequence[str], originals: Sequence[int]) -> list[str]:
    """A sentence about the files with a different source model from the first one's."""
    others = [name for name, of in zip(names, originals, strict=True) if of != 0]
    if not others:
        return []
    shown = ", ".join(others[:OTHERS]) + (f" and {len(others) - OTHERS} more" if len(others) > OTHERS else "")
    return [f"Not comparable with {names[0]}, as they come from a different source model: {shown}."]


def _heads(seen: Sequence[Seen], networks: Sequence[dict[str, Any]]) -> list[str]:
    """What the energy leaves out."""
    counted = {n["source"] for n in networks if n["energy"] is not None}
    return [
        f"{'Pyramid and heads' if source.detector else 'The head'} of {source.name} stayed analog and "
        f"{'are' if source.detector else 'is'} not counted: energy compares the spiking body with the original's."
        for i, (source, _) in enumerate(seen)
        if (source.kept or source.detector) and i in counted
    ]


def _title(sources: Sequence[Source]) -> str:
    return " and ".join(list(dict.fromkeys(source.model for source in sources))[:3])


def _source(source: Source, measured: Measured, name: str) -> dict[str, Any]:
    steps = sorted(source.networks)
    return {
        "name": name,
        "method": source.method,
        "steps": steps,
        "graph": drawn_graph(source.first),
        "histograms": histogram_bars(source.histograms),
        "headless": source.headless,
        "errors_on": None if not measured.errors else measured.errors[steps[0]].images,
        "against_ann": measured.against_ann,
        "detector": source.detector,
    }


def _facts(source: Source, measured: Measured, T: int) -> dict[str, Any]:
    """The figures of one network: measured now, else those in the file."""
    facts: dict[str, Any] = {
        "T": T,
        **_time(source.timing(T)),
        "method": source.method,
        "seconds": source.conversion_seconds(T),
        "calibration_images": _calibration_images(source),
        "distilled": source.distilled,
        "optimised": source.optimised,
        "labelled": source.pipeline is not None and source.pipeline.needs_labels,
        **dict.fromkeys(
            ("score", "agreement", "ann", "curve", "first", "energy", "energy_all", "delayed", "break_even")
        ),
        **dict.fromkeys(("rate", "spikes", "images", "data", "split", "origin", "measure", "map50", "ann50")),
    }
    summary, energy = measured.summary, measured.energy.get(T)
    found = next((e for e in summary.found if e.T == T), None) if summary is not None else None
    if summary is not None and found is not None:
        facts |= _evaluated(found) | {"data": summary.data, "split": summary.split, "origin": "now"}
    elif measured.detected is not None:
        facts |= _precision(measured.detected, T) | {"split": "test", "origin": "now"}
    elif source.measured is not None and T in source.measured["networks"]:
        whole, kept = source.measured, source.measured["networks"][T]
        facts |= {name: whole.get(name) for name in ("data", "split", "images", "ann", "ann50")} | {"origin": "file"}
        facts |= {name: kept.get(name) for name in ("score", "agreement", "map50")}
        facts |= {"energy": kept["energy_ratio"]}
        facts |= {name: kept.get(name) for name in ("spikes", "delayed")}  # files of earlier versions have neither
        facts["measure"] = whole["measure"] if kept["score"] is not None else "agreement"
    if energy is not None:
        facts |= {
            "energy": energy.ratio,
            "energy_all": energy.ratio_with_all,
            "delayed": energy.delayed,
            "break_even": energy.break_even,
        }
        facts["spikes"] = energy.spikes
    if facts["rate"] is None:
        facts["rate"] = _recorded_rate(source, T)
    return facts


def _time(found: Timing) -> dict[str, Any]:
    """When a network answers; the page needs no layers of placements."""
    search = None if found.search is None else found.search.to_dict()
    if search is not None:
        search["tried"] = [{**trial, "waits": sum(trial["waits"].values())} for trial in search["tried"]]
    return {"latency": found.latency, "interval": found.interval, "waiting": len(found.waits), "search": search}


def _evaluated(found: Evaluation) -> dict[str, Any]:
    return {
        "score": found.accuracy[-1] if found.accuracy else None,
        "agreement": found.agreement[-1] if found.agreement else None,
        "ann": found.ann,
        "curve": found.curve,
        "measure": ACCURACY.key if found.accuracy else "agreement",
        "first": found.first_within(POINTS) if found.target is not None and found.agreement else None,
        "rate": found.rate,
        "images": found.images,
    }


def _precision(detected: Detected, T: int) -> dict[str, Any]:
    """A detector's figures, in the same places as a classifier's."""
    analog, spiking = detected.analog, detected.spiking[T]
    return {
        "measure": MAP.key,
        "score": spiking.map,
        "map50": spiking.map50,
        "ann": analog.map,
        "ann50": analog.map50,
        "images": spiking.images,
        "data": detected.data,
    }


def _recorded_rate(source: Source, T: int) -> float | None:
    """Spikes per neuron and step that the last sweep recorded; histograms tell how many neurons a layer has."""
    last = {record.stage: record for record in source.records if record.T == T}  # a later sweep's replaces it
    rates = {name: record.rate for name, record in last.items() if record.rate is not None}
    if not rates or not source.histograms.keys() >= rates.keys():
        return None
    values = {name: int(source.histograms[name].counts.sum()) for name in rates}
    whole = sum(values.values())
    return sum(rate * values[name] for name, rate in rates.items()) / whole if whole else None


def _calibration_images(source: Source) -> int | None:
    if source.pipeline is None or source.calibration_images is None:
        return source.calibration_images
    return min(source.calibration_images, source.pipeline.images)


def _follow(
    seen: Sequence[Seen], networks: Sequence[dict[str, Any]], budget: int
) -> tuple[list[dict[str, Any]], Plan | None, list[str]]:
    """Put the spikes of sample images into the networks' facts; returns the sets of images, the plan and notes."""
    sized = []
    for source, measured in seen:
        if measured.samples is not None:
            shapes = neuron_shapes(source.first, measured.samples.images[0].unsqueeze(0))
            sized += [(T, shapes) for T in source.networks]
    if not sized:
        return [], None, []
    plan = plan_within(sized, budget)
    if plan is None:
        return (
            [],
            None,
            ["These networks are too large to show their spikes on one page: give fewer files or fewer T."],
        )
    known: list[Samples] = []
    for facts in networks:
        source, measured = seen[facts["source"]]
        if measured.samples is None:
            continue
        if not any(samples is measured.samples for samples in known):
            known.append(measured.samples)
        facts["set"] = next(i for i, samples in enumerate(known) if samples is measured.samples)
        facts["traces"] = _traces(source, measured, facts["T"], plan)
    return [_set(samples, plan) for samples in known], plan, []


def _traces(source: Source, measured: Measured, T: int, plan: Plan) -> list[dict[str, Any]]:
    network, samples = source.networks[T], measured.samples
    assert samples is not None
    found = []
    for i, image in enumerate(samples.images[: plan.images]):
        image = image.unsqueeze(0).to(next(network.parameters()).device)
        entry = trace(network, image, plan)
        if measured.classifies:
            label = None if samples.labels is None else samples.labels[i]
            answer = None if measured.answers is None else measured.answers[i]
            entry |= outputs_over_time(network.run(image).outputs[:, 0], (label, answer)) | {"ann": answer}
        found.append(entry)
    return found


def _set(samples: Samples, plan: Plan) -> dict[str, Any]:
    images = samples.images[: plan.images]
    labels: list[int | None] = [None] * len(images) if samples.labels is None else list(samples.labels[: len(images)])
    shown = [
        {"picture": thumbnail(image, samples.card), "label": label} for image, label in zip(images, labels, strict=True)
    ]
    return {"images": shown, "classes": list(samples.classes)}


def compact(value: Any) -> Any:
    """Plain data with few digits, None for numbers that JSON lacks, and text that can be written."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):  # half a character, which JSON may contain, cannot be written
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {key: compact(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [compact(part) for part in value]
    return value
