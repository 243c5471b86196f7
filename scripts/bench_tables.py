"""The tables that pages show of bench/results: `BENCHES` has each mark's file and how its parts are written."""

from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

from spikecal.reproduce.render import grid, plus_minus

Parts = dict[str, Callable[[dict[str, Any]], str]]
WAYS = {
    "ann": "ANN",
    "even": "constant currents",
    "spikes": "spikes",
    "corrected": "spikes, outputs corrected",
    "lcp": "spikes, LCP",
}
ORDER = ("analog", "signed", "merge")


def _ways(rows: dict[str, dict[str, float]]) -> str:
    """Networks with each kind of threshold, by how they run."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row, shares in rows.items():
        name, T, kind = row.split(", ")
        for way, share in shares.items():
            found.setdefault((f"{name}, {T}", WAYS[way]), {})[kind] = share
    kinds = list(dict.fromkeys(row.split(", ")[2] for row in rows))
    lines = [[*key, *(f"{100 * shares[kind]:.1f}" for kind in kinds)] for key, shares in found.items()]
    return grid(["accuracy %", "", *kinds], lines)


def _samples(rows: dict[str, dict[str, float]]) -> str:
    """The bias from few or many images of some classes."""
    parts = {row: row.split(" images of ") for row in rows}
    classes = list(dict.fromkeys(part[1] for part in parts.values()))
    lines: dict[str, list[str]] = {}
    for row, (count, _) in parts.items():
        shown = plus_minus(100 * rows[row]["accuracy"], 100 * rows[row]["deviation"], 1)
        lines.setdefault(f"{count} images", []).append(shown)
    titles = [f"of {count} class{'' if count == '1' else 'es'}" for count in classes]
    return grid(["accuracy %", *titles], [[name, *shown] for name, shown in lines.items()])


def _learned(rows: dict[str, dict[str, float]]) -> str:
    """The effect of calibration on its own images, and on others."""
    lines = []
    for row, found in rows.items():
        right = [f"{100 * found[key]:.1f}" for key in ("seen_right", "right")]
        lines.append([*row.split(": "), *right, *(f"{found[key]:.3f}" for key in ("seen_error", "error"))])
    columns = ["accuracy %, calibrated images", "other images", "error, calibrated images", "other images"]
    return grid(["network", "calibrated", *columns], lines)


def _energies(rows: dict[str, dict[str, float]]) -> str:
    """Energy and rates of each network and T, below the paper's."""
    columns = ["network", "T", "accuracy %", "ANN %", "energy % of the ANN's", "with all lines %", "break-even T"]
    lines = [PAPERS_ENERGY]
    for row, found in rows.items():
        name, T, *kind = row.split(", ")
        shares = [f"{100 * found[key]:.1f}" for key in ("accuracy", "ann", "ratio", "ratio_with_all")]
        rates = [f"{found['layers_mean']:.3f}", f"{found['layers_least']:.3f} to {found['layers_most']:.3f}"]
        named = ", ".join([name, *kind])
        lines.append([named, T.removeprefix("T="), *shares, f"{found['break_even']:.0f}", *rates])
    return grid([*columns, "rate, mean of layers", "of layers"], lines)


def _crossings(rows: dict[str, dict[str, int]]) -> str:
    """The T from which a network costs more than its ANN."""
    lines = [[name, *(str(found[key]) for key in ("ratio", "ratio_with_all"))] for name, found in rows.items()]
    return grid(["network", "costs more than its ANN from T =", "with all lines, from T ="], lines)


def _rates(rows: dict[str, dict[str, float]]) -> str:
    """Rates by network and T, for each kind of threshold."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row, rates in rows.items():
        name, T, kind = row.split(", ")
        found.setdefault((name, T.removeprefix("T=")), {})[kind] = rates
    kinds = list(next(iter(found.values())))
    lines = []
    for key, of in found.items():
        active = f"{100 * of[kinds[0]]['active']:.0f}"
        lines.append([*key, active, *(f"{of[kind]['rate']:.3f}" for kind in kinds)])
    return grid(["network", "T", "values above 0, %", *kinds], lines)


def _by_steps(rows: dict[str, dict[str, float]]) -> str:
    """Each pipeline by T: divergence and agreement on held-out images, and correct answers on test images."""
    found: dict[str, dict[str, str]] = {}
    for row, of in rows.items():
        T, label = row.split(", ", 1)
        shares = [f"{100 * of[key]:.1f}" for key in ("agreement", "test")]
        found.setdefault(label, {})[T] = " / ".join([f"{of['divergence']:.3f}", *shares])
    steps = list(dict.fromkeys(T for shown in found.values() for T in shown))
    return grid(["", *steps], [[label, *(shown.get(T, "") for T in steps)] for label, shown in found.items()])


def _by_rate(rows: dict[str, dict[str, float]]) -> str:
    """What weights calibration gains in few iterations: error, agreement and stages that kept their weights, by T."""
    parts = {row: row.split(", ", 2) for row in rows}
    steps = list(dict.fromkeys(T for _, T, _ in parts.values()))
    found: dict[str, list[str]] = {}
    for row, (_, _, label) in parts.items():
        of = rows[row]
        shown = [f"{of['relative_error']:.3f}", f"{100 * of['agreement']:.1f}", f"{of['stages_left_alone']:.0f}"]
        found.setdefault(label, []).append(" / ".join(shown))
    return grid(["", *steps], [[label, *shown] for label, shown in found.items()])


def _confirmed(rows: dict[str, dict[str, float]]) -> str:
    """The preset itself beside what it builds on."""
    lines = []
    for row, of in rows.items():
        name, T, label = row.split(", ", 2)
        shares = [f"{100 * of[key]:.1f}" for key in ("agreement", "test", "ann_test")]
        lines.append([name, T.removeprefix("T="), label, f"{of['relative_error']:.3f}", *shares])
    columns = ["as the ANN %", "test images right %", "ANN %"]
    return grid(["network", "T", "pipeline", "error of the outputs", *columns], lines)


def _waits(rows: dict[str, dict[str, Any]]) -> str:
    """Each network that waits, beside the one that does not."""
    lines = []
    for row, of in rows.items():
        if "without" in of:
            name, pipeline, *_ = row.split(", ")
            alone = rows[of["without"]]
            facts = [*_timed(alone), *_timed(of), plus_minus(of["gain"], of["error"], 1)]
            lines.append([name, pipeline.upper() + (", free" if ", free," in row else ""), *facts])
    columns = ["T = latency", "points below", "spikes", "T, latency", "points below", "spikes", "gain"]
    return grid(["network", "pipeline", *columns], lines)


def _timed(of: dict[str, Any]) -> list[str]:
    time = str(of["T"]) if of["T"] == of["latency"] else f"{of['T']}, {of['latency']}"
    return [time, f"{of['below']:.1f}", f"{of['spikes']:,.0f}"]


def _delayed(rows: dict[str, dict[str, Any]]) -> str:
    """Skips that charge early and delay lines, in networks that are the same otherwise."""
    lines = [
        [row, str(of["skips"]), f"{of['early']:.1f}", f"{of['delayed']:.1f}", str(of["changed"]),
         plus_minus(of["gain"], of["error"], 1)]
        for row, of in rows.items()
    ]  # fmt: skip
    columns = [
        "sums with a skip that leads",
        "early charge",
        "delay lines",
        "answers that differ",
        "gain of delay lines",
    ]
    return grid(["", *columns], lines)


PLACED = {
    "convert": "whole placements, as `convert` does",
    "own": "stage by stage, by the stage's own error",
    "next": "stage by stage, by the error of the stages that read it",
    "outputs": "stage by stage, by the divergence of the outputs",
}


def _placed(rows: dict[str, dict[str, Any]]) -> str:
    """Placements of waits found in several ways; accuracy paired with that of the first."""
    lines = []
    for of in rows.values():
        lines.append([str(of["T"]), "no waits", str(of["T"]), f"{of['without']:.3f}", "", ""])
        answers = [_answers(found["answers"]) for found in of["placements"].values()]
        for (name, found), own in zip(of["placements"].items(), answers, strict=True):
            gains = [100 * (a - b) for a, b in zip(own, answers[0], strict=True)]
            more = plus_minus(mean(gains), stdev(gains) / len(gains) ** 0.5, 1) if any(gains) else ""
            facts = [str(found["latency"]), f"{found['divergence']:.3f}", f"{found['accuracy']:.1f}", more]
            lines.append([str(of["T"]), PLACED[name], *facts])
    columns = ["latency", "divergence", "test images right %", "more than `convert`'s, in points"]
    return grid(["T", "placed", *columns], lines)


def _answers(digits: str) -> list[int]:
    """Which images are answered correctly, one bit per image after a leading 1."""
    return [int(bit) for bit in f"{int(digits, 16):b}"[1:]]


def _falls(rows: dict[str, dict[str, Any]]) -> str:
    """The effect of a wait at one stage alone: the median over stages, least and most."""
    lines = [
        [row.partition(",")[0].removeprefix("T="), *(" / ".join(f"{100 * share[key]:.1f}" for key in share)
                                                     for share in of.values())]
        for row, of in rows.items()
    ]  # fmt: skip
    columns = ["of its own error", "of the error of stages that read it", "of the outputs' divergence"]
    return grid(["T", *columns], lines)


def _joints(rows: dict[str, dict[str, Any]]) -> str:
    """Each network with each kind of joints; networks that no option changes, once."""

    def place(of: dict[str, Any]) -> tuple[Any, ...]:
        return of["network"], -of["T"], of["latency"] == of["T"], of["pipeline"] != "LCP", ORDER.index(of["joints"])

    lines = []
    changed = {of["network"] for of in rows.values() if of["joints"] == "analog" and of["readers"]}
    for of in sorted(rows.values(), key=place):
        if of["network"] not in changed and of["joints"] != "analog":
            continue
        kind = of["joints"] if of["network"] in changed else "all the same"
        loss = "" if of["joints"] == "analog" else plus_minus(of["loss"], of["error"], 1)
        facts = [kind, str(of["readers"]), f"{of['below']:.1f}", loss, f"{of['energy']:.2f}"]
        lines.append([of["network"], *_timed(of)[:1], of["pipeline"], *facts])
    columns = [
        "pipeline",
        "joints",
        "layers that read currents",
        "points below the ANN",
        "loss against analog",
        "energy",
    ]
    return grid(["network", "T, latency", *columns], lines)


def _reaches(rows: dict[str, dict[str, Any]]) -> str:
    """Each dead zone of signed neurons."""
    lines = [
        [of["network"], str(of["wait"]), of["reach"], plus_minus(of["divergence"], of["error"], 3),
         "" if of["rate"] is None else f"{of['rate']:.2f}", f"{of['energy']:.2f}"]
        for of in rows.values()
    ]  # fmt: skip
    return grid(["network", "waits", "reach", "divergence from the ANN", "rate of signed neurons", "energy"], lines)


def _tuned(rows: dict[str, dict[str, Any]]) -> str:
    """Each network that was fine-tuned, beside the same without."""
    lines = []
    for row, of in rows.items():
        if "not fine-tuned" in row or ", fine-tuned" not in row:
            continue
        alone = row.replace(", fine-tuned", "")
        before = rows.get(alone) or rows[row.replace(", fine-tuned", ", not fine-tuned")]
        shown = [f"{part['divergence']:.3f} / {part['agreement']:.1f} / {part['test']:.1f}" for part in (before, of)]
        T, _, label = alone.partition(", ")
        lines.append([T.removeprefix("T="), label or "quantised", *shown])
    return grid(["T", "", "not fine-tuned", "fine-tuned"], lines)


def _resets(rows: dict[str, dict[str, Any]]) -> str:
    """Answers that are the ANN's, with each reset and each choice of balanced layers."""
    layers = {"balanced": "all", "height": "before the first branch"}
    lines = []
    for row, of in rows.items():
        biases, which, reset = row.split(", ")
        shares = [f"{100 * share:.0f}" for share in of["agreement"].values()]
        lines.append([biases, layers[which], reset, f"{of['grows']:.0f} ×", *shares])
    marks = [f"T={T}" for T in next(iter(rows.values()))["agreement"]]
    columns = ["balanced layers", "reset", "last threshold, of the first"]
    return grid(["answers as the ANN's, %", *columns, *marks], lines)


def _exits(rows: dict[str, dict[str, Any]]) -> str:
    """Early exit by each rule, below the network without."""
    whole = next(iter(rows.values()))["without"]
    T = len(next(iter(rows.values()))["curve"])
    lines = [["no early exit", str(T), *_answered(whole), ""]]
    lines += [[row, f"{of['steps']:.2f}", *_answered(of), of["verdict"]] for row, of in rows.items()]
    return grid(["rule set on", "steps", "as the ANN %", "accuracy %", "energy, times the ANN's", "promise"], lines)


def _answered(of: dict[str, Any]) -> list[str]:
    energy = of["energy"]["ratio"] if isinstance(of["energy"], dict) else of["energy"]
    return [f"{100 * of['agreement']:.2f}", f"{100 * of['accuracy']:.2f}", f"{energy:.2f}"]


# VGG-16 on ImageNet with LCP: accuracies from the paper's ImageNet table, the rest from its text
PAPERS_ENERGY = ["the paper's VGG-16, ImageNet", "64", "68.60", "75.36", "69.36", "", "", "", "0.025 to 0.08"]


def _multiples(rows: dict[str, dict[str, float]]) -> str:
    """The cost of AUTO's efforts at each T, in conversions by LCP."""
    first, *ways = dict.fromkeys(way for seconds in rows.values() for way in seconds)
    lines = [[f"{first}, seconds", *(f"{seconds[first]:.1f}" for seconds in rows.values())]]
    lines += [[way, *(f"{of[way] / of[first]:.0f} ×" if way in of else "" for of in rows.values())] for way in ways]
    return grid(["effort", *(f"T={T}" for T in rows)], lines)


BENCHES: dict[str, tuple[str, Parts]] = {
    "why": ("claims.json", {"thresholds": _ways, "bias": _samples, "weights": _learned}),
    "energy": (
        "energy.json",
        {"networks": _energies, "thresholds": _energies, "costs_more_from": _crossings, "rates": _rates},
    ),
    "waits": ("waits.json", {"rows": _waits, "delayed": _delayed}),
    "placing": ("placing.json", {"rows": _placed, "falls": _falls}),
    "joints": ("joints.json", {"rows": _joints, "reaches": _reaches}),
    "effort": ("effort.json", {"seconds": _multiples}),
    "past": ("past_the_paper.json", {"rows": _by_steps}),
    "finetune": ("finetune.json", {"quantised": _tuned, "rows": _tuned}),
    "rivals": ("rivals.json", {"resets": _resets}),
    "exits": ("exits.json", {"rules": _exits}),
    "weights": ("weights.json", {"tried": _by_rate, "confirmed": _confirmed}),
}
