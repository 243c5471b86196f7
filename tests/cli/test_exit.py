"""`evaluate --exit`, as a user has it."""

import json
from pathlib import Path

import numpy as np
from cli.calls import Run, fails

NETWORK = """
import torch
from torch import nn
from spikecal.data.card import Card

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
                        nn.Linear(32, 4, bias=False))
    return net, Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
"""


def test_early_exit_on_the_command_line(run: Run) -> None:
    Path("nets.py").write_text(NETWORK)
    pixels = np.random.default_rng(0).integers(0, 256, (700, 3, 12, 12), dtype=np.uint8)
    np.savez("images.npz", x_train=pixels[:500], x_test=pixels[500:], y_test=np.arange(200) % 4)
    np.savez("one.npz", x=pixels[:50], y=np.arange(50) % 4)
    data = ("--data", "npz:images.npz")
    assert run("convert", "nets.py:make", *data, "--pipeline", "lcp", "-T", 1, "-T", 16, "-o", "n.snn")[0] == 0

    code, out, _ = run("evaluate", "n.snn", *data, "--exit", 0.9, "--json")
    assert code == 0
    facts = json.loads(out)
    networks = {found["T"]: found for found in facts["networks"]}
    exits = networks[16]["exit"]
    assert (exits["rule"]["agreement"], exits["rule"]["images"]) == (0.9, 500 - 125)
    assert 1 <= exits["steps"] < 16 and exits["settled"][-1] > 0 and exits["verdict"] in ("kept", "level")
    assert exits["curve"][-1] == exits["accuracy"] and exits["energy"]["ratio"] < networks[16]["energy"]["ratio"]
    assert "exit" not in networks[1] and "T = 1 cannot promise 90 %" in facts["without_exit"][0]
    assert "no early exit: T = 1 cannot promise 90 %" in run("evaluate", "n.snn", *data, "--exit", 0.9)[2]

    code, out, _ = run("evaluate", "n.snn", *data, "-T", 16, "--exit", 0.9, "--exit-images", 400)
    assert code == 0 and "With early exit" in out and "settled %" in out and "with exit %" in out

    fails(run("evaluate", "n.snn", *data, "-T", 1, "--exit", 0.99), "T = 1 cannot promise 99 %")
    fails(run("evaluate", "n.snn", *data, "--exit", 99), "a share between 0 and 1, such as 0.99, not 99")
    fails(run("evaluate", "n.snn", *data, "--exit-images", 100), "--exit-images is for --exit")
    fails(run("evaluate", "n.snn", "--data", "npz:one.npz", "--exit", 0.9), "npz:one.npz has only one split")
