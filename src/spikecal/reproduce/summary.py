"""From cells to a table: means and deviations, the paper's figures for the same settings, claims."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from spikecal.analysis.measures import to_stored
from spikecal.reproduce.cells import FIXED, machine
from spikecal.reproduce.claims import Size, networks_of
from spikecal.reproduce.differences import Found, differences, sources
from spikecal.reproduce.paper import NOT_NAMED, block_name, own_lines, paper_networks, paper_tables, same_blocks
from spikecal.reproduce.run import Plan
from spikecal.reproduce.said import SAID
from spikecal.reproduce.subjects import Subject
from spikecal.reproduce.tables import Table

MEBIBYTE, NUMBER = 2**20, 4  # the paper's MB, and bytes of a float


def summarise(plan: Plan, found: Found) -> dict[str, Any]:
    """Everything a reader of the table needs, as plain data, determined by the cells."""
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
        "claims": judge(table, {"kind": table.kind, "networks": networks}),
        "differences": differences(plan, networks, found),
        "settings": {
            **vars(plan.sizes),
            "images_seed": FIXED,
            "pipelines": {row.label: plan.sizes.of(row.pipeline, table, 1).to_dict() for row in table.rows},
            **({"sources": sources(plan)} if table.sources else {}),
        },
        "machine": machine(),
        "paper": paper_tables().get(table.name),
    }


def _network(plan: Plan, subject: Subject, found: Found) -> dict[str, Any]:
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
            to_stored(
                {
                    "images": a["images"],
                    "score": 100 * a["score"],
                    **{of: 100 * a[of] for of in subject.beside},
                    **_drawn([a]),
                }
            )
            for a in anns
        ]
    rows = []
    for row in plan.table.rows:
        columns = {}
        for T in plan.T:
            cells = [cell for cell in own if cell.row == row.label and (cell.T == T or row.way.anytime)]
            if cells:
                columns[str(T)] = _column([_read(found[cell], cell.T, T) for cell in cells], plan.table)
        rows.append({"method": row.label, "added": row.added, "columns": columns})
        if row.rival:
            rows[-1]["rival"] = row.rival
    return {**facts, "rows": _with_paper(plan, subject, rows)}


def _read(found: dict[str, Any], made: int, T: int) -> dict[str, Any]:
    """A cell as it is after T steps: of a run of more steps the score is known, and not the energy."""
    if made == T:
        return found
    kept = {name: value for name, value in found.items() if name not in ("energy", "spikes", "latency")}
    return {**kept, "score": found["curve"][T - 1]}


def _column(found: Sequence[dict[str, Any]], table: Table) -> dict[str, Any]:
    if table.kind == "time":
        return {
            **spread([f["seconds"] for f in found]),
            "passes": statistics.fmean(f["passes"] for f in found),
            "thresholds": statistics.fmean(f["thresholds"] for f in found),
            "images": found[0]["images"],
        }
    rate = statistics.fmean(f["rate"] for f in found)
    column = {**spread([100 * f["score"] for f in found]), "images": found[0]["images"], "rate": rate}
    column |= {of: spread([100 * f[of] for f in found]) for of in table.subject.beside}
    if all("energy" in f for f in found):  # missing in cells of earlier versions
        column["energy"] = statistics.fmean(f["energy"] for f in found)
    if table.kind == "frontier":
        column |= {of: statistics.fmean(f[of] for f in found) for of in ("spikes", "latency")}
        column |= {"kept": [f["kept"] for f in found]} if all("kept" in f for f in found) else {}
        column |= {"answers": [f["answers"] for f in found]} if all("answers" in f for f in found) else {}
    return {**column, **_drawn(found)}


def _drawn(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The score on each sample of the test images, averaged over seeds."""
    if not all("drawn" in f for f in found):  # missing for some tasks, and in earlier versions
        return {}
    return {
        "drawn": [round(100 * statistics.fmean(ones), 3) for ones in zip(*(f["drawn"] for f in found), strict=True)]
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, and the sample standard deviation (n - 1) if there is more than one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


# -- the paper beside ours -----------------------------------------------------------------------------------------


def _with_paper(plan: Plan, subject: Subject, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with the paper's figure in columns whose network, data, method and T are the paper's."""
    for block in same_blocks(plan.table.name, subject.spec, subject.data):
        quoted = paper_tables()[plan.table.name]
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


def judge(table: Table, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The verdicts of a table's figures on its claims, and their sizes in the paper's own figures."""
    if not SAID[table.name]:
        return []
    networks = networks_of(summary)
    theirs = paper_networks(table.name, {row.label: row.elsewhere for row in table.rows if row.elsewhere})
    there = {row for network in networks for row in network.rows}
    kinds = {network.model: network.bn for network in (*networks, *theirs)}
    judged = []
    for claim in (claim for claim in SAID[table.name] if claim.rows <= there):
        printed = claim.sizes(theirs)
        for size in claim.sizes(networks):
            beside = [
                p
                for p in printed
                if (claim.at in ("fewest", "most") or p.T in (size.T, NOT_NAMED))
                and [kinds[model] for model in p.models] == [kinds[model] for model in size.models]
            ]
            same = _same_names(table, summary, size)
            beside = [p for p in beside if same & set(p.models)] or beside
            judged.append(
                {
                    "claim": claim.text,
                    "ours": claim.ours,
                    "model": ", ".join(size.models),
                    "T": size.T,
                    "verdict": claim.verdict(size),
                    "size": size.value,
                    "unit": claim.unit,
                    "noise": size.noise,
                    "paper": [{"model": ", ".join(p.models), "T": p.T, "size": p.value} for p in beside],
                }
            )
    return judged


def _same_names(table: Table, summary: Mapping[str, Any], size: Size) -> set[str]:
    """The paper's names of these networks, if it has them."""
    return {
        block_name(block, network["bn"])
        for network in summary["networks"]
        if network["model"] in size.models
        for block in same_blocks(table.name, network["model"], network["data"])
    }
