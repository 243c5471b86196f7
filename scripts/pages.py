"""Runs the code and the commands of a page, and puts their output under them.

    .venv/bin/python scripts/pages.py docs/tutorial.md

Blocks of `python` run one after the other in one scope; one whose first line is `# NAME.py` is added to that file
instead. A block of `text` right below holds the code's output. In a block of `console` each line `$ spikecal …` is
run, with its output below it. Everything runs in an empty folder.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from spikecal.cli.main import main as spikecal

BLOCK = re.compile(
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```\n(?P<below>\n```text\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
FILE = re.compile(r"# (\w+\.py)\n")
PROMPT = "$ spikecal "


def as_run(text: str, scope: dict[str, Any]) -> str:
    """The page with the current output of its blocks, run in the present folder."""

    def block(match: re.Match[str]) -> str:
        language, code = match["language"], match["code"]
        if language == "console":
            return f"```console\n{commands_of(code)}```\n{match['below'] or ''}"
        if language != "python":
            return match[0]
        printed = _printed(code, scope)
        below = f"\n```text\n{printed}```\n" if match["below"] is not None else ""
        return f"```python\n{code}```\n{below}"

    return BLOCK.sub(block, text)


def commands_of(code: str) -> str:
    """The commands of a console block, each with its output."""
    commands = [line for line in code.splitlines() if line.startswith(PROMPT)]
    return "".join(f"{command}\n{_output(command)}" for command in commands)


def _printed(code: str, scope: dict[str, Any]) -> str:
    if name := FILE.match(code):
        with Path(name[1]).open("a") as file:
            file.write(code)
        return ""
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        exec(compile(code, "page", "exec"), scope)  # the page's own code
    return _without_blank_ends(found.getvalue())


def _output(command: str) -> str:
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        code = spikecal(shlex.split(command)[2:])
    if code != 0:
        raise SystemExit(f"{command}: exit code {code}")
    return _without_blank_ends(found.getvalue())


def _without_blank_ends(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    for page in [path.resolve() for path in parser.parse_args().pages]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
            text = page.read_text(encoding="utf-8")
            page.write_text(as_run(text, {}), encoding="utf-8")


if __name__ == "__main__":
    main()
