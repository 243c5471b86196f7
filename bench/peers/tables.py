"""The tables of docs/performance.md and of the README, and what the figures miss."""

import re
from typing import Any

from answers import ROOT, STEPS

from spikecal.files import write_whole
from spikecal.memory import in_words

AIMS = {"documented": 2.0, "fastest": 1.0}  # how many times the seconds of spikecal a peer takes at least


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
        lines += ["", f"| Accuracy, % | {' | '.join(f'T = {T}' for T in STEPS)} | Spikes an image, T = {STEPS[-1]} |"]
        lines.append("|---" * (2 + len(STEPS)) + "|")
        for name in of["conversions"]:
            row = of.get("answers", {}).get(name)
            spikes = "–" if row is None else f"{row['spikes_per_image']:,.0f}"
            lines.append(f"| {' | '.join([name, *accuracies(of, name), spikes])} |")
        lines.append("")
    return "\n".join([*lines, *aims(found), "", *fastest_modes(found), ""])


def accuracies(of: dict[str, Any], name: str) -> list[str]:
    """The accuracy of a row at each T, in %; – where it is not measured yet."""
    row = of.get("answers", {}).get(name)
    return ["–"] * len(STEPS) if row is None else [f"{100 * row['accuracy'][str(T)]:.1f}" for T in STEPS]


def missed(found: dict[str, Any]) -> list[str]:
    """Where a peer is too fast, or more accurate than the best of spikecal."""
    said: list[str] = []
    for network, of in found["networks"].items():
        for name in peers(of):
            rows = of["runs"]["rows"][name]
            said += [
                f"{network}, {name}, {kind}: {rows[kind]['over_spikecal']:.2f} times the seconds, not {aim:g}"
                for kind, aim in AIMS.items()
                if rows[kind]["over_spikecal"] < aim
            ]
            said += [f"{network}, {name}, {lead} more accurate" for lead in leads(of, name)]
    return said


def leads(of: dict[str, Any], name: str) -> list[str]:
    """Where a peer is more accurate than the best of spikecal, and by how much."""
    known = of.get("answers", {})
    ours = [row["accuracy"] for other, row in known.items() if is_ours(other)]
    if not ours or name not in known:
        return []
    ahead = {T: known[name]["accuracy"][T] - max(row[T] for row in ours) for T in map(str, STEPS)}
    return [f"T = {T}: {100 * points:.1f} points" for T, points in ahead.items() if points > 0]


def aims(found: dict[str, Any]) -> list[str]:
    """Which aims are reached beside each peer."""
    networks = found["networks"]
    kinds = [f"{network}, {kind} (aim {aim:g})" for network in networks for kind, aim in AIMS.items()]
    lines = [
        "Times the seconds of spikecal, and where a peer is more accurate than the best of spikecal (aim: nowhere):",
        "",
        f"| | {' | '.join(kinds)} | More accurate |",
        "|---" * (2 + len(kinds)) + "|",
    ]
    for name in peers(next(iter(networks.values()))):
        cells = [name]
        for of in networks.values():
            for kind, aim in AIMS.items():
                times = of["runs"]["rows"][name][kind]["over_spikecal"]
                cells.append(f"{times:.2f}{'' if times >= aim else ', **missed**'}")
        ahead = [f"{network}, {lead}" for network, of in networks.items() for lead in leads(of, name)]
        unknown = [network for network, of in networks.items() if name not in of.get("answers", {})]
        cells.append("; ".join([*ahead, *(f"{network}: not measured" for network in unknown)]) or "nowhere")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def peers(of: dict[str, Any]) -> list[str]:
    """The rows of a network that are not spikecal's."""
    return [name for name in of["runs"]["rows"] if not is_ours(name)]


def is_ours(name: str) -> bool:
    return name.startswith("spikecal")


def fastest_modes(found: dict[str, Any]) -> list[str]:
    """Which mode of each peer was the fastest."""
    networks = found["networks"]
    lines = [f"| Fastest mode | {' | '.join(networks)} |", "|---" * (1 + len(networks)) + "|"]
    for name in peers(next(iter(networks.values()))):
        ways = [of["runs"]["rows"][name]["fastest"]["way"] for of in networks.values()]
        lines.append(f"| {' | '.join([name, *ways])} |")
    return lines


def short_table(found: dict[str, Any]) -> str:
    """What the README has."""
    lines = [
        "Side by side on two processor cores, with 1,024 calibration images and 16 steps: how long a conversion takes,",
        "and the time of a run over spikecal's, as documented / in the fastest mode",
        "([all figures](docs/performance.md#beside-other-tools)).",
        "",
    ]
    for network, of in found["networks"].items():
        lines += [
            f"| {network} | converts in | runs, × spikecal | {' | '.join(f'% at T = {T}' for T in STEPS)} |",
            "|---" * (3 + len(STEPS)) + "|",
        ]
        for name, row in of["conversions"].items():
            slower = [f"{run['over_spikecal']:.1f}" for run in of["runs"]["rows"][name].values()]
            cells = [name, f"{row['seconds']:.1f} s", " / ".join(dict.fromkeys(slower)), *accuracies(of, name)]
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
