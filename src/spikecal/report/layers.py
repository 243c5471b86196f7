"""The layers of a network as rows: records of calibration, and measurements on test images."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikecal.analysis.energy import Energy
from spikecal.analysis.errors import LayerErrors, NetworkErrors
from spikecal.calibration.histogram import Histogram, merge_bins
from spikecal.calibration.sweep import StageRecord
from spikecal.graph.joints import analog_readers
from spikecal.graph.ops import Spike
from spikecal.report.source import Source

PARTS = ("input", "flooring", "clipping", "unevenness", "weights")
BARS = 64  # bars of a histogram at most
CHANNELS = (96, 32, 0)  # channels per layer whose rates the page shows, in order of preference
ROW_BYTES, CHANNEL_BYTES = 520, 13  # approximate size of a row and of one of its channels on the page
DEAD_LISTED = 12


def channels_within(rows: int, budget: int) -> int:
    """How many channels per layer there is room for, with `rows` layers."""
    return next((n for n in CHANNELS if rows * (ROW_BYTES + n * CHANNEL_BYTES) <= budget), 0)


def layer_rows(
    source: Source, T: int, errors: NetworkErrors | None, against_ann: bool, energy: Energy | None, channels: int
) -> list[dict[str, Any]]:
    """One row per stage, in running order. Measurements on test images take precedence over records of calibration."""
    records: dict[str, list[StageRecord]] = {}
    for record in source.records:
        if record.T == T:
            records.setdefault(record.stage, []).append(record)
    found = {} if errors is None else {layer.stage: layer for layer in errors.layers}
    costs = _costs(energy)
    rows, windows, analog = [], source.networks[T].windows, set(analog_readers(source.networks[T].graph))
    for stage in windows.stages:
        row: dict[str, Any] = {"name": stage.name, "kind": stage.kind}
        if windows.waits:
            row |= {"waits": windows.waits.get(stage.name, 0), "start": windows.starts[stage.name]}
        if read := [node.name for node in stage.nodes if node.name in analog]:
            row["analog"] = read
        if isinstance(stage.end.op, Spike) and stage.end.op.theta is not None:
            theta = stage.end.op.theta.detach().double()
            row["threshold"] = [float(theta.mean()), float(theta.min()), float(theta.max())]
        row |= _recorded(sorted(records.get(stage.name, []), key=lambda record: record.sweep))
        if stage.name in found:
            row |= _measured(found[stage.name], against_ann, channels)
        if stage.name in costs:
            row["energy"] = costs[stage.name]
        rows.append(row)
    return rows


def _recorded(records: Sequence[StageRecord]) -> dict[str, Any]:
    if not records:
        return {}
    last = records[-1]
    steps = [list(records[0].errors[0])] if records[0].errors else []
    for record in records:  # "before" a second sweep means after the first one
        steps += [list(error) for error in record.errors[1:]]
    facts: dict[str, Any] = {"rate": last.rate, "saturated": last.saturated, "dead": last.dead}
    if steps:
        after = last.errors[-1][1] if last.errors else steps[-1][1]
        facts |= {"steps": steps, "before": steps[0][1], "after": after, "error": after}
    if any(record.notes for record in records):
        facts["notes"] = [note for record in records for note in record.notes]
    return facts


def _measured(layer: LayerErrors, against_ann: bool, channels: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if layer.rate is not None and layer.saturated is not None and layer.dead is not None:
        facts["rate"] = float(layer.rate.mean())
        facts["saturated"] = float(layer.saturated.mean())
        facts["dead"] = float(layer.dead.mean())
        facts["channels"] = _channels(layer.rate, channels)
    if against_ann:
        facts["error"] = layer.share()
        facts["parts"] = [[name, layer.share(name)] for name in PARTS]
        if layer.threshold is None:  # without neurons, the local error is what calibration changed
            facts["parts"] = [["input", layer.share("input")], ["calibration", layer.share("local")]]
    return facts


def _channels(rate: Tensor, room: int) -> dict[str, Any]:
    """Rates of the channels, highest first; if there are many, an evenly spaced selection."""
    order = rate.argsort(descending=True, stable=True)
    chosen = order
    if len(order) > room:
        chosen = order[torch.linspace(0, len(order) - 1, room).round().long()] if room else order[:0]
    silent = torch.nonzero(rate == 0)[:, 0].tolist()
    return {
        "count": len(rate),
        "index": chosen.tolist(),
        "rate": rate[chosen].tolist(),
        "silent": len(silent),
        "silent_first": silent[:DEAD_LISTED],
    }


def _costs(energy: Energy | None) -> dict[str, float]:
    """Each stage's share of the energy of the spiking network."""
    if energy is None or not energy.snn_pj:
        return {}
    costs: dict[str, float] = {}
    for layer in energy.layers:
        costs[layer.stage] = costs.get(layer.stage, 0.0) + layer.snn_pj / energy.snn_pj
    return costs


def histogram_bars(histograms: Mapping[str, Histogram]) -> dict[str, Any]:
    """The ANN's activations of every layer on the calibration images, in at most `BARS` bars up to the maximum."""
    return {name: bars for name, histogram in histograms.items() if (bars := _bars(histogram)) is not None}


def _bars(histogram: Histogram) -> dict[str, Any] | None:
    counts, maximum = histogram.counts[0], float(histogram.maximum)
    total = int(counts.sum())
    if total == 0:
        return None
    facts = {"zeros": int(counts[0]) / total, "maximum": maximum, "values": total}
    if maximum == 0:
        return facts | {"width": 0.0, "counts": []}
    width = float(histogram.edges()[0, 1])
    used = max(1, math.ceil(maximum / width))
    factor = 1 << max(0, math.ceil(math.log2(used / BARS)))
    merged = merge_bins(counts[None, 1:], factor)[0]
    return facts | {"width": width * factor, "counts": merged[: -(-used // factor)].tolist()}
