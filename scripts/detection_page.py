"""Puts figures of docs/results/GROUP/detect.json into docs/how-to/detection.md, between the marks there.

`<!-- figures GROUP/TABLE -->` is followed by mAP, COCO's and at IoU 0.5, `<!-- kept GROUP/TABLE -->` by the share
of its analog mAP that each detector keeps and by whether Faster R-CNN keeps more of it than RetinaNet, as the paper
says; up to `<!-- end -->`. Missing measurements are listed as such.
"""

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikecal.files import write_whole
from spikecal.reproduce.render import grid, heading, measured, plus_minus

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"<!-- (figures|kept) (\S+) -->\n.*?<!-- end -->\n", re.DOTALL)
SAID_BETTER, SAID_WORSE = "fasterrcnn-", "retinanet-"  # prefixes of names of detectors; the rest names the body
PAPERS = {SAID_BETTER: "Faster R-CNN, ResNet-50", SAID_WORSE: "RetinaNet, ResNet-50"}


@dataclass(frozen=True, kw_only=True)
class Share:
    """How much of its analog mAP a detector keeps, in percent; `drawn`: the same on each bootstrap sample."""

    value: float
    drawn: Sequence[float] = ()

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.drawn) if self.drawn else None

    def less(self, other: "Share") -> "Share":
        """The difference, also sample by sample: a hard image is hard for both."""
        return Share(value=self.value - other.value, drawn=[a - b for a, b in _pairs(self.drawn, other.drawn)])

    def verdict(self) -> str:
        """Of a difference: `seen` above 0, `not seen` below, `level` within one standard deviation."""
        if abs(self.value) <= (self.deviation or 0.0):
            return "level"
        return "seen" if self.value > 0 else "not seen"


Shares = Mapping[tuple[str, str, int], Share]  # by detector, row and T
Gains = Mapping[tuple[str, int], Share]  # by row and T


def shares(summary: dict[str, Any]) -> dict[tuple[str, str, int], Share]:
    """Of what was measured."""
    found = {}
    for network in summary["networks"]:
        for row in network["rows"]:
            for T, column in row["columns"].items():
                ann = next(a for a in network["ann"] if a["images"] == column["images"])
                pairs = _pairs(column.get("drawn", ()), ann.get("drawn", ()))
                found[network["model"], row["method"], int(T)] = Share(
                    value=100 * column["mean"] / ann["accuracy"], drawn=[100 * one / whole for one, whole in pairs]
                )
    return found


def _pairs(some: Sequence[float], others: Sequence[float]) -> list[tuple[float, float]]:
    """Sample by sample; empty if one of them has no samples."""
    return list(zip(some, others, strict=True)) if some and others else []


def papers_shares(summary: dict[str, Any]) -> dict[tuple[str, str, int], Share]:
    """The shares in the paper's own figures, which it prints without deviations."""
    steps = [int(column.removeprefix("T=")) for column in summary["paper"]["columns"]]
    return {
        (block["network"], row["method"], T): Share(value=100 * figure / block["ann"])
        for block in summary["paper"]["blocks"]
        for row in block["rows"]
        for T, figure in zip(steps, row["values"], strict=True)
    }


def kept(summary: dict[str, Any]) -> str:
    """What each detector keeps, and whether Faster R-CNN keeps more, for each body with both heads."""
    ours, theirs, steps = shares(summary), papers_shares(summary), summary["T"]
    models = [network["model"] for network in summary["networks"]]
    methods = [row["method"] for row in summary["networks"][0]["rows"]]
    lines = [_line(ours, model, method, steps) for model in models for method in methods]
    lines += [_line(theirs, model, method, steps, "the paper's ") for model in PAPERS.values() for method in methods]
    parts = [grid(["share of the analog mAP kept, %", "", *(f"T={T}" for T in steps)], lines)]
    bodies = [model.removeprefix(SAID_BETTER) for model in models if model.startswith(SAID_BETTER)]
    printed = gains(theirs, PAPERS[SAID_BETTER], PAPERS[SAID_WORSE])
    for body in (body for body in bodies if SAID_WORSE + body in models):
        parts += _compared(body, gains(ours, SAID_BETTER + body, SAID_WORSE + body), printed, steps)
    return "\n\n".join(parts)


def gains(found: Shares, better: str, worse: str) -> dict[tuple[str, int], Share]:
    """How much more of its mAP the one detector keeps than the other, by row and T."""
    return {
        (method, T): share.less(found[worse, method, T])
        for (model, method, T), share in found.items()
        if model == better
    }


def _compared(body: str, ours: Gains, theirs: Gains, steps: Sequence[int]) -> list[str]:
    """A table of both heads' differences, the paper's below ours, and how often which verdict is given."""
    rows = []
    for method in dict.fromkeys(method for method, _ in ours):
        rows.append([method, *(f"{ours[method, T].verdict()} ({_points(ours[method, T])})" for T in steps)])
        printed = [theirs.get((method, T)) for T in steps]
        rows.append([f"{method}, the paper", *("–" if share is None else _points(share) for share in printed)])
    counts = Counter(share.verdict() for share in ours.values())
    more, less, level = (counts[verdict] for verdict in ("seen", "not seen", "level"))
    verdicts = f"more than RetinaNet in {more} of {len(ours)} cells, less in {less}, level in {level}"
    columns = [f"Faster R-CNN less RetinaNet, {body}, points of that share", *(f"T={T}" for T in steps)]
    return [grid(columns, rows), f"With the body {body} Faster R-CNN keeps {verdicts}."]


def _line(found: Shares, model: str, method: str, steps: Sequence[int], whose: str = "") -> list[str]:
    there = [found.get((model, method, T)) for T in steps]
    return [f"{whose}{model}", method, *("–" if s is None else plus_minus(s.value, s.deviation, 1) for s in there)]


def _points(share: Share) -> str:
    return f"{share.value:+.1f}" + ("" if share.deviation is None else f" ± {share.deviation:.1f}")


def figures(summary: dict[str, Any]) -> str:
    """The tables of all detectors."""
    parts = []
    for network in summary["networks"]:
        parts += [f"**{heading(network)}**", *(grid(*measured(summary, network, of)) for of in ("", "map50"))]
    return "\n\n".join(parts)


KINDS = {"figures": figures, "kept": kept}


def filled(page: str, results: Path) -> str:
    """The page with the figures in `results`."""

    def block(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        path = results / f"{name}.json"
        text = f"*Not measured yet: {name}.*"
        if path.exists():
            summary = json.loads(path.read_text(encoding="utf-8"))
            text = f"{KINDS[kind](summary)}\n\n[The whole page](../results/{name}.md), by `{summary['command']}`"
        return f"<!-- {kind} {name} -->\n\n{text}\n\n<!-- end -->\n"

    return BLOCK.sub(block, page)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, default=DOCS / "how-to" / "detection.md")
    parser.add_argument("--results", type=Path, default=DOCS / "results", help="folder of GROUP/TABLE.json")
    asked = parser.parse_args(arguments)
    write_whole(asked.page, filled(asked.page.read_text(encoding="utf-8"), asked.results))


if __name__ == "__main__":
    main()
