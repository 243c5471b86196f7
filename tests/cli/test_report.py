"""`spikecal report`, and `--report` of `convert` and `demo`, as a user has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.calls import NETWORK, Run, fails

import spikecal

NETWORKS = (
    NETWORK
    + """
def headed():
    return nn.Sequential(*make()[0], nn.Softmax(1)), make()[1]

def other():
    net, card = make()
    torch.manual_seed(7)
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return net, card

def turned():
    net, card = make()
    net[-1].weight.data = net[-1].weight.data.roll(1, 0)
    net[-1].bias.data = net[-1].bias.data.roll(1, 0)
    return net, card

def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1)), make()[1]
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A small network and images for it, in the folder of the command."""
    (tmp_path / "nets.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=rng.integers(0, 4, 40))
    np.savez(tmp_path / "unlabelled.npz", images=images)


def convert(run: Run, name: str, *more: object) -> dict[str, Any]:
    code, out, err = run(
        "convert", "nets.py:make", "--data", "npz:images.npz", "-T", 2, "-T", 4, "-o", name, *more, "--json"
    )
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def data_of(path: Path) -> dict[str, Any]:
    """What the page holds, read back out of it."""
    text = path.read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0]
    return dict(json.loads(text))


class TestReport:
    def test_numbers_are_those_of_evaluate(self, run: Run, tmp_path: Path) -> None:
        converted = convert(run, "net.snn")
        code, out, err = run("report", "net.snn", "--data", "npz:images.npz", "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert facts["bytes"] == (tmp_path / "report.html").stat().st_size
        found = json.loads(run("evaluate", "net.snn", "--data", "npz:images.npz", "--json")[1])
        page = data_of(tmp_path / "report.html")
        for said, shown, expected in zip(facts["networks"], page["networks"], found["networks"], strict=True):
            assert said["T"] == shown["T"] == expected["T"]
            assert shown["curve"] == pytest.approx(expected["accuracy"], rel=1e-5)
            assert said["agreement"] == pytest.approx(expected["agreement"][-1], rel=1e-5)
            assert said["energy"] == pytest.approx(expected["energy"]["ratio"], rel=1e-5)
            assert said["ann"] == pytest.approx(found["ann"], rel=1e-5)
            assert said["rate"] == pytest.approx(expected["rate"], rel=1e-5)
            phases = converted["phases"]
            alone = phases["lower"] + phases["thresholds"] + phases[f"T={said['T']}"]
            assert said["seconds"] == pytest.approx(alone, rel=1e-5)
            assert expected["conversion_seconds"] == pytest.approx(alone)
        assert "Few calibration images" in [finding["title"] for finding in facts["findings"]]

    def test_for_people(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        code, out, err = run("report", "net.snn", "--data", "npz:images.npz", "-T", 4, "-o", "a.html")
        assert (code, err) == (0, "")
        assert "a.html: " in out
        assert "At 4 steps the spiking network is right on" in out
        assert "warning: Few calibration images" in out
        assert [n["T"] for n in data_of(tmp_path / "a.html")["networks"]] == [4]

    def test_without_images_it_is_what_the_file_carries(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        code, out, err = run("report", "net.snn", "--images", 0)
        assert (code, err) == (0, "")
        assert out.count("no images were run") == 1
        page = data_of(tmp_path / "report.html")
        assert page["sets"] == []
        assert page["networks"][0]["origin"] == "file"  # convert measured it
        assert "no images were run" in (tmp_path / "report.html").read_text().split("<script")[0]

    def test_the_file_remembers_its_images(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        code, out, _ = run("report", "net.snn")
        assert code == 0 and "no images were run" not in out
        assert len(data_of(tmp_path / "report.html")["sets"]) == 1

    def test_several_files_and_model(self, run: Run, tmp_path: Path) -> None:
        convert(run, "a.snn")
        convert(run, "b.snn", "--pipeline", "acp", "--iterations", 3)
        code, out, err = run("report", "a.snn", "b.snn", "--data", "npz:images.npz")
        assert (code, err) == (0, "")
        assert "b.snn no longer holds its ANN" in out
        page = data_of(tmp_path / "report.html")
        assert [source["against_ann"] for source in page["sources"]] == [True, False]
        assert "parts" not in page["networks"][2]["layers"][0]
        code, out, _ = run("report", "a.snn", "b.snn", "--data", "npz:images.npz", "--model", "nets.py:make")
        assert code == 0
        assert "no longer" not in out
        page = data_of(tmp_path / "report.html")
        assert all("parts" in network["layers"][0] for network in page["networks"])

    def test_model_of_other_weights(self, run: Run, tmp_path: Path) -> None:
        convert(run, "a.snn")
        other = ("--data", "npz:images.npz", "--model", "nets.py:other")
        fails(run("evaluate", "a.snn", *other), "a.snn was made from other weights")
        fails(run("report", "a.snn", *other), "a.snn was made from other weights")
        assert not (tmp_path / "report.html").exists()
        convert(run, "b.snn", "--pipeline", "acp", "--iterations", 2)  # the ANN is no longer in it
        turned = ("--data", "npz:images.npz", "--model", "nets.py:turned")
        code, out, err = run("evaluate", "b.snn", *turned)
        assert code == 0
        assert "about chance: was it made from these weights?" in err
        code, out, err = run("report", "b.snn", *turned)
        assert (code, err) == (0, "")
        assert "about chance" in out
        code, out, err = run("report", "b.snn", "--data", "npz:images.npz", "--model", "nets.py:make")
        assert "about chance" not in out

    def test_without_labels(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        code, out, _ = run("report", "net.snn", "--data", "npz:unlabelled.npz")
        assert code == 0
        assert "agrees with the original on" in out
        assert data_of(tmp_path / "report.html")["networks"][0]["measure"] == "agreement"

    def test_of_a_network_that_is_not_a_classifier(self, run: Run, tmp_path: Path) -> None:
        arguments = ("nets.py:dense", "--data", "npz:images.npz", "-T", 2, "-o", "d.snn", "--report", "d.html")
        code, out, err = run("convert", *arguments)
        assert code == 0
        assert "no summary" in err
        assert "one row of classes" in out
        code, out, err = run("report", "d.snn", "--data", "npz:images.npz")
        assert (code, err) == (0, "")
        assert "one row of classes" in out
        assert data_of(tmp_path / "report.html")["networks"][0]["traces"]

    def test_of_a_file_made_with_keep(self, run: Run, tmp_path: Path) -> None:
        arguments = ("nets.py:headed", "--data", "npz:images.npz", "-T", 4, "--keep", "8", "-o", "k.snn")
        code, _, err = run("convert", *arguments, "--report", "made.html")
        assert (code, err) == (0, "")
        made = data_of(tmp_path / "made.html")["networks"][0]
        code, out, err = run("report", "k.snn", "--data", "npz:images.npz")
        assert (code, err) == (0, "")
        assert "without its analog head" in out
        assert data_of(tmp_path / "report.html")["networks"][0]["layers"][0]["parts"]
        code, out, err = run("report", "k.snn", "--data", "npz:images.npz", "--model", "nets.py:headed")
        assert (code, err) == (0, "")
        found = data_of(tmp_path / "report.html")["networks"][0]
        assert found["curve"] == made["curve"]
        assert found["traces"][0]["answers"] == made["traces"][0]["answers"]

    def test_a_file_cannot_name_code_to_run(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        (tmp_path / "evil.py").write_text("import pathlib\ndef make():\n    pathlib.Path('ran').touch()\n")
        network = spikecal.load(tmp_path / "net.snn")
        network.origin = network.origin.changed(card={**(network.origin.card or {}), "data": "evil.py:make"})
        network.save(tmp_path / "bad.snn")
        fails(run("evaluate", "bad.snn"), "evil.py:make as its images, which is code")
        code, out, _ = run("report", "bad.snn")
        assert code == 0
        assert "no images were run" in out
        assert not (tmp_path / "ran").exists()

    def test_bad_calls(self, run: Run, tmp_path: Path) -> None:
        convert(run, "net.snn")
        fails(run("report", "none.snn"), "none.snn")
        fails(run("report"), "FILE")
        fails(run("report", "net.snn", "-T", 3), "choose from T=2, 4")
        fails(run("report", "net.snn", "-o", "none/a.html"), "no folder")
        fails(run("report", "net.snn", "--data", "folder:none"), "no folder none")
        fails(run("report", "net.snn", "--data", "npz:images.npz", "--model", "resnet20"), "net.snn")
        fails(
            run("convert", "nets.py:make", "--data", "npz:images.npz", "-o", "x.snn", "--report", "no/a.html"),
            "no folder",
        )
        assert not (tmp_path / "report.html").exists()


def test_convert_writes_one(run: Run, tmp_path: Path) -> None:
    facts = convert(run, "net.snn", "--report", "made.html")
    page = data_of(tmp_path / "made.html")
    for network, expected in zip(page["networks"], facts["summary"]["networks"], strict=True):
        assert network["curve"] == pytest.approx(expected["accuracy"], rel=1e-5)
        assert network["seconds"] > 0
    assert facts["report"]["file"] == "made.html"
    plain = convert(run, "again.snn")
    assert "report" not in plain
    assert (tmp_path / "net.snn").read_bytes() == (tmp_path / "again.snn").read_bytes()
    convert(run, "net.snn", "--report", "made.html", "--test", 0)
    assert data_of(tmp_path / "made.html")["sets"] == []
