"""The outcome of a task: facts for machines, and lines and tables for people, in the order they are printed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spikecal.errors import SpikecalError
from spikecal.memory import in_words
from spikecal.progress import duration as duration
from spikecal.tables import Table as Table

size = in_words  # bytes for people: 1.2 MB
SCREENFUL = 20  # unreadable files to list; the facts have all of them


def table_of(title: str, order: Sequence[str], rows: Sequence[Mapping[str, str]], caption: str) -> Table:
    """Rows as a table with right-aligned columns in this order; empty columns are left out."""
    columns = [name for name in order if any(row.get(name) for row in rows)]
    return Table(title, [f">{name}" for name in columns], [[row.get(c, "") for c in columns] for row in rows], caption)


@dataclass(frozen=True)
class Line:
    """One line of text; `aside` means a remark, for standard error."""

    text: str
    aside: bool = False


@dataclass(frozen=True)
class Text:
    """Markdown with lists and tables."""

    title: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """Both forms of one result, and the error if it is a failure nevertheless."""

    facts: Mapping[str, Any]
    parts: Sequence[Table | Line | Text]
    error: SpikecalError | None = None


def in_flags(hint: str) -> str:
    """A hint written for Python in the command line's terms: `keep=['fc']` becomes `--keep fc`."""

    def flags(found: re.Match[str]) -> str:
        return " ".join(f"--{found[1].removesuffix('s')} {name}" for name in re.findall(r"'([^']+)'", found[2]))

    return re.sub(r"\b(keep|neurons)=\[([^\]]*)\]", flags, hint)


def asides(texts: Sequence[str]) -> list[Line]:
    return [Line(text, aside=True) for text in texts]


def unreadable_lines(unreadable: Mapping[str, str], and_so: str = " and were left out") -> list[Line]:
    """Count and list the unreadable images, and state what was done about them."""
    if not unreadable:
        return []
    lines = [f"{len(unreadable):,} of the images cannot be read{and_so}:"]
    lines += [f"  {file}: {reason}" for file, reason in list(unreadable.items())[:SCREENFUL]]
    if len(unreadable) > SCREENFUL:
        lines.append(f"  and {len(unreadable) - SCREENFUL:,} more: --json lists all")
    return asides(lines)


def unreadable_facts(unreadable: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"file": file, "reason": reason} for file, reason in unreadable.items()]


def percent(share: float) -> str:
    return f"{100 * share:.2f}"
