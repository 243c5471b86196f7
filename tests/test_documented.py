"""Figures in README.md and docs/ are those of the committed results."""

import json

from scripts import ROOT


def test_the_demo_in_the_readme() -> None:
    found = json.loads((ROOT / "bench" / "results" / "demo.json").read_text())
    readme = (ROOT / "README.md").read_text()
    steps = list(found["accuracy"]["ACP"])
    rows = {"ANN": dict.fromkeys(steps, found["ann"]), **found["accuracy"]}
    assert f"| accuracy % | {' | '.join(f'T={T}' for T in steps)} |" in readme
    for name, shares in rows.items():
        assert f"| {name} | {' | '.join(f'{100 * shares[T]:.1f}' if T in shares else '' for T in steps)} |" in readme


def test_the_minutes_of_the_tables() -> None:
    page = " ".join((ROOT / "docs" / "how-to" / "reproduce.md").read_text().split())
    minutes = json.loads((ROOT / "bench" / "results" / "tables.json").read_text())["minutes"]
    assert ", ".join(f"`{name}` {took:.0f}" for name, took in minutes.items()) in page
    assert max(minutes.values()) < 30
