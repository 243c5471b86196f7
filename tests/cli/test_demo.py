"""The demo, with fewer steps and images than it has."""

import json
from pathlib import Path

import pytest
from PIL import Image

from spikecal.cli.main import main
from spikecal.tasks import demo


def test_table_plot_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STEPS", (1, 2))
    monkeypatch.setattr(demo, "TEST_IMAGES", 20)
    monkeypatch.setattr(demo, "FEWER_IMAGES", 32)
    monkeypatch.setattr(demo, "FEWER_ITERATIONS", 2)
    monkeypatch.setattr(demo, "AUTO_IMAGES", 32)
    monkeypatch.setattr(demo, "WAITS_TO", 1)
    page = tmp_path / "demo.html"
    assert main(["demo", "--output", str(tmp_path / "out"), "--report", str(page)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    names = ["BASELINE", "LCP", "ACP", "AUTO", "AUTO, latency T+10"]
    starts = [line.strip() for line in lines if line.strip().startswith(("ANN", *names))]
    assert [line.split("  ")[0] for line in starts[:6]] == ["ANN", *names]
    assert "ACP is shortened here: its weights calibration runs 2 iterations of Adam on 32 images" in out
    said = [line for line in err.splitlines() if not line.startswith("plan: ")]  # of a conversion that takes long
    assert all("latency" in line for line in said)  # one step cannot use that of its last row

    facts = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert facts["test_images"] == 20
    assert facts["calibration_images"] == 1024
    for name in names:
        assert list(facts["accuracy"][name]) == (["1"] if "latency" in name else ["1", "2"])
        for T in facts["accuracy"][name]:
            curve = facts["after_every_step"][name][T]
            assert len(curve) == int(T)
            assert facts["accuracy"][name][T] == curve[-1]
            assert all(0 <= value <= 1 for value in curve)
            assert facts["latency"][name][T] == int(T)  # one step leaves nothing to wait for
    assert set(facts["kept"]["AUTO"].values()) <= {"LCP", "PC", "temporal bias"}
    assert facts["ann"] > 0.6  # of ten classes: the embedded network has learned

    shown = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    assert [source["name"] for source in shown["sources"]] == names
    for network in shown["networks"]:
        curve = facts["after_every_step"][network["source_name"]][str(network["T"])]
        assert network["curve"] == pytest.approx(curve, rel=1e-5)
        assert network["ann"] == pytest.approx(facts["ann"], rel=1e-5)
    assert len(shown["sets"]) == 1
    assert shown["sets"][0]["classes"][0] == "airplane"
    assert facts["report"]["bytes"] == page.stat().st_size

    with Image.open(tmp_path / "out" / "accuracy.png") as plot:
        assert min(plot.size) > 400
