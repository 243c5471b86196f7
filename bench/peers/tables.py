"""The tables of docs/performance.md and of the README, and what the figures miss."""

import re
from typing import Any

from answers import ROOT, STEPS

from spikecal.files import write_whole
from spikecal.memory import in_words

AIM_DOCUMENTED, AIM_FASTEST = 2.0, 1.0  # how many times the seconds of spikecal a peer takes at least


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
    verdict = "; ".join(missed(found)) or "none"
    return "\n".join([*lines, ways_in_words(found), "", f"Aims that are missed: {verdict}.", ""])


def accuracies(of: dict[str, Any], name: str) -> list[str]:
    """The accuracy of a row at each T, in %; – where it is not measured yet."""
    row = of.get("answers", {}).get(name)
    return ["–"] * len(STEPS) if row is None else [f"{100 * row['accuracy'][str(T)]:.1f}" for T in STEPS]


def missed(found: dict[str, Any]) -> list[str]:
    """Where a peer is too fast, or more accurate than the best of spikecal."""
    said: list[str] = []
    for network, of in found["networks"].items():
        for name, run in of["runs"]["rows"].items():
            aims = {"documented": AIM_DOCUMENTED, "fastest": AIM_FASTEST} if not is_ours(name) else {}
            said += [
                f"{network}, {name}, {kind}: {run[kind]['over_spikecal']:.2f} times the seconds, not {aim:g}"
                for kind, aim in aims.items()
                if run[kind]["over_spikecal"] < aim
            ]
        answers = of.get("answers", {})
        for T in map(str, STEPS):
            best = max((row["accuracy"][T] for name, row in answers.items() if is_ours(name)), default=1.0)
            said += [
                f"{network}, {name}, T = {T}: {100 * (row['accuracy'][T] - best):.1f} points more accurate"
                for name, row in answers.items()
                if row["accuracy"][T] > best
            ]
    return said


def is_ours(name: str) -> bool:
    return name.startswith("spikecal")


def ways_in_words(found: dict[str, Any]) -> str:
    """Which modes were the fastest."""
    said = [
        f"{network}, {name}: {runs['fastest']['way']}"
        for network, of in found["networks"].items()
        for name, runs in of["runs"]["rows"].items()
        if not is_ours(name)
    ]
    return f"The fastest modes were: {'; '.join(said)}."


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
