"""`.snn` files that are legal in every part and hostile as a whole."""

import time
from pathlib import Path
from typing import Any

import torch
from hostile.subjects import Parts, written

import spikecal

SECONDS = 6  # processor seconds; the quadratic version took more than twice as long


def graph(*nodes: tuple[str, str, list[str]], output: Any) -> Parts:
    """A file with these nodes: name, operation and inputs."""
    entries = [{"name": n, "op": op, "inputs": inputs, "shapes": [], "config": {}} for n, op, inputs in nodes]
    spec = {"format": 2, "nodes": entries, "output": output, "head": False, "parameters": {"4": {}}, "info": {}}
    return Parts(spec, {"unused": torch.ones(1)})


def test_similar_names_have_separate_modules(tmp_path: Path) -> None:
    names = ["a/b", "a..b", "a.b", "a//b", "a%2Fb", "values"]
    parts = graph(("x", "Input", []), *((name, "Joint", ["x"]) for name in names), output={"list": names})
    for i, name in enumerate(names):
        parts.tensors[name] = torch.full((1,), float(i))
        parts.spec["parameters"]["4"][f"{name}:bias"] = name
    snn = spikecal.load(written(tmp_path / "net.snn", parts))
    assert len(snn.ops) == 1 + len(names)
    assert len(snn.state_dict()) == len(names)
    assert [float(out) for out in snn(torch.zeros(1, 1))] == [0, 1, 2, 3, 4, 5]


def test_loading_takes_time_linear_in_the_nodes(tmp_path: Path) -> None:
    count = 8000
    chain = [(f"j{i}", "Joint", [f"j{i - 1}" if i else "x"]) for i in range(count)]
    path = written(tmp_path / "net.snn", graph(("x", "Input", []), *chain, output=f"j{count - 1}"))
    before = time.process_time()
    assert len(spikecal.load(path).stages) == count
    assert time.process_time() - before < SECONDS


def test_nodes_that_nothing_reads_are_refused_before_they_are_made(tmp_path: Path) -> None:
    unread = [(f"n{i}", "Flatten", ["x"]) for i in range(19_000)]
    parts = graph(("x", "Input", []), ("j", "Joint", ["x"]), *unread, output="j")
    written(tmp_path / "net.snn", parts)
    before = time.process_time()
    try:
        spikecal.load(tmp_path / "net.snn")
    except spikecal.FileError as error:
        reason = str(error)
    assert "nothing reads its node 'n0'" in reason
    assert time.process_time() - before < 1
