"""From cells to a table: means and deviations, the paper's figures where the setting is its own, claims."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from spikecal.reproduce.cells import FIXED, machine
from spikecal.reproduce.detectors import DetectorSubject
from spikecal.reproduce.differences import Found, differences, sources
from spikecal.reproduce.paper import own_lines, paper_tables, same_blocks
from spikecal.reproduce.run import Plan
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.tables import Claim

MEBIBYTE, NUMBER = 2**20, 4  # the paper's MB, and bytes of a float


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
        "differences": differences(plan, networks, found),
        "settings": {
            **vars(plan.sizes),
            "images_seed": FIXED,
            "pipelines": {row.label: plan.sizes.of(row.pipeline, table, 1).to_dict() for row in table.rows},
            **({"sources": sources(plan)} if table.sources else {}),
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
                **_drawn([a]),
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
    return {**column, **_drawn(found)}


def _drawn(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of detectors, the mAP on each set of images drawn from the test images, its mean over seeds."""
    if not all("drawn" in f for f in found):  # measured before there were any
        return {}
    return {
        "drawn": [round(100 * statistics.fmean(ones), 3) for ones in zip(*(f["drawn"] for f in found), strict=True)]
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, and the standard deviation of a sample (n - 1) where there is more than one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


# -- the paper beside ours -----------------------------------------------------------------------------------------


def _with_paper(plan: Plan, subject: Subject | DetectorSubject, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the paper's figure in each column whose network, data, method and T are the paper's."""
    quoted = paper_tables()[plan.table.name]
    for block in same_blocks(plan.table.name, subject):
        if plan.table.kind == "space":
            figures = dict(zip(quoted["columns"], block["rows"][0]["values"], strict=True))
            for row in rows:
                row["paper"] = figures[row["method"]]
            continue
        for line in own_lines(block, subject.bn):
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
    columns = [network["rows"][0]["columns"][str(T)] for network in (with_bn, plain)]
    lost, errors = [], []
    for network, column in zip((with_bn, plain), columns, strict=True):
        ann = next(a["accuracy"] for a in network["ann"] if a["images"] == column["images"])
        lost.append(ann - column["mean"])
        errors.append(_standard_error(ann, column["mean"], column["images"]))
    noise = max(math.hypot(*errors), _spread_of(*columns))
    return _verdict(claim, f"{with_bn['model']}, {plain['model']}", T, lost[0], lost[1], noise)


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
