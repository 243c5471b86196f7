"""Every table in miniature: its cells, the paper's figures beside them, and the files written."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reproduce.conftest import Reproduce

import spikecal
from spikecal.calibration.calibrators import Calibrator
from spikecal.cli.main import main
from spikecal.data.prepare import prepare
from spikecal.data.sets.demo import load_demo
from spikecal.data.sources import load_data, subset
from spikecal.reproduce.claims import Gain, LostByBN
from spikecal.reproduce.paper import paper_tables
from spikecal.reproduce.render import markdown
from spikecal.reproduce.said import SAID
from spikecal.reproduce.sizes import PAPER, Sizes
from spikecal.reproduce.summary import spread
from spikecal.reproduce.tables import TABLES, find
from spikecal.zoo.models import load_model

# where images are distilled, that has tests of its own
ACCURACY = [name for name, table in TABLES.items() if table.kind == "accuracy" and not table.sources]


@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy_tables(reproduce: Reproduce, folder: Path, name: str) -> None:
    table = find(name)
    models = tuple("nets.py:make" if bn else "nets.py:plain" for bn in table.bn)
    found = reproduce(name, "-T", "2", "-T", "3", models=models)
    assert [network["bn"] for network in found["networks"]] == list(table.bn)
    page = (folder / "out" / f"{name}.md").read_text()
    for network in found["networks"]:
        assert [row["method"] for row in network["rows"]] == [row.label for row in table.rows]
        for row in network["rows"]:
            assert set(row["columns"]) == {"2", "3"}
            shown = []
            for column in row["columns"].values():
                assert column["images"] == 20
                assert all(0 <= value <= 100 and (value / 5) % 1 < 1e-9 for value in column["values"])  # of 20 images
                deviation = "" if column["std"] is None else f" ± {column['std']:.2f}"
                shown.append(f"{column['mean']:.2f}{deviation}")
            added = " (not in the paper's table)" if row["added"] else ""
            assert f"| {row['method']}{added} | {' | '.join(shown)} |" in page
    judged = {claim["claim"] for claim in found["claims"]}
    assert judged >= {claim.text for claim in SAID[name] if type(claim) in (Gain, LostByBN) and claim.at == "all"}
    assert judged <= {claim.text for claim in SAID[name]}
    assert "## The paper's figures, quoted" in page


def test_a_cell_is_a_conversion_and_an_evaluation(reproduce: Reproduce) -> None:
    """Against the library's own steps, by hand, for every seed."""
    found = reproduce("lcp", "-T", "4")
    row = next(row for row in found["networks"][0]["rows"] if row["method"] == "MMSE* + LCP")
    model, card = load_model("nets.py:make")
    train, test = load_data("npz:images.npz", "train"), subset(load_data("npz:images.npz", "test"), 20, 0)
    images, tested = (prepare(torch.stack(list(d.images)), card, "") for d in (train, test))
    expected = []
    for seed in (0, 1):
        snn = spikecal.convert(model, images, T=4, pipeline=spikecal.LCP, seed=seed).snn
        expected.append(100 * float((snn(tested).argmax(1) == test.labels).float().mean()))
    assert row["columns"]["4"]["values"] == pytest.approx(expected)
    ann = 100 * float((model(tested).argmax(1) == test.labels).float().mean())
    assert found["networks"][0]["ann"] == [{"images": 20, "accuracy": pytest.approx(ann)}]


def test_mean_and_deviation() -> None:
    assert spread([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(7**0.5), "values": [1.0, 2.0, 6.0]}
    assert spread([4.0])["std"] is None


def test_long_columns_have_their_own_sizes(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("cifar", "-T", "2", "-T", "512", "--long-images", "10")
    rows = found["networks"][0]["rows"]
    assert {row["columns"]["512"]["images"] for row in rows} == {10}
    assert {len(row["columns"]["512"]["values"]) for row in rows} == {1}
    assert {a["images"] for a in found["networks"][0]["ann"]} == {10, 20}
    assert "T≥512 (512)" in (folder / "out" / "cifar.md").read_text()
    assert any(said.startswith("T=512 stands for the paper's T≥512: 1 seed, 10 test") for said in found["differences"])
    said = " ".join(reproduce("cifar", "-T", "512", "--long-images", "10")["differences"])
    assert "10 test images, calibrated on 32 images" in said
    assert "a fixed" not in said and "Seeds: " not in said and "from 256" not in said  # of the other columns


def test_sizes_by_steps(reproduce: Reproduce, folder: Path) -> None:
    """Fewer images from one T on, and rows with weights calibration only up to another."""
    steps = ["-T", "2", "-T", "4", "-T", "8"]
    sizes = ["--long-from", "4", "--long-images", "10", "--long-calibration", "128", "--weights-to", "4"]
    found = reproduce("imagenet", *steps, *sizes)
    rows = {row["method"]: row["columns"] for row in found["networks"][0]["rows"]}
    for columns in rows.values():
        assert [len(columns[T]["values"]) for T in ("2", "4")] in ([1, 1], [2, 1])  # all images: no seed can matter
    assert {name: [(T, c["images"]) for T, c in columns.items()] for name, columns in rows.items()} == {
        "Baseline": [("2", 20), ("4", 10), ("8", 10)],
        "Baseline + LCP": [("2", 20), ("4", 10), ("8", 10)],
        "Baseline + PC": [("2", 20), ("4", 10), ("8", 10)],
        "Baseline + ACP": [("2", 20), ("4", 10)],
    }
    compared = {(judged["claim"], judged["T"]) for judged in found["claims"]}
    assert ("Baseline + LCP beats Baseline", 8) in compared
    assert ("Baseline + ACP beats Baseline + LCP", 4) in compared
    assert ("Baseline + ACP beats Baseline + LCP", 8) not in compared
    said = found["differences"]
    assert "T=8: 1 seed, 10 test images." in said
    assert "Baseline + ACP: up to T=4; larger T were not measured, and cells are empty." in said
    page = (folder / "out" / "imagenet.md").read_text()
    ours = [line for line in page.splitlines() if line.startswith("| Baseline + ACP | ")][:2]  # accuracy and energy
    assert [line.endswith(" |  |") for line in ours] == [True, True]
    assert "| T=2 | T=4 | T=8 |" in page and "T≥" not in page.partition("What the paper claims")[0]
    # fewer images than a calibrator takes by default are reported
    fewer = reproduce("imagenet", "-T", "8", *sizes, "--long-calibration", "16")
    assert "T=8: 1 seed, 10 test images, calibrated on 16 images." in fewer["differences"]
    few = reproduce("imagenet", "-T", "2", "--calibration", "16")
    assert "Calibrators: from at most 16 images each; thresholds from all." in few["differences"]
    assert {c["images"] for c in few["settings"]["pipelines"]["Baseline + LCP"]["sweeps"][0]} == {16}
    assert [bool(row["columns"]) for row in fewer["networks"][0]["rows"]] == [True, True, True, False]


def test_energy_is_beside_the_accuracy_where_cells_have_it(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("bn", "-T", "2")
    cells = [(path, json.loads(path.read_text())) for path in (folder / "out" / "cells").glob("*.json")]
    (spiking,) = [cell["found"] for _, cell in cells if "energy" in cell["found"]]
    column = found["networks"][0]["rows"][0]["columns"]["2"]
    assert column["energy"] == spiking["energy"] > 0
    title = "| energy, times the ANN's | T=2 |"
    page = (folder / "out" / "bn.md").read_text()
    assert f"{title}\n| --- | --- |\n| MMSE + ClipRound | {column['energy']:.2f} |" in page
    for path, cell in cells:  # as versions before this one wrote them
        cell["found"].pop("energy", None)
        path.write_text(json.dumps(cell))
    again = reproduce("bn", "-T", "2")
    del column["energy"]
    assert again == found
    assert title not in (folder / "out" / "bn.md").read_text()


def test_a_page_says_what_its_images_are(reproduce: Reproduce, folder: Path) -> None:
    function = """

def images(split):
    from dataclasses import replace
    from spikecal.data.sources import load_data
    return replace(load_data("npz:images.npz", split), about="drawn by a machine")
"""
    (folder / "nets.py").write_text((folder / "nets.py").read_text() + function)
    assert "Images: drawn by a machine." in reproduce("bn", "-T", "2", "--data", "nets.py:images")["differences"]
    assert not any(said.startswith("Images: ") for said in reproduce("bn", "-T", "2")["differences"])


def test_rows_that_no_seed_can_change_are_measured_once(reproduce: Reproduce) -> None:
    rows = {row["method"]: row for row in reproduce("lcp", "-T", "2")["networks"][0]["rows"]}
    assert len(rows["MMSE*, uncalibrated"]["columns"]["2"]["values"]) == 1  # 60 images, all of them for thresholds
    assert len(rows["MMSE* + LCP"]["columns"]["2"]["values"]) == 2


def test_tables_share_cells(reproduce: Reproduce, folder: Path) -> None:
    reproduce("clipround", "-T", "2", models=("nets.py:plain",))
    before = {path.name for path in (folder / "out" / "cells").iterdir()}
    reproduce("threshold", "-T", "2", models=("nets.py:plain",))
    names = [json.loads(p.read_text())["cell"] for p in (folder / "out" / "cells").iterdir() if p.name not in before]
    assert sorted(name.split(", ")[1] for name in names) == ["MMSE*", "Percentile 99.99 %"]


def test_time(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("time", "-T", "2", "-T", "8")
    for row in found["networks"][0]["rows"]:
        for column in row["columns"].values():
            assert column["mean"] == pytest.approx(statistics.fmean(column["values"]))
            assert min(column["values"]) > 0
            assert column["passes"] > 1
    assert {row["method"]: row["columns"]["8"]["images"] for row in found["networks"][0]["rows"]} == {
        "Bias": 60,
        "Potential": 60,
        "Weights": 60,
    }
    assert "| thresholds, before each of these |" in (folder / "out" / "time.md").read_text()


def test_space_is_exact(reproduce: Reproduce) -> None:
    rows = reproduce("space")["networks"][0]["rows"]
    # two layers of 8 channels and 4 classes; 8 maps of 12×12 and of 5×5; 8·3·9 + 8·8·9 + 8·4 weights
    assert [row["numbers"] for row in rows] == [20, 8 * 144 + 8 * 25, 216 + 576 + 32]
    assert rows[0]["mb"] == 20 * 4 / 2**20


def test_space_is_counted_at_the_size_of_the_images(reproduce: Reproduce, folder: Path) -> None:
    """Of a network that does not state its own."""
    (folder / "nets.py").write_text((folder / "nets.py").read_text() + "\n\ndef bare():\n    return make()[0]\n")
    rows = [reproduce("space", models=("nets.py:bare",))["networks"][0]["rows"]]
    arrays = dict(np.load(folder / "images.npz"))
    wider = {key: np.repeat(a, 2, axis=2) if key.startswith("x_") else a for key, a in arrays.items()}
    np.savez(folder / "images.npz", **wider)
    rows.append(reproduce("space", models=("nets.py:bare",))["networks"][0]["rows"])
    assert [row["numbers"] for row in rows[0]] == [20, 8 * 144 + 8 * 25, 216 + 576 + 32]
    assert [row["numbers"] for row in rows[1]] == [20, 2 * 8 * 144 + 8 * 5 * 11, 216 + 576 + 32]


def test_pages_say_what_seeds_choose(reproduce: Reproduce) -> None:
    all_serve = "Calibration: npz:images.npz has 60 training images, all used for thresholds"
    assert f"{all_serve}." in reproduce("bn", "-T", "2")["differences"]
    assert f"{all_serve}." in reproduce("lcp", "-T", "2")["differences"]
    drawn = "the minibatches of weights calibration"
    assert f"{all_serve}; seeds choose {drawn}." in reproduce("acp", "-T", "2")["differences"]
    fewer = "16 for weights"
    said = reproduce("acp", "-T", "2", "--weights-images", "16")["differences"]
    assert f"{all_serve}; seeds choose {fewer}, and {drawn}." in said


def test_imagenet_from_a_folder_of_class_folders(reproduce: Reproduce, folder: Path) -> None:
    for split in ("train", "test"):
        images, labels = load_demo(split)
        for i in range(24):
            place = folder / "set" / split / f"class{int(labels[i]) % 4}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(images[i].permute(1, 2, 0))).save(place / f"{i}.png")
    found = reproduce("imagenet", "-T", "2", "--data", "folder:set", models=("nets.py:make", "nets.py:plain"))
    assert [network["data"] for network in found["networks"]] == ["folder:set"] * 2
    assert {column["images"] for row in found["networks"][0]["rows"] for column in row["columns"].values()} == {20}
    assert (
        "| Spike-Norm (Sengupta et al. 2018, as the paper quotes it) | no | 70.69 |"
        in (folder / "out" / "imagenet.md").read_text()
    )


def test_the_paper_beside_ours_only_where_the_setting_is_the_same(reproduce: Reproduce) -> None:
    found = reproduce("cifar", "-T", "2")
    assert not any("paper" in c for row in found["networks"][0]["rows"] for c in row["columns"].values())


def test_the_papers_own_network_has_its_figures_beside_it() -> None:
    """Checks of the planned cells, without hours of measuring."""
    from spikecal.reproduce.classifiers import Classifier
    from spikecal.reproduce.differences import _of_anns
    from spikecal.reproduce.run import Plan
    from spikecal.reproduce.summary import _with_paper
    from spikecal.zoo.models import build_model

    table = find("cifar")
    for spec, data, expected, theirs in (
        ("resnet20-wide", "cifar10", [75.07, 0.88], "ResNet-20 (64-128-256) has 96.72"),
        ("vgg16", "demo", [71.53, 3.19], "VGG-16 has 95.60"),
        ("vgg16", "cifar100", [30.12, 2.37], "VGG-16 has 77.93"),
        ("resnet20", "cifar10", None, None),
        ("vgg16", "npz:x", None, None),
    ):
        network, card = build_model(spec)
        subject = Classifier(spec=spec, network=network, card=card, data=data)
        rows = [{"method": "Baseline + LCP", "columns": {"4": {}, "5": {}}}]
        plan = Plan(table, Sizes(), (4, 5), {spec: subject}, [])
        found = _with_paper(plan, subject, rows)
        assert found[0]["columns"]["4"].get("paper") == expected
        assert "paper" not in found[0]["columns"]["5"]
        ours = {"model": spec, "data": data, "bn": True, "ann": [{"accuracy": 87.7, "images": 1000}]}
        said = [f"ANN: {spec} has 87.70 % on 1,000 images; the paper's {theirs} %."] if theirs else []
        assert _of_anns(plan, [ours]) == said


def test_the_command_is_on_the_page_without_the_places_of_files(reproduce: Reproduce, folder: Path) -> None:
    found = reproduce("bn", "-T", "2", "--strict")
    command = (
        "spikecal reproduce bn --model nets.py:make --data npz:images.npz -T 2 --images 20 --seeds 2 --iterations 3 "
        "--long-images 10 --strict"
    )
    assert found["command"] == command
    page = (folder / "out" / "bn.md").read_text()
    assert f"```\n{command}\n```" in page
    assert f"Written with torch {torch.__version__} on " in page
    network, _ = load_model("resnet20")
    torch.save(network.state_dict(), folder / "w.pt")
    for entry, shown in ((f"resnet20={folder}/w.pt", "resnet20=w.pt"), (f"{folder}/w.pt", "w.pt")):
        assert main(["reproduce", "space", "--model", "resnet20", "--weights", entry]) == 0
        made = json.loads(Path("spikecal-tables/space.json").read_text())["command"]
        assert made == f"spikecal reproduce space --model resnet20 --weights {shown}"


def test_unreadable_images_are_skipped_and_reported(
    reproduce: Reproduce, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for i in range(24):
            place = folder / "set" / split / f"class{i % 4}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(place / f"{i:02}.png")
        (folder / "set" / split / "class0" / "00.png").write_bytes(b"no image")
    found = reproduce("bn", "-T", "2", "--data", "folder:set", "--images", "24")["networks"][0]
    assert found["ann"][0]["images"] == found["rows"][0]["columns"]["2"]["images"] == 23
    said = json.loads((folder / "out" / "bn.json").read_text())["differences"]
    assert any(s.startswith("Unreadable images were left out, at most 2 per cell") for s in said)
    flags = ["--data", "folder:set", "--images", "24", "-T", "2", "--strict", "-o", "strict"]
    assert main(["reproduce", "bn", "--model", "nets.py:make", *flags]) == 2
    assert "set: 1 unreadable: " in (said := capsys.readouterr().err) and "00.png" in said
    flags[-1] = "out"  # cells that left images out do not count in a strict run
    assert main(["reproduce", "bn", "--model", "nets.py:make", *flags]) == 2
    assert "set: 1 unreadable: " in capsys.readouterr().err


def test_differences_are_reported(reproduce: Reproduce) -> None:
    said = " ".join(reproduce("acp", "-T", "2", models=("nets.py:plain",))["differences"])
    for words in (
        "Network: nets.py:plain on npz:images.npz; the paper's table has ResNet-34 on ImageNet",
        "nets.py:plain has no BN; the paper's table is about networks with BN",
        "npz:images.npz has 60 training images, all used for thresholds",
        "a fixed 20 of the 30 test images",
        "3 iterations per layer of 16 images, by Adam at 1e-3, not SGD at 1e-5; the paper has 5,000",
        "from 256 images; the paper has 1,024",
        "Not measured: T=16, 32.",
        "Seeds: 2; the paper has 5",
    ):
        assert words in said


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_figures_are_whole(name: str) -> None:
    table, paper = TABLES[name], paper_tables()[name]
    assert paper["blocks"]
    for block in paper["blocks"]:
        assert block["network"] and block["data"]
        for row in block["rows"]:
            assert len(row["values"]) == len(paper["columns"])
            for value in row["values"]:
                assert value is None or isinstance(value, float | int) or len(value) == 2
        if table.kind == "accuracy" and name != "samples":
            own = {row["method"] for row in block["rows"] if "quoted" not in row}
            assert own == {row.label for row in table.rows if not row.added}
            assert [f"T={T}" if T != table.long else f"T≥{T}" for T in table.T] == paper["columns"]
            for row in (row for row in block["rows"] if "quoted" not in row):
                assert (row.get("ann", block["ann"]), row.get("bn", block["bn"])) != (None, None)
    quoted = {row["method"] for block in paper["blocks"] for row in block["rows"] if "quoted" in row}
    literature = {"Spike-Norm", "Hybrid Train", "RMP", "TSC"}
    assert quoted == {"cifar": literature | {"Robust-Norm", "RNL"}, "imagenet": literature}.get(name, set())


def test_the_same_method_has_the_same_figure_in_the_papers_tables() -> None:
    """Figures that the paper prints twice were transcribed twice."""
    tables = paper_tables()

    def figure(table: str, block: int, method: str) -> list[Any]:
        rows = tables[table]["blocks"][block]["rows"]
        found: list[Any] = next(row["values"] for row in rows if row["method"] == method)
        return found

    for block in (0, 1):
        rounded = figure("clipround", block, "MMSE + ClipRound")
        assert rounded == figure("threshold", block, "MMSE") == figure("bn", 2 * block, "MMSE + ClipRound")
        assert figure("clipround", block, "MaxAct + ClipRound") == figure("threshold", block, "MaxAct")
    resnet, vgg = (tables["imagenet"]["blocks"][i]["rows"] for i in (0, 1))
    for rows, block in ((vgg, 0), (resnet, 1)):
        for name in ("LCP", "ACP"):
            line = next(r for r in rows if r["method"] == f"Baseline + {name}" and r["bn"])
            assert [value[0] for value in line["values"][:2]] == figure(name.lower(), block, f"MMSE* + {name}")
            assert line["ann"] == tables["bn"]["blocks"][2 * block + 1]["ann"] == tables["lcp"]["blocks"][block]["ann"]


def test_sizes() -> None:
    assert (PAPER.images, PAPER.seeds, PAPER.iterations) == (None, 5, 5000)
    cifar, samples = find("cifar"), find("samples")
    for T in cifar.T:
        assert PAPER.of(spikecal.ACP, cifar, T) == spikecal.ACP  # nothing is shortened
    fewer = spikecal.ACP.changed(spikecal.Weights, iterations=7, batch=5, optimiser="adam", lr=1e-3)
    for table, T, images in ((cifar, 32, 256), (samples, 8, 1024)):
        assert Sizes(iterations=7, batch=5).of(spikecal.ACP, table, T) == fewer.changed(spikecal.Weights, images=images)
        assert Sizes().of(spikecal.LCP, table, T) == spikecal.LCP
    # the expensive column: every calibrator on fewer images
    assert Sizes(iterations=7, batch=5).of(spikecal.ACP, cifar, 512) == fewer.changed(Calibrator, images=32)
    assert Sizes().of(spikecal.LCP, cifar, 512) == spikecal.LCP.changed(spikecal.Bias, images=32)
    later = Sizes(long_from=1024, weights_to=512)
    assert later.of(spikecal.LCP, cifar, 512) == spikecal.LCP
    assert [later.has(spikecal.ACP, T) for T in (512, 1024)] == [True, False]
    assert later.has(spikecal.LCP, 1024)


def test_markdown_escapes_and_ends(reproduce: Reproduce) -> None:
    found = reproduce("bn", "-T", "2", models=("nets.py:plain", "nets.py:make"))
    found["networks"][0]["rows"][0]["method"] = "a|b"
    page = markdown(found)
    assert "| a\\|b |" in page
    assert page.endswith("\n")


@pytest.mark.usefixtures("folder")
def test_the_embedded_network_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["reproduce", "bn", "-T", "2", "--images", "16", "-o", "out"])
    out, err = capsys.readouterr()
    assert code == 0
    assert "4 of 4 cells to measure, about " in err
    assert "resnet20-nobn, no BN, demo; ANN " in out
    assert "resnet20, demo; ANN " in out
    assert "MMSE + ClipRound" in out
    assert "bn.md" in out
    for title in ("What the paper claims", "Differences from the paper", "The paper's figures, quoted"):
        assert f"\n{title}\n" in out
    assert "\n MMSE + ClipRound " in out.partition("quoted")[2]  # the paper's rows
    assert "| ---" not in out
    assert len(re.findall(r"^cell \d/4: .* \(\d+ s\), about \d+ s left$", err, re.MULTILINE)) == 4
