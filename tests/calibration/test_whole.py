"""Phases on the whole network: they run in their turn among the sweeps, and a killed one resumes like a sweep."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from networks import images, residual

import spikecal
from spikecal import Bias, ConfigError, Pipeline, Potential, phases
from spikecal.calibration.whole import NetworkPhase, State, Whole
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Joint, frozen
from spikecal.pipeline import NETWORK_PHASES

CLASSES = 5  # of the network


@dataclass(frozen=True, kw_only=True)
class Drift(NetworkPhase):
    """Moves the target of the output in random steps, one per round: what a phase learns, what is random in it."""

    rounds: int = 1
    label = "drift"

    def passes(self, images: int, T: int) -> float:
        return self.rounds * images

    def start(self, whole: Whole) -> State:
        return {"shift": torch.zeros(CLASSES)}

    def advance(self, whole: Whole, state: State, number: int) -> State:
        generator = torch.Generator().manual_seed(1000 * whole.seed + number)
        pixels = torch.stack([image[0].mean() for image in whole.images]).mean()
        return {"shift": state["shift"] + pixels + torch.randn(CLASSES, generator=generator)}

    def finish(self, whole: Whole, state: State) -> Graph:
        aim = whole.ann.clone()
        for graph in (aim, whole.network.graph):
            (output,) = graph.outputs()
            joint = graph.nodes[output].op
            assert isinstance(joint, Joint)
            joint.bias = frozen(state["shift"])
        return aim


class Killed(Exception):
    pass


class Trap:
    """Progress that stops the process after so many rounds."""

    def __init__(self, rounds: float) -> None:
        self.left, self.rounds, self.phases = rounds, 0, list[str]()

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.phases.append(name)

    def advance(self, note: str = "") -> None:
        if self.phases[-1].endswith("drift"):
            self.rounds += 1
            self.left -= 1
            if self.left < 0:
                raise Killed


PIPELINE = Pipeline(sweeps=((Potential(images=8),), Drift(images=8, rounds=5), (Bias(images=8),)))


def test_a_phase_changes_the_network_and_what_the_sweep_after_it_aims_at() -> None:
    result = spikecal.convert(residual(), images(8), T=4, pipeline=PIPELINE)
    plain = spikecal.convert(
        residual(), images(8), T=4, pipeline=Pipeline(sweeps=(PIPELINE.sweeps[0], (Bias(images=8),)))
    )
    x = images(8)
    moved = result.snn(x) - plain.snn(x)
    state = {"shift": torch.zeros(CLASSES)}
    whole = Whole(
        result.snn.graph, result.snn.graph, result.snn, [(image[None],) for image in x], 0, lambda op, theta: None
    )
    for number in range(5):
        state = PIPELINE.sweeps[1].advance(whole, state, number)  # type: ignore[union-attr]
    torch.testing.assert_close(moved, state["shift"].expand_as(moved), atol=1e-4, rtol=1e-4)
    assert [record.sweep for record in result.records] == [0] * len(plain.snn.stages) + [2] * len(plain.snn.stages)


def test_stopped_after_every_round_it_resumes_to_the_same_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "SAVE_SECONDS", 0)
    monkeypatch.setitem(NETWORK_PHASES, "drift", Drift)  # a working directory names what it holds
    expected = spikecal.convert(residual(), images(8), T=4, pipeline=PIPELINE, seed=3).snn.state_dict()
    for rounds in (0, 0, 1, 0):  # how many it survives each time
        trap = Trap(rounds)
        with pytest.raises(Killed):
            spikecal.convert(residual(), images(8), T=4, pipeline=PIPELINE, seed=3, workdir=tmp_path, progress=trap)
        assert trap.rounds == rounds + 1
    finished = Trap(float("inf"))
    found = spikecal.convert(
        residual(), images(8), T=4, pipeline=PIPELINE, seed=3, workdir=tmp_path, progress=finished
    ).snn.state_dict()
    assert finished.rounds == 0  # all five were done in the processes before
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_phase_that_is_not_spikecals_runs_and_is_stored(tmp_path: Path) -> None:
    result = spikecal.convert(residual(), images(8), T=2, pipeline=PIPELINE)
    result.save(tmp_path / "net.snn")
    assert torch.equal(spikecal.load(tmp_path / "net.snn")(images(3)), result.snn(images(3)))
    kept = spikecal.convert(residual(), images(8), T=2, pipeline=PIPELINE, workdir=tmp_path / "work")
    assert torch.equal(kept.snn(images(3)), result.snn(images(3)))


def test_a_phase_comes_back_from_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORK_PHASES, "drift", Drift)
    plain = PIPELINE.to_dict()
    assert plain["sweeps"][1] == {"kind": "drift", "images": 8, "rounds": 5}
    assert Pipeline.from_dict(plain) == PIPELINE


def test_settings_of_phases_are_changed_like_those_of_calibrators() -> None:
    changed = PIPELINE.changed(Drift, rounds=7).with_images(4)
    assert changed.sweeps == ((Potential(images=4),), Drift(images=4, rounds=7), (Bias(images=4),))
    assert PIPELINE.images == 1024 and changed.images == 4
    assert Pipeline(sweeps=(Drift(images=5000),)).images == 5000


@pytest.mark.parametrize("bad", [{"images": 0}, {"rounds": 0}])
def test_a_phase_without_images_or_rounds_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="drift needs at least one image and one round"):
        Drift(**bad)
