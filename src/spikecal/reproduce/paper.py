"""The paper's own tables, as they were transcribed."""

import json
from functools import cache
from importlib import resources
from typing import Any

from spikecal.reproduce.detectors import DetectorSubject
from spikecal.reproduce.subjects import Subject


@cache
def paper_tables() -> dict[str, Any]:
    """By name, with captions, notes and slips."""
    text = (resources.files("spikecal") / "reproduce" / "paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)["tables"]
    return tables


def same_blocks(table: str, subject: Subject | DetectorSubject) -> list[dict[str, Any]]:
    """The parts of the paper's table that are of this network, on this data."""
    data = subject.data.partition(":")[0]
    return [
        block
        for block in paper_tables()[table]["blocks"]
        if subject.spec in block["same"]["models"] and (not data or data in block["same"]["data"])
    ]


def own_lines(block: dict[str, Any], bn: bool) -> list[dict[str, Any]]:
    """The rows of a part that the paper measured itself, of networks with or without BN."""
    return [line for line in block["rows"] if "quoted" not in line and line.get("bn", block["bn"]) == bn]
