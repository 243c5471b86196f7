"""Puts the figures of committed results into pages of docs/, between the marks there.

Before that, every docs/results/GROUP/TABLE.json is compared with the current claims: its `claims` and its page
GROUP/TABLE.md are rewritten, its figures stay. Also draws docs/images/results.png from the tables named `cifar`, and
docs/images/frontier.png from frontier/frontier.json.

In pages, these marks are followed by figures, up to `<!-- end -->`; what is missing is listed as not measured yet.

    <!-- figures GROUP/TABLE … -->      the measured figures; `GROUP/TABLE:energy` for energies, `GROUP/TABLE:` no link
    <!-- claims GROUP/TABLE … -->       every verdict on a claim, with its size
    <!-- verdicts GROUP/TABLE … -->     for each claim, how many verdicts of each kind there are
    <!-- counts GROUP/TABLE … -->       for each kind of table, how many verdicts there are on the paper's claims
    <!-- below GROUP/TABLE … -->        points below the ANN, of all networks in one table
    <!-- chosen GROUP/TABLE … -->       the pipelines that AUTO kept, likewise
    <!-- energy PART --> and others     a part of a file of bench/results (`BENCHES` in bench_tables.py)

Where several tables judge a claim for the same network and T, the table named first counts.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_tables import BENCHES

from spikecal.analysis.measures import from_stored
from spikecal.analysis.plots import Means, accuracy_over_steps
from spikecal.files import write_whole
from spikecal.reproduce.picture import draw
from spikecal.reproduce.render import grid, heading, markdown, measured, papers_size, papers_T, size
from spikecal.reproduce.summary import judge
from spikecal.reproduce.tables import find

DOCS = Path(__file__).parent.parent / "docs"
BENCH = DOCS.parent / "bench" / "results"
KINDS = ("figures", "claims", "verdicts", "counts", "below", "chosen", *BENCHES)
BLOCK = re.compile(rf"<!-- ({'|'.join(KINDS)}) ([^>]+?) -->\n.*?<!-- end -->\n", re.DOTALL)
PAGES = (
    "results.md",
    "results-details.md",
    *(f"explanation/{name}.md" for name in ("energy", "method", "waiting", "joints", "rivals")),
)
DRAWN = ("resnet20", "vgg16-half")  # that are drawn
MARKS = {"seen": "seen", "level": "level", "not seen": "**not seen**"}


def filled(page: str, results: Path) -> str:
    """The page with the figures in `results`."""

    def block(match: re.Match[str]) -> str:
        kind, names = match[1], match[2].split()
        text = tables(kind, names) if kind not in BENCHES else _measured(kind, match[2])
        return f"<!-- {kind} {match[2]} -->\n\n{text}\n<!-- end -->\n"

    def tables(kind: str, names: list[str]) -> str:
        found = {name: _load(results / f"{name.partition(':')[0]}.json") for name in names}
        lacking = [name for name, summary in found.items() if summary is None]
        there = {name: summary for name, summary in found.items() if summary is not None}
        shown: dict[str, Callable[[dict[str, dict[str, Any]]], str]] = {
            "figures": lambda there: "\n".join(_figures(name, summary) for name, summary in there.items()),
            "claims": _claims,
            "verdicts": _verdicts,
            "counts": _counts,
            "below": _below,
            "chosen": _chosen,
        }
        missing = [f"*Not measured yet: {', '.join(lacking)}.*\n"] if lacking else []
        return "\n".join(part for part in (shown[kind](there) if there else "", *missing) if part)

    return BLOCK.sub(block, page)


def _load(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def _figures(name: str, summary: dict[str, Any]) -> str:
    """The tables of all networks, and a link to the whole page; for further figures, only the tables."""
    name, alone, of = name.partition(":")
    if alone:
        return "\n".join(f"{grid(*measured(summary, network, of))}\n" for network in summary["networks"])
    tables = [f"**{heading(network)}**\n\n{grid(*measured(summary, network))}\n" for network in summary["networks"]]
    return "\n".join([*tables, f"[{summary['title']}: the whole page](results/{name}.md), by `{summary['command']}`\n"])


def _below(found: dict[str, dict[str, Any]]) -> str:
    """Points below the ANN, of every network and row."""

    def below(network: dict[str, Any], column: dict[str, Any]) -> str:
        ann = next(from_stored(ann)["score"] for ann in network["ann"] if ann["images"] == column["images"])
        return f"{ann - column['mean']:.1f}"

    return _all_networks(found, "points below the ANN", below)


def _chosen(found: dict[str, dict[str, Any]]) -> str:
    """The pipeline that AUTO kept, of every network and row."""
    return _all_networks(found, "kept", lambda _, column: ", ".join(dict.fromkeys(column.get("kept", ()))))


def _all_networks(
    found: dict[str, dict[str, Any]], title: str, shown: Callable[[dict[str, Any], dict[str, Any]], str]
) -> str:
    """One table of all networks: something of each row after each number of steps."""
    steps = sorted({T for summary in found.values() for T in summary["T"]})
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for summary in found.values():
        for network in summary["networks"]:
            name = network["model"].rpartition(":")[2]
            for row in network["rows"]:
                known = lines.setdefault((name, row["method"]), {})
                known |= {int(T): shown(network, column) for T, column in row["columns"].items()}
    rows = [[*key, *(known.get(T, "") for T in steps)] for key, known in sorted(lines.items(), key=_first_named(lines))]
    rows = [row for row in rows if any(row[2:])]
    return grid(["network", title, *(f"T={T}" for T in steps)], rows) + "\n"


def _first_named(lines: dict[tuple[str, str], Any]) -> Callable[[tuple[tuple[str, str], Any]], int]:
    """Rows of one network stand together, networks in the order in which they appear first."""
    networks = list(dict.fromkeys(name for name, _ in lines))
    return lambda line: networks.index(line[0][0])


def _once(found: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The table and the verdict for each claim, network and T: of the first table that has one."""
    known: dict[tuple[str, str, int], tuple[str, dict[str, Any]]] = {}
    for name, summary in found.items():
        for judged in summary["claims"]:
            known.setdefault((judged["claim"], judged["model"], judged["T"]), (name, judged))
    return list(known.values())


def _claims(found: dict[str, dict[str, Any]]) -> str:
    """Rows for each claim and network: the paper's claims, then ours."""
    parts = [_judged(_once(found), ours) for ours in (False, True)]
    return "\nNot claimed in the paper, but expected here:\n\n".join(part for part in parts if part)


def _judged(found: list[tuple[str, dict[str, Any]]], ours: bool) -> str:
    """The verdict at each T with its size, and the paper's sizes."""
    rows: dict[str, dict[str, list[tuple[str, str, str]]]] = {}
    for name, judged in (one for one in found if one[1]["ours"] == ours):
        here = f"T={judged['T']} {MARKS[judged['verdict']]} ({size(judged, 1)})"
        T, theirs = papers_T(judged), papers_size(judged, 1)
        there = theirs if T is None else f"T={T} {theirs}"
        facts = f"[{name}](results/{name}.md)", unbroken(here), unbroken(there)
        rows.setdefault(judged["claim"], {}).setdefault(judged["model"], []).append(facts)
    lines = []
    for claim, networks in rows.items():
        for i, (network, said) in enumerate(networks.items()):
            cells = [", ".join(dict.fromkeys(filter(None, part))) for part in zip(*said, strict=True)]
            lines.append(["" if i else claim, network, *cells])
    return grid(["claim", "network", "table", "here", "in the paper"], lines) + "\n" if lines else ""


def unbroken(text: str) -> str:
    """The same on one line, also in a narrow column."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _verdicts(found: dict[str, dict[str, Any]]) -> str:
    """How many networks and T show each claim, and the range of its size."""
    claims: dict[str, list[dict[str, Any]]] = {}
    for _, judged in _once(found):
        claims.setdefault(judged["claim"], []).append(judged)
    lines = []
    for claim, verdicts in claims.items():
        ends = [pick(verdicts, key=lambda judged: float(judged["size"])) for pick in (min, max)]
        lines.append([claim, *_tally(verdicts), " to ".join(dict.fromkeys(size(judged, 1) for judged in ends))])
    return grid(["claim", *MARKS, "size here"], lines) + "\n"


def _counts(found: dict[str, dict[str, Any]]) -> str:
    """How many verdicts there are on the paper's claims about each kind of table."""
    titles: dict[str, list[dict[str, Any]]] = {}
    for name, judged in _once(found):
        if not judged["ours"]:
            titles.setdefault(found[name]["title"], []).append(judged)
    return grid(["table", *MARKS], [[title, *_tally(verdicts)] for title, verdicts in titles.items()]) + "\n"


def _tally(verdicts: Sequence[dict[str, Any]]) -> list[str]:
    """How many there are of each verdict."""
    return [str(sum(judged["verdict"] == mark for judged in verdicts)) for mark in MARKS]


def _measured(kind: str, part: str) -> str:
    """A part of a bench's results."""
    file, parts = BENCHES[kind]
    found = _load(BENCH / file) or {}
    return parts[part](found[part]) + "\n" if part in found else f"*Not measured yet: {part}.*\n"


def panels(results: Path) -> dict[str, tuple[Means, float]]:
    """The figures of all networks in tables named `cifar`, for drawing."""
    found: dict[str, tuple[Means, float]] = {}
    for group in DRAWN:
        summary = _load(results / group / "cifar.json")
        for network in [] if summary is None else summary["networks"]:
            means = {
                row["method"]: {int(T): (column["mean"], column["std"]) for T, column in row["columns"].items()}
                for row in network["rows"]
            }
            found[network["model"]] = means, network["ann"][0]["accuracy"]
    return found


def judge_again(results: Path) -> None:
    """Compare all tables with the current claims."""
    for path in sorted(results.glob("*/*.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        summary["claims"] = judge(find(summary["table"]), summary)
        write_whole(path, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
        write_whole(path.with_suffix(".md"), markdown(summary))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, nargs="+", default=[DOCS / name for name in PAGES])
    parser.add_argument("--pictures", type=Path, default=DOCS / "images", help="folder of the pictures")
    parser.add_argument("--results", type=Path, default=DOCS / "results", help="folder of GROUP/TABLE.json")
    asked = parser.parse_args(arguments)
    judge_again(asked.results)
    for page in asked.page:
        write_whole(page, filled(page.read_text(encoding="utf-8"), asked.results))
    if drawn := panels(asked.results):
        accuracy_over_steps(drawn).savefig(asked.pictures / "results.png")
    if (costs := _load(asked.results / "frontier" / "frontier.json")) is not None:
        draw(costs).savefig(asked.pictures / "frontier.png")


if __name__ == "__main__":
    main()
