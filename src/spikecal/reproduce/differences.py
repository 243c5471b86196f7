"""Sentences about differences from the paper."""

from collections.abc import Sequence
from typing import Any

from spikecal.analysis.measures import from_stored
from spikecal.calibration.calibrators import Weights
from spikecal.pipeline import Pipeline
from spikecal.reproduce.cells import Cell, machine, same_for_every_seed
from spikecal.reproduce.paper import blocks_of, own_lines, paper_tables, same_blocks
from spikecal.reproduce.run import Plan
from spikecal.reproduce.sizes import PAPER
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.tables import SOURCES

Found = dict[Cell, dict[str, Any]]


def differences(plan: Plan, networks: Sequence[dict[str, Any]], found: Found) -> list[str]:
    """Sentences about differences from the paper: in the configuration, in the ANNs, and by unreadable images."""
    return [*_configured(plan), *_of_anns(plan, networks), *_left_out(found)]


def _of_anns(plan: Plan, networks: Sequence[dict[str, Any]]) -> list[str]:
    """The accuracy that figures start from, where the paper's stand beside ours."""
    said = []
    for network in (n for n in networks if "ann" in n):
        for block in same_blocks(plan.table.name, network["model"], network["data"]):
            anns = {line.get("ann", block["ann"]) for line in own_lines(block, network["bn"])} - {None}
            here = " and ".join(
                f"{ann['score']:.2f} % on {ann['images']:,} images" for ann in map(from_stored, network["ann"])
            )
            theirs = f"the paper's {block['network']} has"
            said += [f"ANN: {network['model']} has {here}; {theirs} {ann:.2f} %." for ann in anns]
    return said


def _configured(plan: Plan) -> list[str]:
    blocks = blocks_of(plan.table.name)
    theirs = sorted({f"{b['network']} on {b['data']}" for b in blocks})
    said = []
    for subject in plan.subjects.values():
        said += _of_network(plan, subject, theirs, blocks)
    if plan.table.kind == "space":
        return [*said, "A bias belongs to a layer of neurons here, so a shortcut's convolution has none."]
    datasets = list({s.data: s for s in plan.subjects.values()}.values())
    for subject in datasets:
        said += _of_data(plan, subject)
    said += [f"{SOURCES[name]}: {about}." for name, about in sources(plan).items()]
    said += list(dict.fromkeys(text for s in plan.subjects.values() for text in s.absent))
    said += _of_size(plan)
    return said


def _left_out(found: Found) -> list[str]:
    most = max((one.get("unreadable", 0) for one in found.values()), default=0)
    if not most:
        return []
    return [f"Unreadable images were left out, at most {most} per cell: `spikecal datasets check` lists them."]


def sources(plan: Plan) -> dict[str, str]:
    """The sources of calibration images; with several networks, those of each."""
    if not plan.table.sources:
        return {}
    found: dict[str, list[str]] = {}
    for subject in plan.subjects.values():
        for name, source in subject.sources.items():
            found.setdefault(name, []).append(source.about)
    return {name: "; ".join(dict.fromkeys(abouts)) for name, abouts in found.items()}


def _of_network(plan: Plan, subject: Subject, theirs: Sequence[str], blocks: list[dict[str, Any]]) -> list[str]:
    said = []
    on = f" on {subject.data}" if subject.data else ""
    if blocks and not any(subject.spec in block["same"]["models"] for block in blocks):
        said.append(f"Network: {subject.spec}{on}; the paper's table has {', '.join(theirs)}.")
    if subject.bn not in plan.table.bn:
        has, wanted = ("has", "without") if subject.bn else ("has no", "with")
        said.append(f"{subject.spec} {has} BN; the paper's table is about networks {wanted} BN.")
    said += subject.differences()
    if not subject.trained and plan.table.kind == "time":
        said.append(f"{subject.spec} has random weights: its time is measured; its accuracy would mean nothing.")
    return said


def _of_many_steps(plan: Plan) -> list[str]:
    """What is reduced for long runs."""
    table, sizes, said = plan.table, plan.sizes, []
    for T in (T for T in plan.T if sizes.is_long(table, T)):
        stands = f" stands for the paper's T≥{table.long}" if table.long is not None and T >= table.long else ""
        words = f"T={T}{stands}: {sizes.long_seeds} seed"
        if sizes.long_images is not None:
            words += f", {sizes.long_images:,} test images"
        measured = [row.pipeline for row in table.rows if sizes.has(row.pipeline, T)]
        if any(c.images > sizes.long_calibration for p in measured for c in p.fixed.calibrators):
            words += f", calibrated on {sizes.long_calibration:,} images"
        said.append(words + ".")
    left = [row.label for row in table.rows if not all(sizes.has(row.pipeline, T) for T in plan.T)]
    if left:
        said.append(f"{', '.join(left)}: up to T={sizes.weights_to}; larger T were not measured, and cells are empty.")
    return said


def _of_data(plan: Plan, subject: Subject) -> list[str]:
    count, tested = map(len, subject.images)
    rows = [plan.sizes.of(row.pipeline, plan.table, 1).fixed for row in plan.table.rows]
    most = max(pipeline.images for pipeline in rows)
    said = [f"Images: {subject.about}."] if subject.about else []
    if count <= most:
        chosen = _chosen(rows, count)
        said.append(
            f"Calibration: {subject.data} has {count:,} training images, all used for thresholds"
            + (f"; seeds choose {chosen}." if chosen else ".")
        )
    else:
        said.append(f"Calibration: seeds choose {most:,} of the {count:,} training images of {subject.data}.")
    if plan.table.measures and any(same_for_every_seed(pipeline, count) for pipeline in rows):
        said.append("Rows without calibration have no deviation: every seed gives the same thresholds.")
    if not plan.table.measures:
        return said
    asked = plan.sizes.images
    if all(plan.sizes.is_long(plan.table, T) for T in plan.T):  # `_of_size` covers that
        return said
    if asked is not None and asked < tested:
        said.append(f"Test: a fixed {asked:,} of the {tested:,} test images of {subject.data}.")
    elif subject.data == "demo":
        said.append(f"Test: {tested:,} of the 10,000 test images of CIFAR-10.")
    return said


def _chosen(rows: Sequence[Pipeline], available: int) -> str:
    """What a seed decides if thresholds see all images: `32 or 64 for bias`."""
    calibrators = [c for pipeline in rows for c in pipeline.calibrators]
    fewer = sorted({(c.label, c.images) for c in calibrators if c.images < available})
    labels = dict.fromkeys(label for label, _ in fewer)
    said = [f"{' or '.join(f'{n:,}' for of, n in fewer if of == label)} for {label}" for label in labels]
    if any(isinstance(c, Weights) for c in calibrators):
        said.append(f"{'and ' if said else ''}the minibatches of weights calibration")
    return ", ".join(said)


def _of_size(plan: Plan) -> list[str]:
    table, sizes = plan.table, plan.sizes
    learned = any(isinstance(c, Weights) for row in table.rows for c in row.pipeline.fixed.calibrators)
    short = not plan.T or any(not sizes.is_long(table, T) for T in plan.T)
    said = []
    if (missing := [T for T in table.T if T not in plan.T]) and table.name != "samples":  # its T is our choice anyway
        said.append(f"Not measured: T={', '.join(map(str, missing))}.")
    few = ", by Adam at 1e-3, not SGD at 1e-5" if sizes.iterations < PAPER.iterations else ""
    if learned and (sizes.iterations, sizes.batch) != (PAPER.iterations, PAPER.batch):
        said.append(
            f"Weights calibration: {sizes.iterations:,} iterations per layer of {sizes.batch} images"
            f"{few}; the paper has {PAPER.iterations:,}, its code {PAPER.batch} images per iteration."
        )
    if table.own_T:
        if own := [T for T in plan.T if f"T={T}" not in paper_tables()[table.name]["columns"]]:
            said.append(f"T={', '.join(map(str, own))}: not in the paper's table.")
    if (most := table.subject.most_images) is not None:
        if (fewer := min(sizes.weights, sizes.calibration or most)) < most:
            said.append(f"Calibration: {fewer} images for all its parts; the paper has {most}.")
    elif sizes.calibration is not None and not table.own_images:
        said.append(f"Calibrators: from at most {sizes.calibration:,} images each; thresholds from all.")
    elif learned and short and not table.own_images and sizes.weights < PAPER.weights:
        said.append(f"Weights calibration: from {sizes.weights:,} images; the paper has {PAPER.weights:,}.")
    if table.kind == "time":
        here = machine()
        said.append(f"Machine: {here['processor']}, threads: {here['threads']}; the paper's are in its notes.")
        said.append(f"Runs: {sizes.seeds}; the paper has {PAPER.seeds}.")
    elif short and sizes.seeds != PAPER.seeds:
        said.append(f"Seeds: {sizes.seeds}; the paper has {PAPER.seeds}.")
    said += _of_many_steps(plan)
    if table.name == "samples":
        said.append(f"T={', '.join(map(str, plan.T))} is our choice: the paper does not state its T.")
    return said
