"""Custom calibrators, thresholds and neurons: the code of docs/how-to/extending.md, and its errors."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from networks import images, residual
from torch import Tensor

import spikecal
from scripts import ROOT
from spikecal import CalibrationError, ConfigError, FileError, Pipeline, StageView, Update
from spikecal.analysis.evaluate import original
from spikecal.cli.main import main
from spikecal.parts import imported
from spikecal.pipeline import LCP
from spikecal.report.source import from_file
from spikecal.usercode import load_class

PAGE = (ROOT / "docs" / "how-to" / "extending.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's file, in a folder that commands run in."""
    file = tmp_path / "mine.py"
    file.write_text("\n".join(block for block in blocks("python") if block.startswith("# mine.py")))
    monkeypatch.chdir(tmp_path)
    return file


def test_the_page_runs_as_it_is(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine.parent))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    scope = {"model": residual(), "images": images(16)}
    for block in blocks("python"):
        if not block.startswith("# mine.py"):
            exec(block, scope)  # the page's own code
    snn, result = scope["snn"], scope["result"]
    assert torch.equal(snn(images(4)), result.snn(images(4)))  # type: ignore[operator,attr-defined]
    assert result.records[0].errors[-1][0] == "DampedBias"  # type: ignore[attr-defined]
    assert max(int(t.max()) for t in snn.run(images(4)).spikes.values()) > 8  # type: ignore[attr-defined]


def test_the_pages_toml_makes_what_python_makes(mine: Path) -> None:
    (toml,) = blocks("toml")
    (mine.parent / "p.toml").write_text(toml)
    pipeline = Pipeline.from_toml("p.toml")
    (first, second), threshold = pipeline.sweeps[0], pipeline.threshold  # type: ignore[misc]
    assert (first.share, first.most, first.label) == (0.8, 1.0, "DampedBias") and second == spikecal.Bias()  # type: ignore[union-attr]
    assert threshold.times == 5.0 and pipeline.neuron.alphabet == (0, 1, 2)  # type: ignore[attr-defined]
    assert pipeline.to_dict()["sweeps"][0][0]["kind"] == "mine.py:DampedBias"


def test_a_relative_file_is_looked_for_beside_the_toml(mine: Path, tmp_path_factory: pytest.TempPathFactory,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (mine.parent / "p.toml").write_text('sweeps = [[{ kind = "mine.py:DampedBias" }]]')
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert len(Pipeline.from_toml(mine.parent / "p.toml").calibrators) == 1


NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

def data(split):
    return torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
"""


def test_the_command_line_converts_and_evaluates(mine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (mine.parent / "net.py").write_text(NET)
    named = ["--calibrator", "mine.py:DampedBias", "--calibrator", "bias", "--threshold", "mine.py:MeanTimes"]
    convert = ["convert", "net.py:make", "--data", "net.py:data", "-T", "4", *named]
    assert main([*convert, "--neuron", "mine.py:Burst", "--workdir", "work", "-o", "burst.snn"]) == 0
    assert main([*convert, "-o", "net.snn"]) == 0
    assert main(["evaluate", "net.snn", "--data", "net.py:data"]) == 0  # no class is needed
    capfd.readouterr()
    assert main(["evaluate", "burst.snn", "--data", "net.py:data"]) == 2
    assert "--neuron mine.py:Burst" in capfd.readouterr().err
    assert main(["evaluate", "burst.snn", "--data", "net.py:data", "--neuron", "mine.py:Burst"]) == 0
    assert main(["report", "burst.snn", "--data", "net.py:data", "--neuron", "mine.py:Burst"]) == 0
    assert main(["check", "burst.snn"]) == 0
    spikes = ["run", "burst.snn", "-o", "spikes.npz", "--data", "net.py:data"]
    capfd.readouterr()
    assert main(spikes) == 2 and "--neuron mine.py:Burst" in capfd.readouterr().err
    assert main([*spikes, "--neuron", "mine.py:Burst"]) == 0
    with np.load("spikes.npz") as found:
        assert found["spikes/1"][:, 3].max() == 2  # two spikes in a step
    capfd.readouterr()
    for elsewhere in (["export", "burst.snn", "-o", "net.onnx"], ["check", "burst.snn", "--target", "generic"]):
        assert main(elsewhere) == 2
        assert "burst.snn has burst neurons, which other programs do not know" in capfd.readouterr().err
    assert main([*convert, "--neuron", "mine.py:MeanTimes", "-o", "no.snn"]) == 2
    assert "mine.py:MeanTimes is not a class that derives from spikecal.Neuron" in capfd.readouterr().err


def test_neighbours_are_imported_when_they_are_needed(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may import its neighbours when it is called, as in a script."""
    folder = mine.parent / "project"
    folder.mkdir()
    (folder / "nets.py").write_text(NET)
    lazy = "def make():\n    from nets import make\n    return make()\n"
    (folder / "lazy.py").write_text(lazy)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["check", "project/lazy.py:make", "--shape", "3,6,6"]) == 0
    (mine.parent / "packed").mkdir()
    (mine.parent / "packed" / "lazily.py").write_text(lazy.replace("from nets", "from packed.nets"))
    (mine.parent / "packed" / "nets.py").write_text(NET)
    assert main(["check", "packed.lazily:make", "--shape", "3,6,6"]) == 0


@dataclass(frozen=True, kw_only=True)
class Demanding(spikecal.Calibrator):
    """A setting without a default."""

    share: float

    def solve(self, view: StageView) -> Update:
        return Update(bias=self.share * view.mean_error(self.images, "channel"))


def test_a_setting_without_a_default(tmp_path: Path) -> None:
    result = spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(sweeps=((Demanding(share=0.5),),)))
    result.report(tmp_path / "r.html")
    assert "Few calibration images" in (tmp_path / "r.html").read_text()
    with pytest.raises(ConfigError, match="missing 1 required keyword-only argument: 'share'"):
        Pipeline.from_dict({"sweeps": [[{"kind": f"{__name__}:Demanding"}]]}, imported())


def test_a_file_loads_and_runs_where_the_class_is_not(mine: Path) -> None:
    """Also where a file of that name is: nothing that a file names is imported."""
    kinds = {name: load_class(f"mine.py:{name}", base) for name, base in
             (("DampedBias", spikecal.Calibrator), ("MeanTimes", spikecal.Threshold))}  # fmt: skip
    pipeline = Pipeline(threshold=kinds["MeanTimes"](), sweeps=((kinds["DampedBias"](),),))  # type: ignore[arg-type]
    result = spikecal.convert(residual(), images(16), T=4, pipeline=pipeline)
    result.save("net.snn")
    mine.write_text("raise SystemExit('a file of networks was imported from')")
    assert torch.equal(spikecal.load("net.snn")(images(4)), result.snn(images(4)))
    code = "import spikecal, torch; print(spikecal.load('net.snn')(torch.zeros(1, 3, 8, 8)).shape)"
    assert "[1, 5]" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    source = from_file(Path("net.snn"))
    assert source.method == "DampedBias" and source.ann is not None  # its weights are still the ANN's
    assert original(spikecal.load("net.snn")) is not None
    assert spikecal.inspect("net.snn")["pipeline"]["threshold"]["kind"] == "mine.py:MeanTimes"
    again = Pipeline.from_dict(spikecal.inspect("net.snn")["pipeline"])
    assert again.to_dict() == pipeline.to_dict()
    with pytest.raises(ConfigError, match=r"mine.py:MeanTimes, which is not in its file"):
        spikecal.convert(residual(), images(16), T=4, pipeline=again)


def test_whoever_loads_a_file_supplies_its_neurons(mine: Path) -> None:
    burst = load_class("mine.py:Burst", spikecal.Neuron)
    result = spikecal.convert(residual(), images(16), T=4, pipeline=Pipeline(neuron=burst()))
    result.save("net.snn")
    for given in (burst, burst(), "mine.py:Burst"):
        assert torch.equal(spikecal.load("net.snn", neurons=[given])(images(4)), result.snn(images(4)))
    with pytest.raises(FileError, match=r"neurons=\['mine.py:Burst'\]"):
        spikecal.load("net.snn")
    with pytest.raises(FileError, match="no neurons called 'integrate-and-fire': it has burst"):
        spikecal.load("net.snn", neurons=[spikecal.IntegrateAndFire])
    assert spikecal.inspect("net.snn")["T"] == [4]


def test_a_changed_class_does_not_resume(mine: Path) -> None:
    def convert() -> None:
        own = load_class("mine.py:DampedBias", spikecal.Calibrator)
        spikecal.convert(residual(), images(16), T=4, pipeline=Pipeline(sweeps=((own(),),)), workdir="work")

    convert()
    convert()
    mine.write_text(mine.read_text().replace("bias = self.share * error", "bias = 2 * self.share * error"))
    with pytest.raises(ConfigError, match="holds another conversion"):
        convert()


# -- what goes wrong -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wrong(spikecal.Calibrator):
    """Returns or raises whatever its function makes of the view."""

    make: ClassVar[Callable[[StageView], Any]]

    def applies(self, stage: spikecal.Stage) -> bool:
        return len(stage.weighted()) == 2  # the residual sum

    def solve(self, view: StageView) -> Update:
        return type(self).make(view)  # type: ignore[no-any-return]


def channels(view: StageView) -> Tensor:
    return view.mean_error(8, "channel")


def divided(view: StageView) -> Update:
    raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda view: Update(bias=channels(view) * float("nan")), "gives a bias with NaN or infinite values"),
        (lambda view: Update(bias=channels(view)[1:]), r"gives a bias of shape \[7\], not \[8\] or \[1\]"),
        (lambda view: Update(bias=0.1), "gives a bias that is a float, not a tensor"),
        (lambda view: Update(v_init=torch.zeros(3, 3)), r"v_init of shape \[3, 3\], not \[8\]"),
        (lambda view: Update(step_bias=torch.zeros(8, 4)), r"step_bias of shape \[8, 4\], not \[4, 8\]"),
        (lambda view: Update(scale=-torch.ones(1)), "by factors that are not positive"),
        (lambda view: Update(weights={"nope": torch.zeros(1)}), "weights to 'nope', which is no .* it has"),
        (lambda view: Update(weights={"body": view.stage.weighted()[0].op.weight}), "must set `learns = True`"),
        (lambda view: None, "returned None, not an Update"),
        (divided, "raised ZeroDivisionError: by nothing"),
    ],
)  # fmt: skip
def test_an_invalid_update_names_the_stage(
    make: Callable[[StageView], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "make", staticmethod(make), raising=False)
    with pytest.raises(CalibrationError, match=f"^relu_2: Wrong .*{said}") as caught:
        spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(sweeps=((Wrong(),),)))
    assert caught.value.stage == "relu_2" and caught.value.part == "Wrong"


@dataclass(frozen=True, kw_only=True)
class Holding(spikecal.Calibrator):
    """A setting that no file can hold."""

    function: object = divided


def test_settings_that_no_file_could_hold_are_refused_before_the_work() -> None:
    with pytest.raises(ConfigError, match="Holding cannot be stored: its function is .*, which is not plain data"):
        spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(sweeps=((Holding(),),)))


@dataclass(frozen=True, kw_only=True)
class WrongThreshold(spikecal.Threshold):
    value: float = 1.0
    extra: int = 0

    def choose(self, histogram: spikecal.Histogram, T: int, quantiser: str) -> Tensor:
        return torch.full((len(histogram.maximum) + self.extra,), 0.0).log() * self.value


def test_an_invalid_threshold_names_the_layer() -> None:
    for wrong, said in (
        (WrongThreshold(), "gave a threshold that is NaN or infinite"),
        (WrongThreshold(extra=1), r"gave \[2\], not a tensor of 1"),
    ):
        with pytest.raises(CalibrationError, match=f"^relu: WrongThreshold {said}"):
            spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(threshold=wrong))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"share": "much"}, "share cannot be 'much'"),
        ({"most": "much"}, "most cannot be 'much'"),
        ({"shar": 1.0}, "no setting 'shar': choose from images, share, most"),
        ({"images": 0}, "at least one image"),
    ],
)
def test_settings_are_checked_by_their_annotations(mine: Path, settings: dict[str, object], said: str) -> None:
    plain = {"sweeps": [[{"kind": "mine.py:DampedBias", **settings}]]}
    with pytest.raises(ConfigError, match=said):
        Pipeline.from_dict(plain, imported())
    fine = {"sweeps": [[{"kind": "mine.py:DampedBias", "most": None, "share": 1}]]}
    assert Pipeline.from_dict(fine, imported()).calibrators[0].images == LCP.calibrators[0].images


def test_missing_names_are_reported(mine: Path) -> None:
    for named, said in (
        ("other.py:A", "there is no file other.py"),
        ("mine.py:A", "mine.py has no class 'A'"),
        ("nowhere.at.all:A", "module nowhere.at.all is not installed"),
        ("mine.py:Burst", "not a class that derives from spikecal.Calibrator"),
    ):
        (mine.parent / "p.toml").write_text(f'sweeps = [[{{ kind = "{named}" }}]]')
        with pytest.raises(ConfigError, match=said):
            Pipeline.from_toml("p.toml")
    with pytest.raises(ConfigError, match="'mine.py:Burst' is not part of spikecal"):
        Pipeline.from_dict({"sweeps": [[{"kind": "mine.py:Burst"}]]})


class Gain(spikecal.Calibrator):
    """Not a dataclass: its settings would be missing from files and from fingerprints of working directories."""

    def __init__(self, gain: float) -> None:
        object.__setattr__(self, "gain", gain)


def test_settings_that_are_not_fields_are_refused_before_the_work() -> None:
    with pytest.raises(
        ConfigError, match=r"Gain cannot be stored: gain is not one of its fields: make Gain a dataclass"
    ):
        spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(sweeps=((Gain(2.0),),)))


class Plain(spikecal.Neuron):
    """A neuron without a closed form."""

    def advance(self, current: Tensor, state: Any, cells: spikecal.Cells, steps: int) -> Any:
        for t in range(steps):
            state["v"] += current[t if len(current) > 1 else 0]
            fired = (state["v"] >= cells.theta).to(current.dtype)
            state["v"] -= cells.theta * fired
            yield fired


def test_unsupported_neuron_methods_are_named() -> None:
    fine = spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(rounding="floor", neuron=Plain()))
    assert fine.snn(images(2)).shape == (2, 5)
    weights = Pipeline(sweeps=((spikecal.Weights(iterations=1),),), neuron=Plain())
    with pytest.raises(ConfigError, match=r"Plain neurons cannot do this: Plain has no slope\(\)"):
        spikecal.convert(residual(), images(8), T=4, pipeline=weights)


def test_errors_are_known_for_the_images_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrong, "make", staticmethod(lambda view: view.mean_error(3, "channel")), raising=False)
    with pytest.raises(
        CalibrationError, match=r"relu_2: mean_error is known for the images .* \(8\), not for 3: use se"
    ):
        spikecal.convert(residual(), images(8), T=4, pipeline=Pipeline(sweeps=((Wrong(),),)))


def test_a_file_is_imported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its classes and functions are those of one module, however many of them are named; an edit is another module."""
    file = tmp_path / "once.py"
    file.write_text("print('imported')\nimport spikecal\nclass A(spikecal.Neuron): pass\nclass B(A): pass\n")
    one, two = (load_class(f"{file}:{name}", spikecal.Neuron) for name in "AB")
    assert issubclass(two, one) and capfd.readouterr().out == "imported\n"
    file.write_text(file.read_text() + "class C(A): pass\n")
    assert not issubclass(load_class(f"{file}:C", spikecal.Neuron), one)
