"""The tables of docs/performance.md and of the README, and what the figures miss."""

import re
from typing import Any

from answers import ROOT, STEPS

from spikecal.files import write_whole
from spikecal.memory import in_words

AIM_DOCUMENTED, AIM_FASTEST = 2.0, 1.0  # a peer should take at least this many times as long as spikecal


def long_table(found: dict[str, Any]) -> str:
    lines: list[str] = []
    for network, of in found["networks"].items():
        runs = of["runs"]
        passes = f"{runs['T']} passes of it over {runs['images']} images take {runs['passes']:.2f} s"
        lines += [
            f"**{network}**: the ANN has {100 * of['ann']['accuracy']:.1f} %, and {passes}.",
            "",
            "| | Conversion | Memory | As documented | × spikecal | Memory | Fastest mode | × spikecal | Memory |",
            "|---" * 9 + "|",
        ]
        for name, row in of["conversions"].items():
            cells = [name, f"{row['seconds']:.1f} s", in_words(row["bytes"])]
            for run in runs["rows"][name].values():
                cells += [f"{run['seconds']:.2f} s", f"{run['over_spikecal']:.2f}", in_words(run["bytes"])]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"| Accuracy, % | {' | '.join(f'T = {T}' for T in STEPS)} | Spikes per image, T = {STEPS[-1]} |"]
        lines.append("|---" * (2 + len(STEPS)) + "|")
        for name in in_order(of):
            row = of.get("answers", {}).get(name)
            spikes = "–" if row is None else f"{row['spikes_per_image']:,.0f}"
            lines.append(f"| {' | '.join([name, *accuracies(of, name), spikes])} |")
        lines.append("")
    return "\n".join([*lines, ways(found), "", misses(found), ""])


def in_order(of: dict[str, Any]) -> list[str]:
    """All rows, spikecal's first; some are only asked for answers."""
    return sorted({**of["conversions"], **of.get("answers", {})}, key=lambda name: not is_ours(name))


def accuracies(of: dict[str, Any], name: str) -> list[str]:
    """The accuracy of a row at each T, in %; – where it is not measured yet."""
    row = of.get("answers", {}).get(name)
    return ["–"] * len(STEPS) if row is None else [f"{100 * row['accuracy'][str(T)]:.1f}" for T in STEPS]


def missed(found: dict[str, Any]) -> list[str]:
    """Where a peer is too fast, or more accurate than the best of spikecal."""
    said: list[str] = []
    for network, of in found["networks"].items():
        for name, run in of["runs"]["rows"].items():
            slow = {kind: ratio for kind, ratio in too_fast(name, run).items() if ratio is not None}
            said += [
                f"{network}, {name}, {kind}: {ratio:.2f} times as long as spikecal" for kind, ratio in slow.items()
            ]
            said += [f"{network}, {name}, T = {T}: {by:.1f} points more accurate" for T, by in ahead(of, name).items()]
    return said


def too_fast(name: str, run: dict[str, Any]) -> dict[str, float | None]:
    """How many times as long as spikecal a peer takes in each mode, where that is below the aim."""
    ratios = {kind: float(run[kind]["over_spikecal"]) for kind in ("documented", "fastest")}
    aims = {"documented": AIM_DOCUMENTED, "fastest": AIM_FASTEST}
    return {kind: None if is_ours(name) or ratio >= aims[kind] else ratio for kind, ratio in ratios.items()}


def ahead(of: dict[str, Any], name: str) -> dict[str, float]:
    """T -> points by which a peer is more accurate than the best of spikecal."""
    answers = of.get("answers", {})
    found: dict[str, float] = {}
    for T in map(str, STEPS):
        best = max((row["accuracy"][T] for other, row in answers.items() if is_ours(other)), default=1.0)
        if name in answers and answers[name]["accuracy"][T] > best:
            found[T] = 100 * (answers[name]["accuracy"][T] - best)
    return found


def is_ours(name: str) -> bool:
    return name.startswith("spikecal")


def ways(found: dict[str, Any]) -> str:
    """The fastest mode of each peer, by network."""
    networks = found["networks"]
    lines = [f"| Fastest mode | {' | '.join(networks)} |", "|---" * (1 + len(networks)) + "|"]
    for name in (name for name in next(iter(networks.values()))["runs"]["rows"] if not is_ours(name)):
        modes = [of["runs"]["rows"][name]["fastest"]["way"] for of in networks.values()]
        lines.append(f"| {' | '.join([name, *modes])} |")
    return "\n".join(lines)


def misses(found: dict[str, Any]) -> str:
    """One line per network and peer that misses an aim: times as long as spikecal, and points more accurate."""
    rows = []
    for network, of in found["networks"].items():
        for name, run in of["runs"]["rows"].items():
            more = [f"+{points:.1f} at T = {T}" for T, points in ahead(of, name).items()]
            times = [f"{ratio:.2f}" if ratio is not None else "" for ratio in too_fast(name, run).values()]
            if any(times) or more:
                rows.append(f"| {network} | {name} | {times[0]} | {times[1]} | {', '.join(more)} |")
    if not rows:
        return "Every aim is met."
    titles = [f"As documented, × spikecal (aim {AIM_DOCUMENTED:g})", f"Fastest mode, × spikecal (aim {AIM_FASTEST:g})"]
    head = f"| Network | Peer | {' | '.join(titles)} | More accurate by, points |"
    return "\n".join(["**Missed aims**", "", head, "|---" * 5 + "|", *rows])


def short_table(found: dict[str, Any]) -> str:
    """What the README has."""
    lines = [
        "On two processor cores, with 1,024 calibration images and 16 steps. Run times are relative to spikecal's: as",
        "documented / in the fastest mode ([all figures](docs/performance.md#compared-with-other-tools)).",
        "",
    ]
    for network, of in found["networks"].items():
        lines += [
            f"| {network} | conversion | run, × spikecal | {' | '.join(f'% at T = {T}' for T in STEPS)} |",
            "|---" * (3 + len(STEPS)) + "|",
        ]
        for name in in_order(of):
            cells = [name, "–", "–", *accuracies(of, name)]
            if (row := of["conversions"].get(name)) is not None:
                slower = [f"{run['over_spikecal']:.1f}" for run in of["runs"]["rows"][name].values()]
                cells[1:3] = [f"{row['seconds']:.1f} s", " / ".join(dict.fromkeys(slower))]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def write_pages(found: dict[str, Any]) -> None:
    for page, table in ((ROOT / "docs" / "performance.md", long_table), (ROOT / "README.md", short_table)):
        made = re.sub(
            r"(<!-- peers -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}\n{table(found)}\n{match[2]}",
            page.read_text(),
            flags=re.DOTALL,
        )
        write_whole(page, made)
