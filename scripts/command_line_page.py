"""Writes the tables of flags in docs/reference/command-line.md from the commands themselves.

    .venv/bin/python scripts/command_line_page.py

`<!-- flags VERB -->` is followed by the arguments and options of that command, up to `<!-- end -->`.
"""

import re
from pathlib import Path
from typing import Any

import typer

from spikecal.cli.main import app
from spikecal.files import write_whole

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command-line.md"
BLOCK = re.compile(r"<!-- flags (?P<verb>[a-z ]+) -->\n.*?<!-- end -->\n", re.DOTALL)
BOUNDS = re.compile(r"[<>]=?x|x[<>]")
HEAD = "| Flag | |\n|---|---|\n"


def filled(page: str) -> str:
    """The page with the current flags."""
    known = commands(typer.main.get_command(app))

    def block(match: re.Match[str]) -> str:
        return f"<!-- flags {match['verb']} -->\n\n{HEAD}{rows(known[match['verb']])}\n<!-- end -->\n"

    return BLOCK.sub(block, page)


def commands(group: Any, before: str = "") -> dict[str, Any]:
    """Every command by its words, such as `convert` and `datasets get`."""
    found = {}
    for name, command in group.commands.items():
        found[before + name] = command
        if hasattr(command, "commands"):
            found |= commands(command, f"{before}{name} ")
    return found


def rows(command: Any) -> str:
    """One row for each argument and option: its notation, and its help."""
    context = typer.Context(command)
    records = [parameter.get_help_record(context) for parameter in command.params]
    return "".join(f"| {_written(names)} | {_told(text)} |\n" for names, text in filter(None, records))


def _written(names: str) -> str:
    """`-o, --output FILE` as code, each of its forms; of arguments the name alone."""
    names = names if names.startswith("-") else names.split(" <")[0]
    return ", ".join(f"`{name}`" for name in re.sub(r"<(.*?)>", r"\1", names).split(", ")).replace("|", "\\|")


def _told(text: str) -> str:
    """The help, with typer's additions in brackets as words, except for bounds of numbers."""
    text, _, added = text.partition("  [")
    notes = [note.replace(":", "", 1) for note in added.removesuffix("]").split("; ") if not BOUNDS.search(note)]
    return " ".join(filter(None, [text, f"({'; '.join(notes)})" if any(notes) else ""])).replace("|", "\\|")


if __name__ == "__main__":
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8")))
