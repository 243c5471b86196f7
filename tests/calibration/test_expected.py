"""Expected energy against what a run counts, and the advice that fits the cause."""

import json
import logging

import pytest
import torch
from networks import residual
from torch import nn

import spikecal
from spikecal.cli.main import main


class Inverted(nn.Module):
    """Linear bottlenecks, as in MobileNetV2: what expands reads linear values."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 32, 1), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)) for _ in range(blocks)
        )
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.relu().mean((2, 3)))


class Bottleneck(nn.Sequential):
    """Mostly layers that read currents."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
        )  # fmt: skip


@pytest.mark.parametrize("make", [residual, Inverted])
def test_it_is_close_to_the_counts_of_a_run(make: type[nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), torch.rand(64, 3, 12, 12)
    with caplog.at_level(logging.WARNING, "spikecal"):
        snn = spikecal.convert(model, x, T=64, pipeline="baseline").snn
    counted = spikecal.evaluate(snn, x, ann=model).energy
    assert counted is not None and counted.ratio is not None and counted.ratio > 1.2
    said = float(caplog.text.partition("expected energy at T=64: ")[2].partition(" %")[0])
    assert said / 100 == pytest.approx(counted.ratio, rel=0.25)


def test_the_advice_fits_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    x = torch.rand(16, 3, 12, 12)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5)
    )
    spikecal.convert(plain.eval(), x, T=64, pipeline="baseline")
    assert "use fewer steps: the costs are equal at about T=" in caplog.text and "joints" not in caplog.text
    caplog.clear()
    spikecal.convert(Bottleneck().eval(), x, T=8, pipeline="baseline", joints="analog")
    assert 'joints="signed"' in caplog.text and "fewer steps" not in caplog.text
    caplog.clear()
    spikecal.convert(plain.eval(), x, T=2, pipeline="baseline")
    assert "energy" not in caplog.text


def test_check_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "resnet20", "-T", "4", "--json"]) == 0
    few = json.loads(capsys.readouterr().out)["estimate"]["energy_ratio"]
    assert main(["check", "resnet20", "-T", "256"]) == 0
    many = capsys.readouterr().out
    assert 0 < few < 1 and "use fewer steps: the costs are equal at about T=" in many
    torch.manual_seed(0)
    told = str(spikecal.check(Bottleneck().eval(), torch.rand(4, 3, 12, 12), T=8))
    assert "expected energy at T=8: " in told and "joints signed, the default: spikes of 1 layer of" in told
    one_layer = nn.Sequential(nn.Linear(4, 3), nn.ReLU())  # reads the image: nothing is left to save
    assert "expected energy at T=4: 100 % of the ANN's" in str(spikecal.check(one_layer, torch.rand(4, 4), T=4))
