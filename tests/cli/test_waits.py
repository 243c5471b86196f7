"""A latency on the command line: its effect, what is reported, and invalid values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.calls import Run, fails
from networks import images

import spikecal
from spikecal.choice.placement import depths

NETWORKS = """
import torch
from networks import deep
from torch import nn
from spikecal.data.card import Card

CARD = Card(name="deep", size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

def make():
    return deep(), CARD

def flat():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)), CARD
"""


@pytest.fixture
def call(run: Run, tmp_path: Path) -> Run:
    """`convert` of a network in the folder, with images for it."""
    (tmp_path / "nets.py").write_text(NETWORKS)
    pixels = (128 + 64 * images(64)).clamp(0, 255).to(torch.uint8)
    np.savez(tmp_path / "images.npz", images=pixels.numpy(), labels=np.arange(64) % 4)

    def convert(model: str, *more: object) -> tuple[int, str, str]:
        data = ("--data", "npz:images.npz", "-o", "net.snn")
        return run("convert", f"nets.py:{model}", *data, *more)

    return convert


def facts_of(result: tuple[int, str, str]) -> Any:
    code, out, _ = result  # progress and warnings are on standard error
    assert code == 0
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_waits_are_placed_reported_and_kept(call: Run, run: Run) -> None:
    facts = facts_of(call("make", "-T", 2, "-T", 4, "--latency", "2.5x", "--json"))
    assert facts["T"] == [2, 4]
    assert facts["timing"] == facts_of(run("check", "net.snn", "--json"))["timing"]
    assert facts["timing"] == spikecal.inspect("net.snn")["timing"]
    for found, measured in zip(facts["timing"], facts["summary"]["networks"], strict=True):
        T, network = found["T"], spikecal.load("net.snn", T=found["T"])
        assert T < found["latency"] == network.latency <= 2.5 * T
        assert found["interval"] == network.interval > T
        assert found["waits"] == network.waits and found["total_waits"] == sum(network.waits.values())
        tried = found["search"]["tried"]
        (kept,) = (trial for trial in tried if trial["kept"])
        assert kept["waits"] == network.waits and kept["verdict"] == "kept" and kept["gain"] > kept["error"]
        assert len(tried) >= 3 and found["search"]["images"] == 16
        assert (measured["latency"], measured["interval"]) == (network.latency, network.interval)
        assert measured["latencies"] == [t + network.latency - T for t in range(1, T + 1)]


def test_people_read_the_same(call: Run, run: Run) -> None:
    code, out, err = call("make", "-T", 4, "--latency", 10)
    assert code == 0 and err.count("T = 4: waits were decided on only 16 held-out images") == 1
    network = spikecal.load("net.snn")
    assert f"T = 4: latency {network.latency}, one image every {network.interval} steps; waits kept" in out
    shown = out.split()
    assert {"latency", "interval", "spikes"} <= set(shown)
    out = run("check", "net.snn")[1]
    assert "Layers that wait at T = 4" in out and "Placements tried for T = 4" in out and "waits kept" in out
    assert all(name in out for name in network.waits) and " ± " in out
    out = run("evaluate", "net.snn", "--data", "npz:images.npz", "-T", 4, "--images", 8)[1]
    steps = out[out.index("After every step") :].split()
    assert "latency" in steps and str(network.latency) in steps
    out = run("evaluate", "net.snn", "--data", "npz:images.npz", "--images", 8, "--within", 100)[1]
    assert f"1 (latency {network.latency - 3})" in out


def test_dropped_waits_are_reported(call: Run, run: Run) -> None:
    assert "waits dropped: none of them gained" in call("flat", "-T", 8, "--latency", "2x")[1]
    out = run("check", "net.snn")[1]
    assert "waits dropped" in out and "Layers that wait" not in out
    # its neurons get a constant current, so waiting changes nothing but last bits
    assert out.count("no gain") + out.count("within chance") + out.count("gains too little") >= 2


def test_a_latency_beyond_use_is_reported(call: Run, run: Run) -> None:
    code, _, err = call("make", "-T", 2, "--latency", 90, "--test", 0)
    depth = max(depths(spikecal.load("net.snn").stages).values())
    said = f"a latency of 90 is more than this network can use: at most {2 + depth} helps"
    assert code == 0 and f"T = 2: {said}\n" in err
    assert said in " ".join(run("check", "net.snn")[1].split())
    assert facts_of(run("check", "net.snn", "--json"))["timing"][0]["search"]["warnings"][0] == said
    assert "more than" not in call("make", "-T", 2, "--latency", 2 + depth, "--test", 0)[2]


def test_T_is_chosen_for_a_latency(call: Run) -> None:
    facts = facts_of(call("make", "--latency", 6, "--test", 0, "--json"))
    (found,) = facts["timing"]
    assert facts["T"] == [found["T"]] and found["latency"] <= 6
    assert {trial["T"] for trial in found["search"]["tried"]} == {6, 4, 3, 2}


def test_without_a_latency_nothing_waits_and_T_is_32(call: Run) -> None:
    facts = facts_of(call("flat", "--test", 0, "--json"))
    expected = {"T": 32, "latency": 32, "interval": 32, "waits": {}, "total_waits": 0, "search": None}
    assert facts["timing"] == [expected]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--latency", "long"], "'2x' for twice T or '+10' for T + 10, not 'long'"),
        (["--latency", "1.5"], "not '1.5'"),
        (["--latency", "²"], "not '²'"),
        (["--latency", "²x", "-T", 4], "not '²x'"),
        (["--latency", "9" * 400 + "x", "-T", 4], "for twice T"),
        (["--latency", "0"], "not 0"),
        (["--latency", "0x", "-T", 4], "not '0x'"),
        (["--latency", "2x"], "a latency of 2x needs a T"),
        (["--latency", "18", "-T", 8, "-T", 32], "T=32 cannot have a latency of 18"),
    ],
)
def test_invalid_latencies_are_one_line(run: Run, arguments: list[object], reason: str) -> None:
    fails(run("convert", "nobody.py:make", *arguments, "-o", "x.snn"), reason)  # before anything is read
