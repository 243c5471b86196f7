"""Run the commands in the pages on export and put their output under them.

.venv/bin/python scripts/show_exports.py
"""

import io
import os
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from spikecal.cli.main import main

DOCS = Path(__file__).parents[1] / "docs" / "how-to"
PAGES = ("export", "nir", "onnx", "spikingjelly", "integers")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def shown(block: re.Match[str]) -> str:
    """The commands of a block, each with its output."""
    commands = [line for line in block[1].splitlines() if line.startswith("$ spikecal ")]
    return "```console\n" + "".join(f"{command}\n{_output(command)}" for command in commands) + "```"


def _output(command: str) -> str:
    found = io.StringIO()
    with redirect_stdout(found):
        code = main(command.split()[2:])
    if code != 0:
        raise SystemExit(f"{command}: exit code {code}")
    if " convert " in command:
        return ""  # a long table, shown on another page
    lines = [line.rstrip() for line in found.getvalue().splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in PAGES:
            path = DOCS / f"{page}.md"
            path.write_text(BLOCK.sub(shown, path.read_text()))
