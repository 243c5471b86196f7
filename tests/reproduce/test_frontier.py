"""The frontier in miniature: how its networks are made, what its cells hold, and the picture."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import deep, images
from PIL import Image
from reproduce.conftest import Reproduce

from spikecal.analysis.frontier import COSTS, Panel, Point, frontier
from spikecal.cli.main import main
from spikecal.graph.ops import Spike
from spikecal.pipeline import AUTO, LCP, Plan
from spikecal.progress import Silent
from spikecal.reproduce.paired import unpacked
from spikecal.reproduce.tables import OURS, find
from spikecal.reproduce.ways import Converted, Made, Order, TwoPhase, Way, Within


def made(way: Way, T: int, plan: Plan = LCP) -> Made:
    order = Order(model=deep(), images=images(48), plan=plan, T=T, seed=0, workdir=None, memory=None, progress=Silent())
    return way.make(order)


def test_two_phase_spikes_do_not_depend_on_when_input_arrives() -> None:
    """Each layer reads its whole input first: its counts are those of the constant current, in closed form."""
    snn = made(TwoPhase(), 4).snn
    layers = [stage for stage in snn.stages if stage.spiking]
    assert snn.waits == {stage.name: 3 for stage in layers}
    x = images(3, seed=9)
    counts = snn.run(x).spikes
    first, second = layers[:2]
    assert first.inputs != second.inputs == (first.name,)
    op = first.end.op
    assert isinstance(op, Spike) and op.theta is not None
    cells = op.cells(4)
    sent = cells.theta * counts[first.name] / 4
    value = sent
    for node in second.nodes[:-1]:
        value = node.op(value)
    end = second.end.op
    assert isinstance(end, Spike)
    even = end.neuron.closed_form(value, end.cells(value.ndim), 4)
    assert torch.equal(even.round(), counts[second.name].to(even.dtype))


def test_two_phase_is_calibrated_as_it_runs() -> None:
    """Not with the biases of a network without waits."""
    waiting, plain = (made(way, 4).snn for way in (TwoPhase(), Converted()))
    biases = [
        [stage.end.op.bias for stage in snn.stages if isinstance(stage.end.op, Spike)] for snn in (waiting, plain)
    ]
    assert not all(torch.equal(a, b) for a, b in zip(*biases, strict=True) if a is not None and b is not None)


def test_a_latency_is_a_way() -> None:
    assert made(Converted("+6"), 3).snn.latency <= 9
    assert Converted().depends() == {}  # cells of other tables keep their names
    assert Converted("+6").depends() != Converted("+7").depends() != TwoPhase().depends()
    assert Converted("+6").times(AUTO) > Converted().times(AUTO) > Converted().times(LCP) == 1


def test_table_picture_and_resuming(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("frontier", "-T", "2", "-T", "3", "--seeds", "1", "--waits", "4")
    (network,) = found["networks"]
    rows = {row["method"]: row["columns"] for row in network["rows"]}
    assert list(rows) == [row.label for row in find("frontier", 4).rows]
    for name, columns in rows.items():
        for T, column in columns.items():
            most = {"AUTO, latency T+4": int(T) + 4, "two-phase": int(T) + 2 * (int(T) - 1)}.get(name, int(T))
            assert int(T) <= column["latency"] <= most
            assert column["spikes"] > 0 and column["energy"] > 0
            (answers,) = column["answers"]
            assert 100 * float(unpacked(answers).mean()) == pytest.approx(column["mean"])
            assert ("kept" in column) == name.startswith("AUTO")
    assert rows["two-phase"]["3"]["latency"] == 7  # two layers of neurons
    page = (folder / "out" / "frontier.md").read_text()
    for head in (
        "accuracy %",
        "energy, times the ANN's",
        "latency, steps",
        "spikes per image",
        "pipeline that AUTO kept",
    ):
        assert f"| {head} | T=2 | T=3 |" in page
    assert "quoted" not in page and "How it was measured" in page
    with Image.open(folder / "out" / "frontier.png") as picture:
        assert picture.size[0] > 900

    written = {path: path.read_bytes() for path in (folder / "out").glob("frontier.*")}
    cells = sorted((folder / "out" / "cells").glob("*.json"))
    cells[0].unlink()
    again = reproduce("frontier", "-T", "2", "-T", "3", "--seeds", "1", "--waits", "4")
    assert again == found == json.loads((folder / "out" / "frontier.json").read_text())
    assert sorted((folder / "out" / "cells").glob("*.json")) == cells
    assert (folder / "out" / "frontier.md").read_bytes() == written[folder / "out" / "frontier.md"]


def test_waits_are_for_the_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lcp", "--waits", "3"]) == 2
    assert "--waits is for the table frontier, not for lcp" in capsys.readouterr().err
    assert find("frontier") == OURS["frontier"] != find("frontier", 3)


def test_effort_is_for_the_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "latency", "--effort", "high"]) == 2
    assert "--effort is for the table frontier, not for latency" in capsys.readouterr().err
    tuned = {row.label: row.pipeline for row in find("frontier", 3, "high").rows}
    assert tuned["AUTO, high effort"] == tuned["AUTO, high effort, latency T+3"] == replace(AUTO, effort="high")


def test_equal_latency(reproduce: Reproduce) -> None:
    """T is chosen within the latency of the column; the page says which was."""
    found = reproduce("latency", "-T", "6", "--seeds", "1", "--row", "LCP", "--row", "AUTO with waits")
    (network,) = found["networks"]
    lcp, waiting = (row["columns"]["6"] for row in network["rows"])
    assert lcp["latency"] == 6 >= waiting["latency"]
    (kept,) = waiting["kept"]
    assert 2 <= int(kept.removeprefix("T=").partition(",")[0]) <= 6
    assert [claim["claim"] for claim in found["claims"]] == ["AUTO with waits beats LCP"]


def test_t_is_free_within_a_latency() -> None:
    free = made(Within(), 9)
    assert free.snn.latency <= 9 and free.kept == f"T={free.snn.T}"
    assert Within().depends() not in (Converted().depends(), Converted("+9").depends())


def test_panels_share_the_accuracy() -> None:
    points = [Point(40.0 * n, {"latency": 2.0 * n, "spikes": 30000.0 * n, "energy": 0.2 * n}) for n in (1, 2)]
    figure = frontier([Panel("net", {"LCP": points, "AUTO": points}, 90.0)])
    assert [axes.get_xlabel() for axes in figure.axes] == [label for label, _ in COSTS.values()]
    for axes, (cost, (_, unit)) in zip(figure.axes, COSTS.items(), strict=True):
        curve = axes.lines[0]
        assert list(curve.get_xdata()) == [point.costs[cost] / unit for point in points]
        assert list(curve.get_ydata()) == [40.0, 80.0]
        assert axes.get_xscale() == "log" and axes.get_ylim() == figure.axes[0].get_ylim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["LCP", "AUTO", "ANN"]
