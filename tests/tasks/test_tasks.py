"""Tasks without the command line: which one is chosen, what it returns, and that it prints nothing."""

import json
from pathlib import Path

import pytest
from detection.scenes import voc

from spikecal.cli.console import show
from spikecal.cli.main import main
from spikecal.errors import ConfigError
from spikecal.pipeline import LCP
from spikecal.tasks.choose import TASKS, task_of_data, task_of_file, task_of_model
from spikecal.tasks.outcome import Line, Table
from spikecal.tasks.requests import Conversion, Evaluation

CLASSIFY, DETECT = TASKS["classify"], TASKS["detect"]


def evaluation(file: Path) -> Evaluation:
    return Evaluation(
        file=file, model=None, weights=None, data=None, data_root=None, steps=[2], images=5, seed=0, strict=False,
        within=None,
    )  # fmt: skip


def nobody(text: str) -> None:
    raise AssertionError(f"nothing is to be said here, but: {text}")


def test_chosen_by_name_model_and_data() -> None:
    assert task_of_model("resnet20", None) is CLASSIFY and task_of_model("mine.py:make", "detect") is DETECT
    assert task_of_model("retinanet-r18-quarter", None) is DETECT
    assert task_of_data("npz:a.npz") is CLASSIFY and task_of_data("coco:a") is DETECT


@pytest.mark.parametrize("card", [None, {"name": "resnet20"}, {"name": None}, "no card"])
def test_a_file_decides_what_it_is(card: object) -> None:
    assert task_of_file("a.snn", False, card, None, None) is CLASSIFY
    assert task_of_file("a.snn", True, card, None, None) is DETECT
    with pytest.raises(ConfigError, match="holds a classifier"):
        task_of_file("a.snn", False, card, "retinanet-r18-quarter", None)
    with pytest.raises(ConfigError, match="holds the body"):
        task_of_file("a.snn", True, card, None, "classify")


def test_the_command_line_prints_what_the_task_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.snn"
    asked = Conversion(
        model="resnet20", output=file, weights=None, data=None, data_root=None, steps=[2], latency=None,
        pipeline=LCP.with_images(4), images=4, keep=(), readout=None, seed=0, workdir=None, memory=None,
        micro_batch=None, test=5, strict=False, records=True, report=None, joints=None,
    )  # fmt: skip
    made = CLASSIFY.convert(asked, None, nobody)
    found = CLASSIFY.evaluate(evaluation(file), None)
    assert capsys.readouterr() == ("", "")
    assert main(["evaluate", str(file), "-T", "2", "--images", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.facts))
    show(found, machine=False)
    printed = capsys.readouterr().out
    titles = [part.title for part in found.parts if isinstance(part, Table)]
    assert titles == [str(file), "After every step, network for T = 2"] and all(title in printed for title in titles)
    assert made.facts["summary"]["networks"][0]["rates"] == found.facts["networks"][0]["rates"]
    assert isinstance(made.parts[-1], Line) and made.parts[-1].text.startswith(f"{file}: ")


def test_labels_of_a_set(tmp_path: Path) -> None:
    folder = voc(tmp_path, train=2, test=1)
    found = DETECT.labelled(f"voc:{folder}", "train", None)
    objects = sum(file.read_text().count("<object>") for file in folder.rglob("*.xml"))
    rest = DETECT.labelled(f"voc:{folder}", "test", None)
    assert (len(found.images), len(rest.images), found.classes) == (2, 1, 2) and not found.left_out
    assert found.facts["boxes"] + rest.facts["boxes"] == objects
    assert CLASSIFY.labelled("demo", "test", None).classes == 10
