"""Render a table as Markdown: our figures, the verdicts on claims, the differences, and the paper's figures, quoted."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from spikecal.analysis.measures import from_stored
from spikecal.reproduce.kinds import SUBJECTS, subject_of
from spikecal.reproduce.paper import NOT_NAMED

Summary = dict[str, Any]
# further figures besides scores: title and format
PLAIN = {
    "energy": ("energy, times the ANN's", ".2f"),
    "latency": ("latency, steps", ".0f"),
    "spikes": ("spikes per image", ",.0f"),
    "kept": ("pipeline that AUTO kept", ""),
}
MORE = ("latency", "spikes", "kept")  # of the frontier


def markdown(summary: Summary) -> str:
    """The whole page."""
    parts = [f"# {summary['table']}: {summary['title']}", summary["about"]]
    if summary.get("command"):
        parts.append(f"```\n{summary['command']}\n```")
    if summary["kind"] == "frontier":
        parts.append(f"![{summary['title']}]({summary['table']}.png)")
    for network in summary["networks"]:
        parts += [f"## {heading(network)}", grid(*measured(summary, network))]
        parts += [grid(*measured(summary, network, of)) for of in further(summary["kind"]) if has(network, of)]
    for title, text in sections(summary).items():
        parts += [f"## {title}", text]
    return "\n\n".join(parts) + "\n"


def sections(summary: Summary) -> dict[str, str]:
    """The remarks about the figures, by title."""
    said = {}
    for title, ours in (("What the paper claims", False), ("What else was expected", True)):
        if any(judged["ours"] == ours for judged in summary["claims"]):
            said[title] = bullets(claims(summary, ours))
    here = summary["machine"]
    where = f"Written with torch {here['torch']} on {here['processor']}, threads: {here['threads']}."
    if summary["paper"] is None:
        return {**said, "How it was measured": bullets([*summary["differences"], where])}
    said["Differences from the paper"] = bullets([*summary["differences"], where])
    notes = {
        row["method"]: row["rival"] for network in summary["networks"] for row in network["rows"] if "rival" in row
    }
    if notes:
        said["Methods of others, as they are run here"] = bullets(f"{name}: {note}" for name, note in notes.items())
    said["The paper's figures, quoted"] = "\n\n".join(quotes(summary["paper"], summary["networks"]))
    return said


def heading(network: dict[str, Any]) -> str:
    """A network's name and properties."""
    words = f"{network['model']}{'' if network['bn'] else ', no BN'}"
    if network["data"]:
        words += f", {network['data']}"
    if "ann" in network:
        words += "; ANN " + ", ".join(_ann(a) for a in network["ann"])
    return words


def further(kind: str) -> tuple[str, ...]:
    """Figures of a column besides its first."""
    return (*subject_of(kind).beside, "energy", *(MORE if kind == "frontier" else ()))


def unit(kind: str, of: str = "") -> str:
    """The title of a table's figures, or of its further ones."""
    if of in PLAIN:
        return PLAIN[of][0]
    subject = subject_of(kind)
    if of:
        return f"{subject.score.name} % {subject.beside[of]}"
    return "seconds (ANN passes)" if kind == "time" else f"{subject.score.name} %"


def has(network: dict[str, Any], of: str) -> bool:
    """Whether there are figures of this kind."""
    return any(of in column for row in network["rows"] for column in row.get("columns", {}).values())


def _ann(stored: dict[str, Any]) -> str:
    found = from_stored(stored)
    beside = [(s.score.name, of, what) for s in SUBJECTS.values() for of, what in s.beside.items() if of in found]
    more = "".join(f" {name}, {found[of]:.2f} % {what}," for name, of, what in beside)
    return f"{found['score']:.2f} %{more} on {found['images']:,} images"


def measured(summary: Summary, network: dict[str, Any], of: str = "") -> tuple[list[str], list[list[str]]]:
    """Columns and rows of our own figures, or of the further figure `of`."""
    if summary["kind"] == "space":
        rows = [
            [r["method"], f"{r['numbers']:,}", f"{r['mb']:.4f}", _figure(r["paper"], "g") if "paper" in r else ""]
            for r in network["rows"]
        ]
        return ["calibrated", "numbers", "MB", "paper, MB"], rows
    long = summary["long"]
    steps = [f"T={T}" if long is None or T < long else f"T≥{long} ({T})" for T in summary["T"]]
    first = unit(summary["kind"], of)
    rows = []
    for row in network["rows"]:
        name = row["method"] + (" (not in the paper's table)" if row["added"] else "")
        name += ", measured here" if "rival" in row else ""
        rows.append([name, *(_shown(summary["kind"], row["columns"].get(str(T)), of) for T in summary["T"])])
    if summary["kind"] == "time":
        there = [[row["columns"].get(str(T)) for row in network["rows"]] for T in summary["T"]]
        searches = [[column["thresholds"] for column in columns if column] for columns in there]
        rows.append(["thresholds, before each of these", *(f"{fmean(of):.1f}" for of in searches)])
    return [first, *steps], rows


def _shown(kind: str, column: dict[str, Any] | None, of: str) -> str:
    """A cell of the grid; what was not measured is empty."""
    if column is None or (of and of not in column):
        return ""
    if of == "kept":
        return ", ".join(dict.fromkeys(column[of]))
    if of in PLAIN:
        return f"{column[of]:{PLAIN[of][1]}}"
    if of:
        return _score(column[of])
    return _time(column) if kind == "time" else _score(column)


def _score(column: dict[str, Any]) -> str:
    text = plus_minus(column["mean"], column["std"], 2)
    if column.get("paper") is not None:
        text += f" (paper {_figure(column['paper'], '.2f')})"
    return text


def _time(column: dict[str, Any]) -> str:
    return f"{plus_minus(column['mean'], column['std'], 1)} ({column['passes']:.0f})"


def plus_minus(mean: float, std: float | None, places: int) -> str:
    """`91.20 ± 0.31`, or the mean alone."""
    return f"{mean:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")


def claims(summary: Summary, ours: bool) -> list[str]:
    """One line per claim and network, of the paper's claims or of `ours`."""
    lines: dict[tuple[str, str], list[str]] = {}
    for judged in summary["claims"]:
        if judged["ours"] != ours:
            continue
        words = f"{judged['verdict']} at T={judged['T']} ({size(judged, 2)}"
        if theirs := papers_size(judged, 2):
            T = papers_T(judged)
            words += f"; paper {theirs}" + ("" if T in (None, judged["T"]) else f" at T={T}")
        words += ")"
        lines.setdefault((judged["claim"], judged["model"]), []).append(words)
    explained = [f"{claim} ({model}): {', '.join(words)}." for (claim, model), words in lines.items()]
    level = "one standard deviation over seeds"
    if subject_of(summary["kind"]).score.share:
        level = f"one standard error for this number of test images, or {level}"
    points = subject_of(summary["kind"]).score.name
    return [*explained, f"In points of {points} unless marked with %. Level: within {level}."]


def size(judged: dict[str, Any], places: int) -> str:
    """The size of a claim here."""
    return _amount(judged["size"], judged["unit"], places)


def papers_size(judged: dict[str, Any], places: int) -> str:
    """Its size in the paper's figures: of the same network, else the range over all."""
    sizes = [printed["size"] for printed in judged["paper"]]
    if not sizes:
        return ""
    return " to ".join(dict.fromkeys(_amount(value, judged["unit"], places) for value in (min(sizes), max(sizes))))


def papers_T(judged: dict[str, Any]) -> int | None:
    """The T of these figures, if the paper states it."""
    return next((printed["T"] for printed in judged["paper"] if printed["T"] != NOT_NAMED), None)


def _amount(value: float, unit: str, places: int) -> str:
    if unit == "points":
        return f"{value:+.{places}f}"
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"


def quotes(paper: dict[str, Any], networks: Sequence[dict[str, Any]] = ()) -> list[str]:
    """The paper's table, network by network, with its notes; what was measured of a quoted row stands under it."""
    parts = [f"{paper['caption']} ({paper['label']}; {paper['unit']})."]
    form = ".2f" if paper["unit"] == "accuracy %" else "g"
    for block in paper["blocks"]:
        title = f"**The paper, {block['network']} on {block['data']}**"
        if block["ann"] is not None:
            title += f" {'with' if block['bn'] else 'without'} BN, ANN {block['ann']:.2f}"
        per_row = any("quoted" in row or "ann" in row for row in block["rows"])
        rows = []
        for row in block["rows"]:
            name = f"{row['method']} ({row['quoted']}, as the paper quotes it)" if "quoted" in row else row["method"]
            own = []
            if per_row:
                ann = row.get("ann", block["ann"])
                own = ["yes" if row.get("bn", block["bn"]) else "no", "" if ann is None else f"{ann:.2f}"]
            rows.append([name, *own, *(_figure(value, form) for value in row["values"])])
            rows += _measured_here(row, block, paper["columns"], networks) if "quoted" in row else []
        parts += [title, grid(["", *(["BN", "ANN"] if per_row else []), *paper["columns"]], rows)]
    return [*parts, bullets(paper["notes"])]


def _measured_here(
    quoted: dict[str, Any], block: dict[str, Any], columns: Sequence[str], networks: Sequence[dict[str, Any]]
) -> list[list[str]]:
    """The same method on our networks of the same family and data, as rows of the quoted table."""
    family = block["same"]["models"][0].partition("-")[0]
    rows = []
    for network in networks:
        same = network["model"].partition("-")[0] == family and network["data"] in block["same"]["data"]
        for row in (row for row in network["rows"] if same and "rival" in row and row["method"] == quoted["method"]):
            anns = ", ".join(f"{from_stored(ann)['score']:.2f}" for ann in network["ann"])
            there = {T: _score(column) for T, column in row["columns"].items()}
            figures = [there.get(column.removeprefix("T").lstrip("=≥"), "–") for column in columns]
            rows.append(
                [
                    f"{row['method']}, measured here on {network['model']}",
                    "yes" if network["bn"] else "no",
                    anns,
                    *figures,
                ]
            )
    return rows


def _figure(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return f"{value[0]:{form}} ± {value[1]:{form}}"
    return f"{value:{form}}"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
