"""Code on pages runs, and prints what the pages show; commands on pages are commands that exist."""

import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from networks import images, residual
from torch.utils.data import DataLoader, TensorDataset

import spikecal
from scripts import ROOT, load_script
from spikecal.cli.main import app

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("weights/*.md"))
    if "docs/results/" not in str(path)
)
# Tests of their own run these.
ELSEWHERE = {
    f"docs/how-to/{name}.md"
    for name in ("chips", "exit", "extending", "export", "nir", "onnx", "spikingjelly", "integers")
}
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
SECONDS = re.compile(r"about [\d.]+ (?:s|min)\b|(?<=  )[\d.]+$", re.MULTILINE)  # also the last column of a summary
LANGUAGES = {"python", "text", "console", "sh", "toml", "bibtex"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("pages")


def blocks(page: str, *languages: str) -> list[str]:
    found = FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    return [code for _, language, code in found if language in languages]


def scope() -> dict[str, Any]:
    """What the short examples of pages take for granted: a small network, its images, and what was made of them."""
    torch.manual_seed(0)
    model, x = residual(), images(16)
    labels = torch.arange(16) % 5
    result = spikecal.convert(model, x, T=[4, 8], pipeline="lcp")
    result.save("net.snn")
    return {
        **{name: getattr(spikecal, name) for name in ("Bias", "FineTune", "Pipeline")},
        "spikecal": spikecal, "torch": torch, "model": model, "images": x, "x": x, "labels": labels, "result": result,
        "snn": result.at(4), "loader": DataLoader(TensorDataset(x, labels), batch_size=8),
        "frames": torch.stack([images(6, seed=t) for t in range(4)]),
    }  # fmt: skip


def close(found: str, expected: str) -> bool:
    """Whether two printed numbers agree up to a processor's rounding in a trained network."""
    a, b = (float(text.replace(",", "")) for text in (found, expected))
    return math.isclose(a, b, rel_tol=0.34, abs_tol=0.1)


def assert_alike(found: str, expected: str) -> None:
    """The same words in the same lines, and numbers that are close, but for seconds."""
    found, expected = (SECONDS.sub("some time", text) for text in (found, expected))
    rows = [[" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines()] for text in (found, expected)]
    assert rows[0] == rows[1]
    numbers = zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True)
    assert not [pair for pair in numbers if not close(*pair)]


STANDALONE = ("README.md", "docs/tutorial.md")  # nothing is taken for granted
COMPILED = {
    "docs/how-to/distributed.md": "needs several processes; tests/ranks runs the same calls",
    "docs/how-to/detection.md": "needs a trained detector; tests/detection and examples/own_detector.py run the calls",
}
RUN = [page for page in PAGES if page not in ELSEWHERE and page not in COMPILED and blocks(page, "python", "console")]


@pytest.mark.parametrize("page", [page for page in RUN if page != "docs/index.md"])
def test_code_runs_and_prints_what_the_page_shows(
    page: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (ROOT / page).read_text(encoding="utf-8")
    if not torch.cuda.is_available():
        text = re.sub(r'"cuda(:\d)?"', '"cpu"', text)
    assert_alike(script.as_run(text, {} if page in STANDALONE else scope()), text)


def test_the_start_page_shows_what_the_readme_runs() -> None:
    assert blocks("docs/index.md", "python", "text") == blocks("README.md", "python", "text")


@pytest.mark.parametrize("page", sorted({*COMPILED, *ELSEWHERE}))
def test_other_code_is_python(page: str) -> None:
    for code in blocks(page, "python"):
        compile(code, page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_hold(page: str) -> None:
    languages = {language for _, language, _ in FENCED.findall((ROOT / page).read_text(encoding="utf-8"))}
    assert languages <= LANGUAGES, "a block without a language is tested by nothing"
    for code in blocks(page, "toml"):
        tomllib.loads(code)


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command on a page, in its blocks and in its text."""
    inline = re.findall(r"`(spikecal [a-z]+ [^`…]*?)`", FENCED.sub("", (ROOT / page).read_text(encoding="utf-8")))
    lines = [line for code in blocks(page, "sh") for line in code.splitlines()]
    lines += [line[2:] for code in blocks(page, "console") for line in code.splitlines() if line.startswith("$ ")]
    for line in [*lines, *inline]:
        words = shlex.split(line, comments=True)
        while words:
            cut = next((i for i, word in enumerate(words) if word in ("&&", "|")), len(words))
            yield words[:cut]
            words = words[cut + 1 :]


def parsed(words: list[str]) -> None:
    """Check a command's flags and their values, as far as that is possible without running it."""
    command: Any = typer.main.get_command(app)
    context = None
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no verb {words[0]}"
        context = typer.Context(command, parent=context)
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context(command.name, words, parent=context)
    except typer.Exit:  # --help and --version are done by then
        pass
    except typer.TyperException as error:  # text may name a verb without its required arguments
        if "Missing" not in error.format_message():
            raise


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_and_take_their_flags(page: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands(page):
        if "spikecal" in words[:8] and "-m" in words:  # torchrun … -m spikecal
            words = words[words.index("spikecal") :]
        program, *rest = words
        if program.endswith("spikecal"):
            parsed([word for word in rest if word not in ("[NAME]", "FILE...")])
        elif program == "make":
            assert rest[0] in targets
        elif program.endswith("python"):
            assert (ROOT / rest[0]).is_file()
        elif program.endswith(".sh"):
            assert (ROOT / program).is_file()
            parsed(rest)
