"""The paper's own tables, as transcribed."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from spikecal.reproduce.claims import Column, Network


@cache
def paper_tables() -> dict[str, Any]:
    """By name, with captions, notes and slips."""
    text = (resources.files("spikecal") / "reproduce" / "paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)["tables"]
    return tables


SEEDS = 5  # of every figure with a deviation
NOT_NAMED = 0  # the T of a table that does not state it


def blocks_of(table: str) -> list[dict[str, Any]]:
    """The parts of the paper's table; empty for tables of ours."""
    blocks: list[dict[str, Any]] = paper_tables()[table]["blocks"] if table in paper_tables() else []
    return blocks


def same_blocks(table: str, model: str, data: str) -> list[dict[str, Any]]:
    """The parts of the paper's table for this network on this data."""
    kind = data.partition(":")[0]
    return [
        block
        for block in blocks_of(table)
        if model in block["same"]["models"] and (not kind or kind in block["same"]["data"])
    ]


def own_lines(block: dict[str, Any], bn: bool) -> list[dict[str, Any]]:
    """The rows of a part that the paper measured itself, for networks with or without BN."""
    return [line for line in block["rows"] if "quoted" not in line and line.get("bn", block["bn"]) == bn]


def paper_networks(table: str, elsewhere: Mapping[str, tuple[str, str]]) -> list[Network]:
    """The paper's own figures for claims; `elsewhere` are rows from another of its tables."""
    found = []
    for block in blocks_of(table):
        for bn in (False, True):
            lines = own_lines(block, bn)
            rows: dict[str, Mapping[int, Column]] = dict(row for line in lines for row in _rows(table, block, line))
            if not rows:
                continue
            name = block_name(block, bn)
            for row, (other, method) in elsewhere.items():
                (same,) = (network for network in paper_networks(other, {}) if network.model == name)
                rows[row] = same.rows[method]
            found.append(Network(name, bn, rows))
    return found


def block_name(block: dict[str, Any], bn: bool) -> str:
    return f"{block['network']} on {block['data']}{'' if bn else '-nobn'}"


def _rows(table: str, block: dict[str, Any], line: dict[str, Any]) -> Iterator[tuple[str, dict[int, Column]]]:
    """A line as a row of ours; if columns are numbers of images, one row per column."""
    figures: dict[str, Column] = {}
    for name, value in zip(paper_tables()[table]["columns"], line["values"], strict=True):
        if value is not None:
            mean, std = value if isinstance(value, list) else (value, None)
            figures[name] = Column(mean, std, SEEDS, None, line.get("ann", block["ann"]))
    if all(name.startswith("T") for name in figures):
        yield line["method"], {int(name.lstrip("T=≥")): column for name, column in figures.items()}
    else:
        for name, column in figures.items():
            yield f"{line['method']}, {int(name):,} images", {NOT_NAMED: column}
