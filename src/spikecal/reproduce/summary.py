"""From cells to a table: means and deviations, the paper's figures where the setting is its own, claims."""

import json
import math
import statistics
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from spikecal.calibration.calibrators import Weights
from spikecal.reproduce.cells import FIXED, Cell, machine, same_for_every_seed
from spikecal.reproduce.detectors import DetectorSubject
from spikecal.reproduce.run import Plan
from spikecal.reproduce.sizes import DETECTION_IMAGES, PAPER
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.tables import SOURCES, Claim

Found = dict[Cell, dict[str, Any]]
MEBIBYTE, NUMBER = 2**20, 4  # the paper's MB, and bytes of a float


@cache
def paper_tables() -> dict[str, Any]:
    """The paper's figures, as they were transcribed."""
    text = (resources.files("spikecal") / "reproduce" / "paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)["tables"]
    return tables


def summarise(plan: Plan, found: Found) -> dict[str, Any]:
    """Everything a reader of the table needs, as plain data; the same for the same cells."""
    table = plan.table
    networks = [_network(plan, subject, found) for subject in plan.subjects.values()]
    return {
        "table": table.name,
        "title": table.title,
        "about": table.about,
        "kind": table.kind,
        "T": list(plan.T),
        "long": table.long,
        "networks": networks,
        "claims": [judged for claim in table.claims for judged in _judge(plan, claim, networks)],
        "differences": [*differences(plan), *_left_out(found)],
        "settings": {
            **vars(plan.sizes),
            "images_seed": FIXED,
            "pipelines": {row.label: plan.sizes.of(row.pipeline, table, 1).to_dict() for row in table.rows},
            **({"sources": _sources(plan)} if table.sources else {}),
        },
        "machine": machine(),
        "paper": paper_tables()[table.name],
    }


def _network(plan: Plan, subject: Subject | DetectorSubject, found: Found) -> dict[str, Any]:
    own = [cell for cell in plan.cells if cell.model == subject.spec]
    facts: dict[str, Any] = {"model": subject.spec, "bn": subject.bn, "trained": subject.trained, "data": subject.data}
    if plan.table.kind == "space":
        numbers = found[own[0]]
        rows = [
            {"method": r.label, "numbers": numbers[r.label], "mb": numbers[r.label] * NUMBER / MEBIBYTE}
            for r in plan.table.rows
        ]
        return {**facts, "stages": numbers["stages"], "rows": _with_paper(plan, subject, rows)}
    if plan.table.measures:
        anns = [found[cell] for cell in own if cell.kind == "ann"]
        facts["ann"] = [
            {
                "images": a["images"],
                "accuracy": 100 * a["accuracy"],
                **({"map50": 100 * a["map50"]} if "map50" in a else {}),
            }
            for a in anns
        ]
    rows = []
    for row in plan.table.rows:
        columns = {}
        for T in plan.T:
            cells = [cell for cell in own if cell.row == row.label and cell.T == T]
            columns[str(T)] = _column([found[cell] for cell in cells], plan.table.kind)
        rows.append({"method": row.label, "added": row.added, "columns": columns})
    return {**facts, "rows": _with_paper(plan, subject, rows)}


def _column(found: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    if kind == "time":
        return {
            **spread([f["seconds"] for f in found]),
            "passes": statistics.fmean(f["passes"] for f in found),
            "thresholds": statistics.fmean(f["thresholds"] for f in found),
            "images": found[0]["images"],
        }
    rate = statistics.fmean(f["rate"] for f in found)
    column = {**spread([100 * f["accuracy"] for f in found]), "images": found[0]["images"], "rate": rate}
    if kind == "detection":
        column["map50"] = spread([100 * f["map50"] for f in found])
    return column


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, and the standard deviation of a sample (n - 1) where there is more than one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


# -- the paper beside ours -----------------------------------------------------------------------------------------


def _with_paper(plan: Plan, subject: Subject | DetectorSubject, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the paper's figure in each column whose network, data, method and T are the paper's."""
    quoted = paper_tables()[plan.table.name]
    for block in quoted["blocks"]:
        same = block["same"]
        if subject.spec not in same["models"] or (subject.data and subject.data.partition(":")[0] not in same["data"]):
            continue
        if plan.table.kind == "space":
            figures = dict(zip(quoted["columns"], block["rows"][0]["values"], strict=True))
            for row in rows:
                row["paper"] = figures[row["method"]]
            continue
        for line in block["rows"]:
            if "quoted" in line or line.get("bn", block["bn"]) != subject.bn:
                continue
            for row in (row for row in rows if row["method"] == line["method"]):
                for column, figure in zip(quoted["columns"], line["values"], strict=True):
                    T = column.removeprefix("T").lstrip("=≥")
                    if T in row["columns"]:
                        row["columns"][T]["paper"] = figure
    return rows


# -- claims --------------------------------------------------------------------------------------------------------


def _judge(plan: Plan, claim: Claim, networks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claim for every network and T: `seen`, `not seen`, or `level` within what so many images can tell."""
    if claim.better is None:
        return [_bn_claim(claim, plain, with_bn, T) for plain, with_bn in _pairs(networks) for T in plan.T]
    if claim.near is not None:
        return [_near_claim(claim, network) for network in networks if claim.T in plan.T]
    judged = []
    for network in networks:
        rows = {row["method"]: row["columns"] for row in network["rows"]}
        for T in {"all": plan.T, "fewest": [min(plan.T)], "most": [max(plan.T)]}[claim.at]:
            better, worse = rows[claim.better][str(T)], rows[str(claim.worse)][str(T)]
            noise = _spread_of(better, worse)
            if plan.table.kind != "detection":  # whose figure is no share of images
                noise = max(noise, _standard_error(better["mean"], worse["mean"], better["images"]))
            judged.append(_verdict(claim, network["model"], T, better["mean"], worse["mean"], noise))
    return judged


def _pairs(networks: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The same network without and with BN: by their names, and where these say nothing in their order."""
    plain = {n["model"].removesuffix("-nobn"): n for n in networks if not n["bn"]}
    with_bn = [n for n in networks if n["bn"]]
    named = [(plain[n["model"]], n) for n in with_bn if n["model"] in plain]
    return named or list(zip(plain.values(), with_bn, strict=False))


def _bn_claim(claim: Claim, plain: dict[str, Any], with_bn: dict[str, Any], T: int) -> dict[str, Any]:
    """The network with BN keeps less of its ANN's accuracy than the one without."""
    lost, noise = [], []
    for network in (with_bn, plain):
        column = network["rows"][0]["columns"][str(T)]
        ann = next(a["accuracy"] for a in network["ann"] if a["images"] == column["images"])
        lost.append(ann - column["mean"])
        noise.append(_standard_error(ann, column["mean"], column["images"]))
    return _verdict(claim, f"{with_bn['model']}, {plain['model']}", T, lost[0], lost[1], math.hypot(*noise))


def _near_claim(claim: Claim, network: dict[str, Any]) -> dict[str, Any]:
    """The row keeps `near` of the ANN's figure."""
    column = next(row for row in network["rows"] if row["method"] == claim.better)["columns"][str(claim.T)]
    ann = next(a["accuracy"] for a in network["ann"] if a["images"] == column["images"])
    wanted = (claim.near or 0) * ann
    return _verdict(claim, network["model"], claim.T, column["mean"], wanted, _spread_of(column))


def _spread_of(*columns: dict[str, Any]) -> float:
    """The largest standard deviation over seeds."""
    return max(column["std"] or 0.0 for column in columns)


def _verdict(claim: Claim, model: str, T: int, better: float, worse: float, noise: float) -> dict[str, Any]:
    """Within `noise` it is level."""
    ahead = better - worse - claim.margin
    verdict = "level" if abs(ahead) <= noise else "seen" if ahead > 0 else "not seen"
    facts = {"claim": claim.text, "ours": claim.ours, "model": model, "T": T, "verdict": verdict}
    return {**facts, "better": better, "worse": worse, "by": better - worse, "noise": noise}


def _standard_error(one: float, other: float, images: int) -> float:
    """Of the difference of two shares of `images` answers, in points."""
    return 100 * math.sqrt(sum(p * (1 - p) for p in (one / 100, other / 100)) / images)


# -- what differs --------------------------------------------------------------------------------------------------


def differences(plan: Plan) -> list[str]:
    """Sentences on what is not as in the paper, from the configuration."""
    quoted = paper_tables()[plan.table.name]
    theirs = sorted({f"{b['network']} on {b['data']}" for b in quoted["blocks"]})
    said = []
    for subject in plan.subjects.values():
        said += _of_network(plan, subject, theirs, quoted)
    if plan.table.kind == "space":
        return [*said, "A bias belongs to a layer of neurons here, so a shortcut's convolution has none of its own."]
    datasets = list({s.data: s for s in plan.subjects.values()}.values())
    for subject in datasets:
        said += _of_data(plan, subject)
    said += [f"{SOURCES[name]}: {about}." for name, about in _sources(plan).items()]
    said += list(dict.fromkeys(text for s in plan.subjects.values() if isinstance(s, Subject) for text in s.absent))
    said += _of_size(plan)
    return said


def _left_out(found: Found) -> list[str]:
    most = max((one.get("unreadable", 0) for one in found.values()), default=0)
    if not most:
        return []
    return [
        f"Images that cannot be read were left out, {most} at most in a cell: `spikecal datasets check` lists them."
    ]


def _sources(plan: Plan) -> dict[str, str]:
    """What the sources of calibration images are; of several networks, what each has."""
    if not plan.table.sources:
        return {}
    found: dict[str, list[str]] = {}
    for subject in plan.subjects.values():
        for name, source in (subject.sources if isinstance(subject, Subject) else {}).items():
            found.setdefault(name, []).append(source.about)
    return {name: "; ".join(dict.fromkeys(abouts)) for name, abouts in found.items()}


def _of_network(
    plan: Plan, subject: Subject | DetectorSubject, theirs: Sequence[str], quoted: dict[str, Any]
) -> list[str]:
    said = []
    on = f" on {subject.data}" if subject.data else ""
    if not any(subject.spec in block["same"]["models"] for block in quoted["blocks"]):
        said.append(f"Network: {subject.spec}{on}; the paper's table has {', '.join(theirs)}.")
    if subject.bn not in plan.table.bn:
        has, wanted = ("has", "without") if subject.bn else ("has no", "with")
        said.append(f"{subject.spec} {has} BN; the paper's table is about networks {wanted} BN.")
    if not subject.trained and plan.table.kind == "time":
        said.append(f"{subject.spec} has random weights: its time is measured, its accuracy would mean nothing.")
    return said


def _of_data(plan: Plan, subject: Subject | DetectorSubject) -> list[str]:
    assert subject.train is not None and subject.test is not None
    count = len(subject.train)
    rows = [plan.sizes.of(row.pipeline, plan.table, 1) for row in plan.table.rows]
    most = max(pipeline.images for pipeline in rows)
    said = []
    if count <= most:
        said.append(
            f"Calibration: {subject.data} has {count:,} training images and all serve for thresholds; seeds choose "
            f"which of them bias and potential see, and their order."
        )
    else:
        said.append(f"Calibration: seeds choose {most:,} of the {count:,} training images of {subject.data}.")
    if plan.table.measures and any(same_for_every_seed(pipeline, count) for pipeline in rows):
        said.append("Rows without calibration have no deviation: every seed gives the same thresholds.")
    if not plan.table.measures:
        return said
    asked = plan.sizes.images
    if all(plan.table.is_long(T) for T in plan.T):  # of which `_of_size` speaks
        return said
    if asked is not None and asked < len(subject.test):
        said.append(f"Test: a fixed {asked:,} of the {len(subject.test):,} test images of {subject.data}.")
    elif subject.data == "demo":
        said.append(f"Test: {len(subject.test):,} of the 10,000 test images of CIFAR-10.")
    return said


def _of_size(plan: Plan) -> list[str]:
    table, sizes = plan.table, plan.sizes
    learned = [c for row in table.rows for sweep in row.pipeline.sweeps for c in sweep if isinstance(c, Weights)]
    short = not plan.T or any(not table.is_long(T) for T in plan.T)
    said = []
    if (missing := [T for T in table.T if T not in plan.T]) and table.name != "samples":  # its T is ours anyway
        said.append(f"Not measured: T={', '.join(map(str, missing))}.")
    few = ", by Adam at 1e-3, not SGD at 1e-5" if sizes.iterations < PAPER.iterations else ""
    if learned and (sizes.iterations, sizes.batch) != (PAPER.iterations, PAPER.batch):
        said.append(
            f"Weights calibration: {sizes.iterations:,} iterations a layer of {sizes.batch} images"
            f"{few}; the paper has {PAPER.iterations:,}, its code {PAPER.batch} images an iteration."
        )
    if table.kind == "detection" or table.sources:
        if own := [T for T in plan.T if f"T={T}" not in paper_tables()[table.name]["columns"]]:
            said.append(f"T={', '.join(map(str, own))}: not in the paper's table.")
    if table.kind == "detection":
        seen = min(sizes.weights, DETECTION_IMAGES)
        if seen < DETECTION_IMAGES:
            said.append(f"Calibration: on {seen} images in all its parts; the paper has {DETECTION_IMAGES}.")
    elif learned and short and not table.own_images and sizes.weights < PAPER.weights:
        said.append(f"Weights calibration: out of {sizes.weights:,} images; the paper has {PAPER.weights:,}.")
    if table.kind == "time":
        here = machine()
        said.append(f"Machine: {here['processor']}, threads: {here['threads']}; the paper's are in its notes.")
        said.append(f"Runs: {sizes.seeds}; the paper has {PAPER.seeds}.")
    elif short and sizes.seeds != PAPER.seeds:
        said.append(f"Seeds: {sizes.seeds}; the paper has {PAPER.seeds}.")
    for T in (T for T in plan.T if plan.table.is_long(T)):
        words = f"T={T} stands for the paper's T≥{table.long}: {sizes.long_seeds} seed"
        if sizes.long_images is not None:
            words += f", {sizes.long_images:,} test images"
        if sizes.long_calibration < PAPER.long_calibration:
            words += f", calibrated on {sizes.long_calibration:,} images"
        said.append(words + ".")
    if table.name == "samples":
        said.append(f"T={', '.join(map(str, plan.T))} is our choice: the paper does not name its T.")
    return said
